// Figures of the job: tiles at the top with how they went lately, and logs and images in detail.

import { h, say, svg } from "./dom.js";
import { RUNNING } from "./state.js";
import { bytes, clock, counted, number, time } from "./units.js";

/** How many seconds of a figure are drawn. */
const KEPT = 120;

/** A figure with a line of how it went. */
class Tile {
  constructor(name) {
    this.value = h("span", { class: "value" });
    this.note = h("span", { class: "note" });
    this.line = svg("polyline", {});
    const drawing = svg("svg", { viewBox: `0 0 ${KEPT} 24`, preserveAspectRatio: "none", "aria-hidden": "true", class: "spark" }, this.line);
    this.element = h("div", { class: "tile" }, h("dt", {}, name), h("dd", {}, this.value, this.note, drawing));
    this.past = [];
  }

  show(value, note = "") {
    say(this.value, value);
    say(this.note, note);
  }

  /** Adds to the line. */
  draw(amount) {
    this.past.push(amount);
    if (this.past.length > KEPT) this.past.shift();
    const most = Math.max(...this.past, 1e-9);
    const x = (at) => KEPT - this.past.length + at + 1;
    this.line.setAttribute("points", this.past.map((value, at) => `${x(at)},${(23 - (22 * value) / most).toFixed(1)}`).join(" "));
  }
}

export class Figures {
  constructor(state) {
    this.state = state;
    const names = { elapsed: "Elapsed", ranks: "Ranks running", failures: "Failures", recoveries: "Recoveries", checkpoints: "Checkpoints", images: "Images", log: "Log", messages: "Messages" };
    this.tiles = Object.fromEntries(Object.entries(names).map(([key, name]) => [key, new Tile(name)]));
    this.element = h("dl", { class: "tiles", "aria-label": "Figures" }, Object.values(this.tiles).map((tile) => tile.element));
    this.table = h("div", { class: "table" });
    this.details = h("section", { class: "kept", "aria-labelledby": "kept-title" }, h("h2", { id: "kept-title" }, "Logs and images"), this.table);
  }

  update(news) {
    if (news.summary || news.ranks || news.whole) this.drawSummary();
    if (news.figures || news.whole) this.drawFigures();
    this.tick();
  }

  tick() {
    this.tiles.elapsed.show(clock(this.state.now()));
  }

  drawSummary() {
    const { summary, ranks } = this.state;
    if (!summary) return;
    const counts = this.state.counts();
    const running = RUNNING.reduce((all, doing) => all + (counts[doing] ?? 0), 0);
    const parts = [["waits", "waiting"], ["finished", "finished"]].filter(([doing]) => counts[doing]);
    this.tiles.ranks.show(`${number(running)} of ${number(ranks.length)}`, parts.map(([doing, word]) => `${number(counts[doing])} ${word}`).join(", "));
    const nodes = summary.nodes_lost ? counted(summary.nodes_lost, "node") + " lost" : "";
    this.tiles.failures.show(number(summary.rank_failures), nodes);
    this.tiles.recoveries.show(number(summary.recoveries), summary.recoveries ? `longest ${time(summary.longest_recovery)}` : "");
    this.tiles.checkpoints.show(number(summary.checkpoints), summary.checkpoints_failed ? `${number(summary.checkpoints_failed)} failed` : "");
  }

  drawFigures() {
    const { figures, head } = this.state;
    const known = figures && head?.has_figures;
    for (const key of ["images", "log", "messages"]) this.tiles[key].element.hidden = !known;
    this.details.hidden = !known;
    if (!known) return;
    const { images, log, messages } = this.tiles;
    images.show(bytes(figures.store_bytes), figures.image_pause === null ? "in stores" : `pause ${time(figures.image_pause)} each`);
    images.draw(figures.store_bytes);
    const held = figures.log_memory_bytes + figures.log_disk_bytes;
    log.show(bytes(held), figures.log_disk_bytes ? `${bytes(figures.log_disk_bytes)} on disk` : "in memory");
    log.draw(held);
    const now = performance.now();
    const rate = this.before && now > this.before.at ? Math.max(0, ((figures.messages - this.before.messages) * 1000) / (now - this.before.at)) : 0;
    if (this.before) messages.draw(rate);
    this.before = { at: now, messages: figures.messages };
    messages.show(number(figures.messages), `${number(rate)} a second`);
    this.drawTable();
  }

  drawTable() {
    const { figures } = this.state;
    const inWords = figures.ranks_by_copies.map(([copies, ranks]) => `of ${counted(ranks, "rank")} ${copies ? `in ${counted(copies, "store")}` : "none yet"}`);
    const rows = [
      ["Newest images", `${bytes(figures.image_bytes)}: ${inWords.join(", ")}`],
      ["Interval", intervalInWords(figures)],
      ["An image takes", figures.checkpoint_cost === null ? "not known yet" : `${time(figures.checkpoint_cost)} until it is stored${figures.image_pause === null ? "" : `; its rank stands still ${time(figures.image_pause)} of that`}`],
      ["Stores", bytes(figures.store_bytes)],
      ...figures.logs.map((log) => [figures.logs.length > 1 ? `Log of router ${log.router}` : "Log", `${bytes(log.memory_bytes)} in memory, ${bytes(log.disk_bytes)} on disk`]),
      ...figures.domains.map((domain) => [`Domain ${domain.name}`, domainInWords(domain)]),
    ];
    this.table.replaceChildren(h("dl", { class: "facts" }, rows.map(([what, value]) => h("div", {}, h("dt", {}, what), h("dd", {}, value)))));
  }
}

function intervalInWords({ checkpoint_interval: interval }) {
  return interval === null ? "no image is taken by the clock" : `each rank is imaged every ${time(interval)}`;
}

function domainInWords(domain) {
  const ranks = counted(domain.ranks, "rank");
  if (domain.finished !== null) return `${ranks}, finished with code ${domain.finished}`;
  if (!domain.line) return `${ranks}, no line to it yet`;
  return `${ranks}, line ${domain.line.up ? "up" : "down"} for ${time(domain.line.seconds)}`;
}
