// The job's events, newest first, with search. What is new is looked at here; what is older is asked
// for. At most a few hundred lines are drawn, however many events there are.

import { h, oncePerFrame, say } from "./dom.js";

const DRAWN = 200;
const PAUSE_MS = 200;
/** Drawing the list takes at most one part of so many of the time. */
const SHARE = 25;

export class Events {
  constructor(job) {
    this.job = job;
    this.entries = [];
    this.next = 0;
    this.waiting = 0;
    this.search = h("input", { type: "search", placeholder: "Search events", "aria-label": "Search events", oninput: () => this.searchSoon() });
    this.important = h("input", { type: "checkbox", onchange: () => this.look() });
    this.held = h("input", { type: "checkbox", onchange: () => this.release() });
    this.state = h("p", { class: "quiet", role: "status" });
    this.list = h("ol", { class: "events", "aria-label": "Events, newest first", tabindex: "0" });
    this.older = h("button", { type: "button", onclick: () => this.lookFurther() }, "Older events");
    this.element = h(
      "section",
      { class: "history", "aria-labelledby": "events-title" },
      h("div", { class: "head" }, h("h2", { id: "events-title" }, "Events"), h("div", { class: "tools" }, this.search, h("label", {}, this.important, "Important only"), h("label", {}, this.held, "Hold"))),
      this.state,
      this.list,
      this.older,
    );
    // A list that is held changes only when the user asks for something.
    this.isAsked = false;
    this.drawNext = oncePerFrame(() => {
      if (!this.held.checked || this.isAsked) this.draw();
      this.isAsked = false;
    });
    this.lines = [];
    this.limit = DRAWN;
  }

  words() {
    return this.search.value.toLowerCase().split(/\s+/).filter(Boolean);
  }

  isWanted(entry, words) {
    if (this.important.checked && !entry.important) return false;
    const text = entry.text.toLowerCase();
    return words.every((word) => text.includes(word) || entry.event.includes(word));
  }

  /** Takes news. */
  update(news) {
    if (news.whole) {
      this.entries = [];
      this.limit = DRAWN;
      this.has_all = false;
    }
    const before = this.next;
    this.next = news.next;
    const words = this.words();
    const wanted = news.events.filter((entry) => this.isWanted(entry, words));
    if (news.whole && news.events.length && (words.length || this.important.checked)) return this.look();
    if (!wanted.length && !news.whole) return;
    // The server sends the newest of very many: what is before them can be asked for.
    const isBehind = news.events.length && news.events[0].seq > before;
    if (isBehind && !news.whole) this.entries = [];
    this.add(wanted);
    if (this.held.checked) {
      this.waiting += wanted.length;
      return say(this.state, `${this.waiting} new events wait.`);
    }
    this.drawSoon();
  }

  /** Draws the list as soon as that takes at most a part of the time: no one reads more. */
  drawSoon() {
    const wait = (this.drawn ?? 0) + SHARE * (this.cost ?? 0) - performance.now();
    if (wait <= 0) return this.drawNext();
    this.later ??= setTimeout(() => {
      this.later = null;
      this.drawNext();
    }, wait);
  }

  /** Puts newer events in front. */
  add(newer) {
    this.entries = [...newer.toReversed(), ...this.entries];
    // What was looked for further back stays.
    const most = Math.max(this.limit, DRAWN);
    if (this.entries.length > most) {
      this.entries.length = most;
      this.has_all = false;
    }
  }

  release() {
    this.waiting = 0;
    say(this.state, "");
    this.drawSoon();
  }

  searchSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.look(), PAUSE_MS);
  }

  async ask(before) {
    const query = new URLSearchParams({ search: this.search.value, important: String(this.important.checked) });
    if (before !== undefined) query.set("before", String(before));
    const answer = await fetch(`/api/jobs/${encodeURIComponent(this.job)}/events?${query}`);
    if (!answer.ok) throw new Error((await answer.json()).error);
    return answer.json();
  }

  /** Looks for what is wanted now among all events that are kept. */
  async look() {
    const asked = (this.asked = (this.asked ?? 0) + 1);
    try {
      const found = await this.ask();
      // The user has typed on meanwhile.
      if (asked !== this.asked) return;
      this.limit = DRAWN;
      this.entries = found.slice(0, DRAWN);
      this.has_all = found.length <= DRAWN;
      const searched = this.words().length || this.important.checked;
      say(this.state, searched && !found.length ? "No event is like that." : "");
      this.isAsked = true;
      this.drawSoon();
    } catch (error) {
      say(this.state, error.message);
    }
  }

  async lookFurther() {
    try {
      const last = this.entries[this.entries.length - 1];
      const found = await this.ask(last?.seq);
      this.entries.push(...found);
      this.limit = this.entries.length;
      this.has_all = found.length === 0;
      this.isAsked = true;
      this.drawSoon();
    } catch (error) {
      say(this.state, error.message);
    }
  }

  draw() {
    const began = performance.now();
    this.drawLines();
    // With what the browser does for it.
    void this.list.offsetHeight;
    this.drawn = performance.now();
    this.cost = this.drawn - began;
  }

  drawLines() {
    while (this.lines.length < this.entries.length) {
      const at = h("span", { class: "at" });
      const kind = h("span", { class: "kind" });
      const text = h("span", { class: "text" });
      const element = h("li", {}, at, kind, text);
      this.lines.push({ element, at, kind, text });
      this.list.append(element);
    }
    while (this.lines.length > this.entries.length) this.lines.pop().element.remove();
    this.entries.forEach((entry, at) => {
      const line = this.lines[at];
      if (line.seq === entry.seq) return;
      line.seq = entry.seq;
      say(line.at, `${entry.time.toFixed(3)} s`);
      say(line.kind, entry.event);
      say(line.text, entry.text);
      line.element.className = entry.important ? "important" : "";
    });
    const oldest = this.entries[this.entries.length - 1];
    this.older.hidden = this.has_all || !oldest || oldest.seq === 0;
  }
}

/** What a screen reader is told of news: important events, few at a time. */
export class Spoken {
  constructor(place) {
    this.place = place;
    this.waiting = [];
    this.timer = null;
  }

  update(news) {
    // What was before the page was opened is no news.
    if (news.whole) return;
    this.waiting.push(...news.events.filter((entry) => entry.important).map((entry) => entry.text));
    if (!this.waiting.length || this.timer) return;
    this.timer = setTimeout(() => {
      this.timer = null;
      const [first, second, ...rest] = this.waiting;
      this.waiting = [];
      const text = [first, second, rest.length ? `and ${rest.length} more events` : null];
      this.place.replaceChildren(...text.filter(Boolean).map((line) => h("p", {}, line)));
    }, 1000);
  }
}

