// The nodes and their ranks. A rank is a small square that says what the rank does by colour and by
// a sign. It is chosen by a click or by the keyboard, and dragged to a node to be moved there.

import { h, say, set } from "./dom.js";
import { giveRanks, takeRanks } from "./drag.js";
import { nodeInWords } from "./nodes.js";
import { DOING, isGone, RUNNING } from "./state.js";
import { counted, number } from "./units.js";

export class RankMap {
  /** `hands`: `rank(number)` and `node(number)` are called when one is chosen, `drop(rank, node)`
  when one is dragged; `mayAct()` says whether that is allowed. */
  constructor(state, hands) {
    this.state = state;
    this.hands = hands;
    this.ranks = [];
    this.nodes = [];
    this.current = null;
    this.only = null;
    this.filters = h("div", { class: "filters", role: "group", "aria-label": "Show only ranks that are" });
    this.chips = new Map();
    this.finder = h("input", { type: "number", min: 0, inputmode: "numeric", placeholder: "Rank", "aria-label": "Find rank", class: "finder" });
    const find = h("form", { class: "find", novalidate: true, onsubmit: (event) => this.find(event) }, this.finder, h("button", { type: "submit" }, "Find"));
    this.grid = h("div", { class: "nodes" });
    this.element = h("section", { class: "map", "aria-labelledby": "map-title" }, h("div", { class: "head" }, h("h2", { id: "map-title" }, "Nodes and ranks"), find), this.filters, this.grid);
    this.hear();
  }

  hear() {
    this.grid.addEventListener("click", (event) => this.chosen(event.target));
    this.grid.addEventListener("keydown", (event) => this.key(event));
    this.grid.addEventListener("mouseover", (event) => {
      const rank = event.target.closest(".rank");
      if (rank) rank.title = this.describe(this.state.ranks[rank.dataset.rank]);
    });
    giveRanks(this.grid, this.hands.mayAct);
    takeRanks(this.grid, ".node", this.hands.drop);
  }

  chosen(target) {
    const rank = target.closest(".rank");
    if (rank) {
      this.makeCurrent(rank);
      return this.hands.rank(Number(rank.dataset.rank));
    }
    const node = target.closest(".node-head");
    if (node) this.hands.node(Number(node.parentElement.dataset.node));
  }

  find(event) {
    event.preventDefault();
    const rank = this.ranks[this.finder.valueAsNumber];
    this.finder.setCustomValidity(rank ? "" : "The job has no such rank");
    if (!rank) return this.finder.reportValidity();
    this.makeCurrent(rank.element);
    rank.element.scrollIntoView({ block: "center" });
    rank.element.focus();
    this.hands.rank(this.finder.valueAsNumber, false);
  }

  /** The one that the tab key leads to. */
  makeCurrent(element) {
    this.current?.setAttribute("tabindex", "-1");
    this.current = element;
    element?.setAttribute("tabindex", "0");
  }

  key(event) {
    const here = event.target.closest(".rank");
    if (!here) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      return this.chosen(here);
    }
    const to = this.neighbour(here, event.key);
    if (!to) return;
    event.preventDefault();
    this.makeCurrent(to);
    to.focus();
  }

  neighbour(here, key) {
    const group = here.parentElement;
    const all = [...group.children];
    const at = all.indexOf(here);
    const along = (step) => {
      for (let node = group.parentElement; node; node = step > 0 ? node.nextElementSibling : node.previousElementSibling) {
        if (node === group.parentElement) continue;
        const ranks = node.querySelectorAll(".rank");
        if (ranks.length) return step > 0 ? ranks[0] : ranks[ranks.length - 1];
      }
      return null;
    };
    const row = (step) => {
      const others = all.filter((one) => step * (one.offsetTop - here.offsetTop) > 0);
      if (!others.length) return along(step);
      const nearest = Math.min(...others.map((one) => Math.abs(one.offsetTop - here.offsetTop)));
      const inRow = others.filter((one) => Math.abs(one.offsetTop - here.offsetTop) === nearest);
      const distance = (one) => Math.abs(one.offsetLeft - here.offsetLeft);
      return inRow.reduce((best, one) => (distance(one) < distance(best) ? one : best));
    };
    switch (key) {
      case "ArrowRight":
        return all[at + 1] ?? along(1);
      case "ArrowLeft":
        return all[at - 1] ?? along(-1);
      case "ArrowDown":
        return row(1);
      case "ArrowUp":
        return row(-1);
      case "Home":
        return all[0];
      case "End":
        return all[all.length - 1];
      default:
        return null;
    }
  }

  /** The rank in a sentence. */
  describe(rank) {
    const parts = [`rank ${rank.rank} ${DOING[rank.doing].word}`];
    if (rank.image) {
      const copies = rank.image.copies;
      parts.push(`image ${rank.image.number}${copies === null ? "" : ` in ${counted(copies, "store")}`}`);
    } else if (RUNNING.includes(rank.doing)) {
      parts.push("no image yet");
    }
    if (rank.unprotected) parts.push("cannot be recovered at present");
    if (rank.overdue) parts.push("its image is overdue");
    if (rank.sample?.waiting > 0) parts.push(`waits ${rank.sample.waiting} % of its time`);
    if (rank.failures) parts.push(`failed ${counted(rank.failures, "time")}`);
    return parts.join(", ");
  }

  /** Draws what the news have changed. */
  update(news) {
    if (news.whole) this.clear();
    for (const node of news.nodes ?? []) this.drawNode(node);
    for (const rank of news.ranks ?? []) this.drawRank(rank);
    if (news.ranks || news.whole) {
      this.density();
      this.drawFilters();
    }
    const { chosen } = this.state;
    if (chosen?.kind === "rank" && news.ranks?.some((rank) => rank.rank === chosen.number)) this.drawCopies();
    // A rank that has come or gone makes a node a spare or none.
    for (const node of this.touched ?? []) this.drawNode(this.state.nodes[node]);
    this.touched = null;
    if (!this.current?.isConnected) this.makeCurrent(this.grid.querySelector(".rank"));
  }

  clear() {
    this.grid.replaceChildren();
    this.ranks = [];
    this.nodes = [];
    this.current = null;
  }

  density() {
    const count = this.state.ranks.length;
    this.grid.dataset.density = count <= 256 ? "large" : count <= 2500 ? "medium" : "small";
  }

  nodeAt(node) {
    if (this.nodes[node]) return this.nodes[node];
    const name = h("span", { class: "node-name" });
    const host = h("span", { class: "node-host" });
    const state = h("span", { class: "chip" });
    const roles = h("span", { class: "roles" });
    const head = h("button", { type: "button", class: "node-head" }, name, host, state, roles);
    const ranks = h("div", { class: "ranks", role: "group", "aria-label": `Ranks of node ${node}` });
    const element = h("div", { class: "node", "data-node": node }, head, ranks);
    say(name, `Node ${node}`);
    this.nodes[node] = { element, head, host, state, roles, ranks };
    const behind = this.nodes.slice(node + 1).find((other) => other);
    this.grid.insertBefore(element, behind?.element ?? null);
    return this.nodes[node];
  }

  drawNode(node) {
    if (!node) return;
    const drawn = this.nodeAt(node.node);
    const { word, kind } = nodeInWords(node, drawn.ranks.childElementCount > 0);
    say(drawn.host, node.host ?? "");
    say(drawn.state, word);
    drawn.state.className = `chip ${kind}`;
    drawn.state.hidden = word === "";
    say(drawn.roles, node.roles.join(", "));
    const health = node.health.state === "ok" ? "" : ` ${node.health.state}`;
    const copy = this.state.hasCopy(node.node) ? " copy" : "";
    drawn.element.className = `node ${node.state}${node.drained ? " drained" : ""}${health}${copy}`;
    const count = drawn.ranks.childElementCount;
    set(drawn.head, { "aria-label": `${this.state.nodeName(node.node)}, ${word || "up"}, ${counted(count, "rank")}${node.roles.length ? `, ${node.roles.join(", ")}` : ""}` });
  }

  drawRank(rank) {
    let drawn = this.ranks[rank.rank];
    if (!drawn) {
      const sign = h("span", { class: "sign", "aria-hidden": "true" });
      const element = h("span", { role: "button", tabindex: "-1", class: "rank", draggable: "true", "data-rank": rank.rank }, h("span", { class: "number" }, String(rank.rank)), sign);
      drawn = { element, sign, node: undefined };
      this.ranks[rank.rank] = drawn;
    }
    const node = isGone(rank) ? null : rank.node;
    if (drawn.node !== node) this.place(drawn, rank.rank, node);
    const { sign } = DOING[rank.doing];
    say(drawn.sign, rank.unprotected || rank.overdue ? `${sign}!` : sign);
    const runs = RUNNING.includes(rank.doing) ? " runs" : "";
    drawn.element.className = `rank ${rank.doing}${runs}${rank.unprotected ? " unprotected" : ""}`;
    drawn.element.setAttribute("aria-label", this.describe(rank));
    drawn.element.removeAttribute("title");
  }

  place(drawn, rank, node) {
    this.touched ??= new Set();
    if (drawn.node !== undefined && drawn.node !== null) this.touched.add(drawn.node);
    drawn.node = node;
    if (node === null) return drawn.element.remove();
    this.touched.add(node);
    const { ranks } = this.nodeAt(node);
    const all = ranks.children;
    let low = 0;
    let high = all.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (Number(all[middle].dataset.rank) < rank) low = middle + 1;
      else high = middle;
    }
    const focused = document.activeElement === drawn.element;
    ranks.insertBefore(drawn.element, all[low] ?? null);
    if (focused) drawn.element.focus();
  }

  drawFilters() {
    const counts = this.state.counts();
    for (const [doing, { short }] of Object.entries(DOING)) {
      const count = counts[doing] ?? 0;
      let chip = this.chips.get(doing);
      if (!chip) {
        if (!count) continue;
        const text = h("span", {});
        const sign = h("span", { class: "sign", "aria-hidden": "true" }, DOING[doing].sign);
        const element = h("button", { type: "button", class: `filter ${doing}`, "aria-pressed": "false", onclick: () => this.showOnly(doing) }, sign, text);
        chip = { element, text };
        this.chips.set(doing, chip);
        const order = Object.keys(DOING);
        const behind = order.slice(order.indexOf(doing) + 1).find((other) => this.chips.has(other));
        this.filters.insertBefore(element, behind ? this.chips.get(behind).element : null);
      }
      say(chip.text, `${number(count)} ${short}`);
      chip.element.hidden = count === 0 && this.only !== doing;
    }
  }

  /** Others are dimmed. */
  showOnly(doing) {
    this.only = this.only === doing ? null : doing;
    for (const [name, { element }] of this.chips) element.setAttribute("aria-pressed", String(name === this.only));
    this.grid.dataset.only = this.only ?? "";
    this.drawFilters();
  }

  /** Marks what is chosen. */
  mark(kind, number) {
    this.marked?.removeAttribute("aria-current");
    this.marked = kind === "rank" ? this.ranks[number]?.element : kind === "node" ? this.nodes[number]?.head : null;
    this.marked?.setAttribute("aria-current", "true");
    this.drawCopies();
  }

  /** Marks the nodes that have images of the rank that is chosen. */
  drawCopies() {
    for (const { node } of this.state.nodes) this.nodes[node]?.element.classList.toggle("copy", this.state.hasCopy(node));
  }

  focus(kind, number) {
    const element = kind === "rank" ? this.ranks[number]?.element : this.nodes[number]?.head;
    element?.focus();
  }
}
