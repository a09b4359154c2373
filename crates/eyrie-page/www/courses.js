// Recoveries by phase and moves by round, as they happen: a line and a bar for each, newest first.

import { h, say, svg } from "./dom.js";
import { bytes, time } from "./units.js";

const SHOWN = 30;
const PHASES = ["detected", "placed", "fetched", "restored", "replayed"];

/** The list of recoveries or moves. */
class Courses {
  constructor(state, part, title, none, more = null) {
    this.state = state;
    this.part = part;
    this.lines = new Map();
    this.list = h("ol", { class: "courses", "aria-label": title, tabindex: "0" });
    this.none = h("p", { class: "quiet" }, none);
    this.element = h("section", { class: part, "aria-labelledby": `${part}-title` }, h("h2", { id: `${part}-title` }, title), more, this.none, this.list);
  }

  update(news) {
    if (news.whole) {
      this.lines.clear();
      this.list.replaceChildren();
    }
    const all = [...this.state[this.part].values()].slice(-SHOWN);
    const changed = new Set((news[this.part] ?? []).map((one) => one.number));
    if (changed.size || news.whole) {
      this.measure(all);
      for (const one of all) this.draw(one, changed.has(one.number));
      for (const [number, line] of this.lines) {
        if (this.list.childElementCount <= SHOWN) break;
        line.element.remove();
        this.lines.delete(number);
      }
    }
    this.none.hidden = all.length > 0;
  }

  /** Draws those that go on: time has passed. */
  tick() {
    const all = [...this.state[this.part].values()].slice(-SHOWN);
    const going = all.filter((one) => one.ended === null);
    if (!going.length) return;
    this.measure(all);
    for (const one of going) this.draw(one, true);
  }

  /** How long the longest bar is: called before some are drawn. */
  measure() {}

  draw(one, changed) {
    let line = this.lines.get(one.number);
    if (!line) {
      const text = h("span", { class: "text" });
      const bar = svg("svg", { class: "bar", "aria-hidden": "true", preserveAspectRatio: "none" });
      line = { element: h("li", {}, text, bar), text, bar };
      this.lines.set(one.number, line);
      this.list.prepend(line.element);
    } else if (!changed) {
      return;
    }
    this.fill(line, one);
  }
}

export class Recoveries extends Courses {
  constructor(state) {
    const legend = h("ul", { class: "legend", "aria-label": "Phases" }, PHASES.map((phase) => h("li", {}, h("span", { class: `swatch ${phase}` }), phase)));
    super(state, "recoveries", "Recoveries", "No rank has failed.", legend);
  }

  /** Seconds of each phase, as far as it has come. */
  phases(one) {
    if (one.phases) return PHASES.map((phase) => [phase, one.phases[phase]]);
    const now = one.ended ?? this.state.now();
    const placed = one.placed ?? now;
    const restored = one.restored ?? now;
    return [
      ["placed", placed - one.failed],
      ["restored", one.placed === null ? 0 : restored - placed],
      ["replayed", one.restored === null ? 0 : now - restored],
    ];
  }

  /** All bars have one scale. */
  measure(all) {
    const totals = all.map((one) => this.phases(one).reduce((sum, [, seconds]) => sum + Math.max(0, seconds), 0));
    const longest = Math.max(...totals, 0.001);
    if (longest === this.longest) return;
    this.longest = longest;
    for (const one of all) if (this.lines.has(one.number)) this.draw(one, true);
  }

  fill({ element, text, bar }, one) {
    const phases = this.phases(one).map(([phase, seconds]) => [phase, Math.max(0, seconds)]);
    const total = phases.reduce((sum, [, seconds]) => sum + seconds, 0);
    element.className = one.phase;
    const where = one.node === null || one.node === one.from ? this.state.nodeName(one.node ?? one.from) : `${this.state.nodeName(one.from)} → ${this.state.nodeName(one.node)}`;
    const doing = { placing: "a node is chosen", restoring: "its image is restored", replaying: "is executed again", recovered: `recovered in ${time(one.total ?? total)}`, interrupted: "was interrupted" }[one.phase];
    const from = one.phase === "placing" ? "" : one.image === null ? ", from the start" : `, from image ${one.image}`;
    const messages = one.messages === null ? "" : `, ${one.messages} messages again`;
    say(text, `rank ${one.rank}, ${where}: ${doing}${from}${messages} (${one.cause})`);
    element.title = phases.map(([phase, seconds]) => `${phase} ${time(seconds)}`).join(", ");
    let at = 0;
    const scale = 1000 / this.longest;
    bar.setAttribute("viewBox", "0 0 1000 10");
    bar.replaceChildren(
      ...phases.map(([phase, seconds]) => {
        const part = svg("rect", { class: phase, x: at, y: 0, width: Math.max(seconds * scale, seconds > 0 ? 2 : 0), height: 10 });
        at += seconds * scale;
        return part;
      }),
    );
  }
}

export class Moves extends Courses {
  constructor(state) {
    super(state, "moves", "Moves", "No rank has moved.");
  }

  fill({ element, text, bar }, one) {
    const to = one.to === null ? "another node" : this.state.nodeName(one.to);
    element.className = one.ended === null ? "going" : one.pause === null ? "interrupted" : "moved";
    const rounds = one.rounds.length;
    const last = one.rounds[rounds - 1];
    const course = last ? `, round ${rounds}: ${bytes(last.bytes)} in ${time(last.took)}` : "";
    const slowed = one.slowed && one.ended === null ? `, slowed by ${one.slowed} %` : "";
    const end = one.ended === null ? "moves" : one.pause === null ? "stays" : `has moved, stood still ${time(one.pause)}`;
    say(text, `rank ${one.rank}, ${this.state.nodeName(one.from)} → ${to}: ${end}${course}${slowed}`);
    const most = Math.max(1, ...one.rounds.map((round) => round.bytes));
    const width = 1000 / Math.max(12, rounds);
    bar.setAttribute("viewBox", "0 0 1000 10");
    bar.replaceChildren(
      ...one.rounds.map((round, at) => {
        const height = Math.max(1, (10 * round.bytes) / most);
        return svg("rect", { class: "round", x: at * width, y: 10 - height, width: width * 0.8, height });
      }),
    );
    element.title = one.rounds.map((round, at) => `round ${at + 1}: ${bytes(round.bytes)} in ${time(round.took)}`).join("\n");
  }
}
