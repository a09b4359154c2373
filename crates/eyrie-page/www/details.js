// What is known of the rank or node that is chosen, and what can be done to it.

import { h } from "./dom.js";
import { nodeInWords } from "./nodes.js";
import { DOING } from "./state.js";
import { bytes, clock, counted, time } from "./units.js";

export class Details {
  /** `hands`: `close()`, `mayAct()`, `possible()` and `actions`. */
  constructor(state, hands) {
    this.state = state;
    this.hands = hands;
    this.shown = null;
    this.title = h("h2", { id: "details-title", tabindex: "-1" });
    this.facts = h("dl", { class: "facts" });
    this.buttons = h("div", { class: "buttons", role: "group", "aria-label": "Actions" });
    const close = h("button", { type: "button", class: "close", "aria-label": "Close", onclick: () => this.close() }, "×");
    this.element = h("section", { class: "details", "aria-labelledby": "details-title", hidden: true }, h("div", { class: "head" }, this.title, close), this.facts, this.buttons);
    this.element.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close();
    });
  }

  show(kind, number, focus = true) {
    this.shown = { kind, number };
    this.element.hidden = false;
    this.draw();
    this.drawButtons();
    if (focus) this.title.focus({ preventScroll: true });
  }

  close() {
    const { shown } = this;
    this.shown = null;
    this.element.hidden = true;
    this.hands.close(shown);
  }

  /** Draws it anew if the news are about it. */
  update(news) {
    if (!this.shown) return;
    const { kind, number } = this.shown;
    const all = kind === "rank" ? this.state.ranks : this.state.nodes;
    if (!all[number]) return this.close();
    const concerned = kind === "node" || news.whole || news.ranks?.some((rank) => rank.rank === number);
    if (concerned) this.draw();
    if (concerned || news.nodes) this.drawButtons();
  }

  draw() {
    const { kind, number } = this.shown;
    const facts = kind === "rank" ? this.ofRank(this.state.ranks[number]) : this.ofNode(this.state.nodes[number]);
    const name = kind === "rank" ? `Rank ${number}` : this.state.nodeName(number).replace("node", "Node");
    if (this.title.textContent !== name) this.title.textContent = name;
    const text = JSON.stringify(facts);
    if (text === this.drawn) return;
    this.drawn = text;
    this.facts.replaceChildren(...facts.map(([what, value]) => h("div", {}, h("dt", {}, what), h("dd", {}, value))));
  }

  ofRank(rank) {
    const facts = [
      ["Does", DOING[rank.doing].word],
      ["Is on", this.state.nodeName(rank.node)],
      ["Incarnation", String(rank.incarnation)],
      ["Failures", String(rank.failures)],
      ["Image", this.imageInWords(rank.image)],
    ];
    if (rank.image?.stores.length) facts.push(["Kept in", rank.image.stores.map((store) => this.storeInWords(store)).join(", ")]);
    if (rank.sample) facts.push(["Time", sampleInWords(rank.sample)], ["Memory", bytes(rank.sample.memory)]);
    if (rank.unprotected) facts.push(["Protection", "its log is not kept: it cannot be recovered until its next image"]);
    if (rank.overdue) facts.push(["Image overdue", rank.overdue]);
    if (rank.code !== null) facts.push(["Exit code", String(rank.code)]);
    return facts;
  }

  storeInWords(store) {
    const node = this.state.nodeOfStore(store);
    return node === undefined ? `store ${store}` : `store ${store} on ${this.state.nodeName(node)}`;
  }

  imageInWords(image) {
    if (!image) return "none yet: it would start anew";
    const parts = [`number ${image.number}`];
    if (image.bytes !== null) parts.push(bytes(image.bytes));
    if (image.copies !== null) parts.push(`in ${counted(image.copies, "store")}`);
    const age = image.at === null ? null : Math.round(this.state.now() - image.at);
    if (age !== null) parts.push(age > 0 ? `${time(age)} old` : "just taken");
    return parts.join(", ");
  }

  ofNode(node) {
    const ranks = this.state.ranksOn(node.node);
    const { word } = nodeInWords(node, ranks.length > 0);
    const facts = [
      ["Is", word || "up"],
      ["Ranks", ranks.length > 40 ? counted(ranks.length, "rank") : ranks.map((rank) => rank.rank).join(", ") || "none"],
      ["Roles", node.roles.join(", ") || "none of its own"],
    ];
    if (node.journal) facts.push(["Journal", "a whole copy: eyrie resume works there"]);
    if (node.notice) facts.push(["Notice", node.notice]);
    const images = this.imagesOn(node);
    if (images) facts.push(["Images", `of ${counted(images, "rank")}`]);
    const { sample, health } = node;
    if (sample) facts.push(["Processors", sample.busy === null ? "not known" : `${sample.busy} % busy`]);
    if (sample?.memory) facts.push(["Memory", `${bytes(sample.available)} of ${bytes(sample.memory)} available`]);
    facts.push(["Health", health.state === "ok" ? "ok" : `${health.state} since ${clock(health.since)}`]);
    for (const found of health.findings) facts.push([found.rule, `${found.what ? `${found.what}: ` : ""}${found.said}${found.muted ? " (muted)" : ""}`]);
    return facts;
  }

  /** Of how many ranks the newest image is in a store on this node. */
  imagesOn(node) {
    const stores = node.roles.filter((role) => role.startsWith("store ")).map((role) => Number(role.slice(6)));
    return this.state.ranks.filter((rank) => rank.image?.stores.some((store) => stores.includes(store))).length;
  }

  drawButtons() {
    if (!this.shown) return;
    const { kind, number } = this.shown;
    const wanted = this.hands.possible() && !this.state.isOver ? (kind === "rank" ? this.rankActions(number) : this.nodeActions(number)) : [];
    const act = this.hands.mayAct();
    const key = JSON.stringify([act, kind, number, wanted.map(([name]) => name)]);
    if (key === this.drawnButtons) return;
    this.drawnButtons = key;
    this.buttons.replaceChildren(
      ...wanted.map(([name, work, danger]) => h("button", { type: "button", class: danger ? "danger" : null, disabled: !act, onclick: work }, name)),
      ...(wanted.length && !act ? [h("p", { class: "quiet" }, "Read-only: the token lets you act.")] : []),
    );
  }

  rankActions(rank) {
    const { actions } = this.hands;
    if (["finished", "elsewhere"].includes(this.state.ranks[rank].doing)) return [];
    return [
      ["Take an image", () => actions.checkpoint(rank)],
      ["Move…", () => actions.migrate(rank)],
      ["Drop its connections", () => actions.dropConnection(rank), true],
      ["Kill it", () => actions.killRank(rank), true],
    ];
  }

  nodeActions(node) {
    const { actions } = this.hands;
    const { state, drained } = this.state.nodes[node];
    if (state !== "up") return [];
    return [
      drained ? ["Undrain", () => actions.undrain(node)] : ["Drain", () => actions.drain(node), true],
      ["Freeze it", () => actions.freezeNode(node), true],
      ["Kill it", () => actions.killNode(node), true],
    ];
  }
}

function sampleInWords({ waiting, busy }) {
  const parts = [];
  if (waiting !== null) parts.push(`computes ${100 - waiting} %, waits for messages ${waiting} %`);
  if (busy !== null) parts.push(`processor ${busy} % busy`);
  return parts.join("; ") || "not sampled yet";
}
