// The health of nodes: those that are not well, what rules find there, and what was done.

import { h } from "./dom.js";
import { clock } from "./units.js";

export class Health {
  constructor(state) {
    this.state = state;
    this.list = h("ul", { class: "unwell", tabindex: "0", "aria-label": "Nodes that are not well, or were not" });
    this.well = h("p", { class: "quiet" }, "All nodes are well.");
    this.element = h("section", { class: "health", "aria-labelledby": "health-title" }, h("h2", { id: "health-title" }, "Health of nodes"), this.well, this.list);
  }

  update(news) {
    if (!news.nodes && !news.whole) return;
    const some = this.state.nodes.filter(({ health }) => health.state !== "ok" || health.findings.length || health.done.length);
    const text = JSON.stringify(some.map((node) => [node.node, node.host, node.health]));
    if (text === this.drawn) return;
    this.drawn = text;
    this.well.hidden = some.length > 0;
    this.list.hidden = !some.length;
    this.list.replaceChildren(...some.map((node) => this.node(node)));
  }

  node({ node, health }) {
    const kind = { ok: "good", suspect: "warn", failing: "bad" }[health.state];
    const since = health.state === "ok" ? "" : ` since ${clock(health.since)}`;
    return h(
      "li",
      {},
      h("p", {}, h("strong", {}, this.state.nodeName(node)), " ", h("span", { class: `chip ${kind}` }, `${health.state}${since}`)),
      health.findings.map((found) => h("p", { class: "finding" }, `${found.rule}${found.what ? `, ${found.what}` : ""}: ${found.state} since ${clock(found.since)}${found.muted ? ", muted" : ""}: ${found.said}`)),
      health.done.map((done) => h("p", { class: "quiet" }, `${clock(done.at)} ${done.what}`)),
    );
  }
}
