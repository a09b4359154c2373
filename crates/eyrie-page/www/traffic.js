// What ranks send each other: a heat map with a row for each sender and a column for each receiver,
// and the heaviest pairs. Many ranks are put together by node.

import { h, say, set, svg } from "./dom.js";
import { COLOURS, scale } from "./heat.js";
import { bytes, counted, number, time } from "./units.js";

/** Side of the map, and room for numbers beside it. */
const SIDE = 320;
const LEFT = 34;
const TOP = 20;

export class Traffic {
  constructor(state) {
    this.state = state;
    this.when = h(
      "select",
      { "aria-label": "Which traffic", onchange: () => this.draw() },
      h("option", { value: "now" }, "in a second, now"),
      h("option", { value: "all" }, "since the start"),
    );
    this.facts = h("p", { class: "quiet" });
    this.drawing = svg("svg", { class: "matrix", role: "img", viewBox: `0 0 ${LEFT + SIDE + 2} ${TOP + SIDE + 2}` });
    this.here = h("p", { class: "quiet here", "aria-hidden": "true" });
    this.heaviest = h("ol", { class: "heaviest", "aria-label": "Ranks that send most" });
    const legend = h("p", { class: "ramp", "aria-hidden": "true" }, "less", ...Array.from({ length: COLOURS }, (_, at) => h("span", { class: `heat-${at}` })), "more");
    this.none = h("p", { class: "quiet" }, "No rank has sent anything yet.");
    this.body = h("div", { class: "traffic-body" }, h("div", {}, this.drawing, this.here), h("div", {}, this.facts, legend, h("p", { class: "quiet" }, "Most in a second:"), this.heaviest));
    this.element = h("section", { class: "traffic", "aria-labelledby": "traffic-title", hidden: true }, h("div", { class: "head" }, h("h2", { id: "traffic-title" }, "Traffic"), this.when), this.none, this.body);
    this.drawing.addEventListener("mousemove", (event) => this.pointed(event));
    this.drawing.addEventListener("mouseleave", () => say(this.here, ""));
  }

  update(news) {
    if (news.traffic || news.whole) this.draw();
  }

  draw() {
    const { traffic } = this.state;
    this.element.hidden = !traffic;
    if (!traffic) return;
    this.none.hidden = traffic.bytes > 0 || traffic.messages > 0;
    this.body.hidden = !this.none.hidden;
    const isAll = this.when.value === "all";
    const between = traffic.between_nodes === null ? "" : `; ${Math.round(traffic.between_nodes * 100)} % between nodes`;
    say(this.facts, `${bytes(traffic.bytes_per_s)} and ${number(traffic.messages_per_s)} messages a second in the last ${time(traffic.window)}${between}. Since the start ${bytes(traffic.bytes)} in ${counted(traffic.messages, "message")}.`);
    this.amounts = new Map(traffic.cells.map(([row, column, now, all]) => [row * traffic.count + column, isAll ? all : now]));
    this.drawCells(traffic);
    set(this.drawing, { "aria-label": `What ${this.rowsInWords(traffic)} send each other, ${traffic.count} rows and columns. The heaviest pairs are in a list beside it.` });
    const pairs = traffic.heaviest.map(([from, to, rate]) => h("li", {}, `rank ${from} → rank ${to}: ${bytes(rate)} a second`));
    this.heaviest.replaceChildren(...pairs);
  }

  drawCells(traffic) {
    const amounts = [...this.amounts.values()].filter((amount) => amount > 0);
    const most = amounts.reduce((a, b) => Math.max(a, b), 0);
    const colour = scale(most, amounts.reduce((a, b) => Math.min(a, b), most));
    const paths = Array.from({ length: COLOURS }, () => "");
    const cell = SIDE / Math.max(1, traffic.count);
    for (const [at, amount] of this.amounts) {
      const heat = colour(amount);
      if (heat === null) continue;
      const [x, y] = [LEFT + (at % traffic.count) * cell, TOP + Math.floor(at / traffic.count) * cell];
      paths[heat] += `M${x.toFixed(1)} ${y.toFixed(1)}h${cell.toFixed(2)}v${cell.toFixed(2)}h-${cell.toFixed(2)}z`;
    }
    const ground = svg("rect", { class: "ground", x: LEFT, y: TOP, width: SIDE, height: SIDE });
    const cells = paths.map((d, heat) => svg("path", { class: `heat-${heat}`, d }));
    this.drawing.replaceChildren(ground, ...cells, ...this.borders(traffic, cell), ...numbers(traffic, cell));
  }

  /** Lines between ranks that follow each other and are on different nodes. */
  borders(traffic, cell) {
    if (traffic.by !== "rank" || traffic.size !== 1) return [];
    const { ranks } = this.state;
    let d = "";
    for (let rank = 1; rank < traffic.count; rank += 1) {
      if (ranks[rank]?.node === ranks[rank - 1]?.node) continue;
      d += `M${LEFT + rank * cell} ${TOP}v${SIDE}M${LEFT} ${TOP + rank * cell}h${SIDE}`;
    }
    return [svg("path", { class: "border", d })];
  }

  rowsInWords({ by, size }) {
    if (size === 1) return by === "rank" ? "ranks" : "nodes";
    return `groups of ${size} nodes`;
  }

  nameOf(row) {
    const { by, size } = this.state.traffic;
    const first = row * size;
    return size === 1 ? `${by} ${first}` : `${by}s ${first} to ${first + size - 1}`;
  }

  pointed(event) {
    const { traffic } = this.state;
    const box = this.drawing.getBoundingClientRect();
    const factor = (LEFT + SIDE + 2) / box.width;
    const cell = SIDE / traffic.count;
    const column = Math.floor(((event.clientX - box.left) * factor - LEFT) / cell);
    const row = Math.floor(((event.clientY - box.top) * factor - TOP) / cell);
    const isIn = [row, column].every((at) => at >= 0 && at < traffic.count);
    const amount = this.amounts.get(row * traffic.count + column) ?? 0;
    const rate = this.when.value === "all" ? "" : " a second";
    say(this.here, isIn ? `${this.nameOf(row)} → ${this.nameOf(column)}: ${bytes(amount)}${rate}` : "");
  }
}

/** Numbers along two sides, so many that they do not touch. */
function numbers({ count, size }, cell) {
  const step = [1, 2, 4, 8, 16, 32].find((one) => one * cell >= 20) ?? 64;
  const all = [];
  for (let row = 0; row < count; row += step) {
    const along = (row + 0.5) * cell;
    all.push(svg("text", { x: LEFT - 4, y: TOP + along + 3.5, class: "row" }, String(row * size)));
    all.push(svg("text", { x: LEFT + along, y: TOP - 6, class: "column" }, String(row * size)));
  }
  return all;
}
