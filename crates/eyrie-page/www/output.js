// The last lines that ranks have printed. It stays at the end, unless the user has scrolled back.

import { h, oncePerFrame } from "./dom.js";

export class Output {
  constructor(state) {
    this.state = state;
    this.lines = new Map();
    this.none = h("p", { class: "quiet" }, "Nothing was printed.");
    this.list = h("ol", { class: "printed", tabindex: "0", "aria-label": "What ranks have printed last" });
    this.element = h("section", { class: "output", "aria-labelledby": "output-title", hidden: true }, h("h2", { id: "output-title" }, "Output"), this.none, this.list);
    this.drawNext = oncePerFrame(() => this.draw());
  }

  update(news) {
    // In a file of events it is not.
    this.element.hidden = !this.state.head?.has_figures && !this.state.output.size;
    if (news.output || news.whole) this.drawNext();
  }

  draw() {
    const { list } = this;
    const isAtEnd = list.scrollTop + list.clientHeight >= list.scrollHeight - 4;
    const { output } = this.state;
    for (const [number, element] of this.lines) {
      if (output.has(number)) continue;
      element.remove();
      this.lines.delete(number);
    }
    for (const { number, stream, text } of output.values()) {
      let line = this.lines.get(number);
      if (!line) {
        line = h("li", { class: stream });
        this.lines.set(number, line);
        list.append(line);
      }
      if (line.textContent !== text) line.textContent = text;
    }
    this.none.hidden = output.size > 0;
    list.hidden = output.size === 0;
    if (isAtEnd) list.scrollTop = list.scrollHeight;
  }
}
