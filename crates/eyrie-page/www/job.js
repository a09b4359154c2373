// The page of one job: puts its parts together and gives them the news.

import { access } from "./access.js";
import { Actions } from "./actions.js";
import { Moves, Recoveries } from "./courses.js";
import { Details } from "./details.js";
import { h, say, set } from "./dom.js";
import { Events, Spoken } from "./events.js";
import { Figures } from "./figures.js";
import { Health } from "./health.js";
import { stateInWords } from "./jobs.js";
import { listen } from "./live.js";
import { RankMap } from "./map.js";
import { NetworkMap } from "./network.js";
import { Output } from "./output.js";
import { State } from "./state.js";
import { Traffic } from "./traffic.js";
import { counted } from "./units.js";

/** Time between two pictures of what goes on without news, in milliseconds. */
const TICK_MS = 100;

export class JobPage {
  constructor(main, job) {
    this.job = job;
    this.state = new State();
    this.actions = new Actions(job, this.state);
    this.map = new RankMap(this.state, {
      rank: (rank, focus) => this.choose("rank", rank, focus),
      node: (node) => this.choose("node", node),
      drop: (rank, node) => this.drop(rank, node),
      mayAct: () => access.act && !this.state.isOver,
    });
    this.network = new NetworkMap(this.state, {
      node: (node) => this.choose("node", node),
      drop: (rank, node) => this.drop(rank, node),
    });
    this.details = new Details(this.state, {
      close: (shown) => {
        this.mark(null);
        if (shown) this.map.focus(shown.kind, shown.number);
      },
      mayAct: () => access.act,
      possible: () => access.possible,
      actions: this.actions,
    });
    this.figures = new Figures(this.state);
    this.recoveries = new Recoveries(this.state);
    this.moves = new Moves(this.state);
    this.health = new Health(this.state);
    this.traffic = new Traffic(this.state);
    this.output = new Output(this.state);
    this.events = new Events(job);
    this.spoken = new Spoken(document.getElementById("said"));
    this.parts = [this.map, this.network, this.details, this.figures, this.recoveries, this.moves, this.health, this.traffic, this.output, this.events, this.spoken];
    this.lay(main);
    this.follow();
    setInterval(() => this.tick(), TICK_MS);
  }

  lay(main) {
    document.title = `${this.job} · Eyrie`;
    this.chip = h("span", { class: "chip" });
    this.program = h("code", { class: "program" });
    document.getElementById("title").replaceChildren(h("h1", {}, this.job), this.chip, this.program);
    this.banners = h("div", { class: "banners", role: "status", "aria-live": "polite" });
    this.tools = h("div", { class: "buttons job-actions", role: "group", "aria-label": "Actions on the job" });
    const left = h("div", { class: "left" }, this.network.element, this.map.element, this.output.element, this.events.element);
    const right = h("div", { class: "right" }, this.details.element, this.recoveries.element, this.moves.element, this.health.element, this.traffic.element, this.figures.details);
    main.replaceChildren(this.banners, this.figures.element, this.tools, h("div", { class: "columns" }, left, right));
    this.lost = null;
  }

  follow() {
    const address = `/api/jobs/${encodeURIComponent(this.job)}/live`;
    this.source = listen(
      address,
      "news",
      (news) => this.hear(news),
      (lost, refused) => {
        if (lost && refused) return this.refused(address);
        this.lost = lost ? "eyrie serve does not answer. This page goes on by itself when it is back." : null;
        this.drawHead();
      },
    );
  }

  /** The server has answered, but not with news: why not? */
  async refused(address) {
    const answer = await fetch(address.replace(/live$/, "events")).catch(() => null);
    const why = answer && !answer.ok ? (await answer.json()).error : null;
    this.lost = why ?? "eyrie serve does not answer.";
    this.drawHead();
    // It has been started again, perhaps, or the job has.
    if (!this.state.isOver) setTimeout(() => this.follow(), 3000);
  }

  hear(news) {
    this.state.apply(news);
    for (const part of this.parts) part.update(news);
    if (news.head || news.whole || news.ranks || news.figures) this.drawHead();
    if (news.head) this.accessChanged();
    if (this.state.head.news.is === "over") this.source.close();
  }

  tick() {
    if (document.hidden) return;
    this.figures.tick();
    this.recoveries.tick();
    this.moves.tick();
  }

  choose(kind, number, focus = true) {
    this.mark(kind, number);
    this.details.show(kind, number, focus);
  }

  mark(kind, number) {
    this.state.chosen = kind === null ? null : { kind, number };
    this.map.mark(kind, number);
    this.network.marked();
  }

  drop(rank, node) {
    if (this.state.ranks[rank].node === node) return;
    this.actions.migrate(rank, node);
  }

  accessChanged() {
    const { actions } = this;
    const possible = access.possible && this.state.head && !this.state.isOver;
    const all = [
      ["Checkpoint", () => actions.checkpoint()],
      ["Balance", () => actions.balance()],
      ["Stop…", () => actions.stop(), true],
    ];
    const key = JSON.stringify([possible, access.act]);
    if (key !== this.toolsDrawn) {
      this.toolsDrawn = key;
      const button = ([name, work, danger]) => h("button", { type: "button", class: danger ? "danger" : null, disabled: !access.act, onclick: work }, name);
      this.tools.replaceChildren(...(possible ? all.map(button) : []));
    }
    this.details.drawButtons();
  }

  drawHead() {
    const { head } = this.state;
    if (head) {
      const { word, kind } = this.lost ? { word: "no news", kind: "warn" } : stateInWords(head);
      say(this.chip, word);
      set(this.chip, { class: `chip ${kind}` });
      say(this.program, [head.program, head.library, head.domain && `domain ${head.domain}`].filter(Boolean).join(" · "));
    }
    const all = this.warnings();
    const key = JSON.stringify(all);
    if (key === this.warned) return;
    this.warned = key;
    this.banners.replaceChildren(...all.map(([kind, text]) => h("p", { class: `banner ${kind}` }, text)));
  }

  /** What users should know at once. */
  warnings() {
    const { head, figures, ranks } = this.state;
    const all = [];
    if (this.lost) all.push(["bad", this.lost]);
    if (!head) return all;
    const { state, news } = head;
    if (state.is === "ended") {
      if (state.saved) all.push(["done", `The job is saved in ${state.saved}: eyrie run --resume-from ${state.saved} goes on with it.`]);
      else if (state.cause) all.push(["bad", `The job has ended with code ${state.code}: ${state.cause}`]);
      else all.push(["done", `The job has ended with code ${state.code}.`]);
      return all;
    }
    if (news.is === "over" && news.why) all.push(["bad", `Nothing more is heard of the job: ${news.why}. This is the last that was known.`]);
    if (news.is === "missing") all.push(["warn", `No news come: ${news.why}. It is tried again; this is the last that was known.`]);
    if (head.cut_off) all.push(["warn", "No node on another host answers: the controller stands aside until it reaches half of them."]);
    const some = (which) => ranks.filter(which).map((rank) => rank.rank);
    const list = (numbers) => (numbers.length > 8 ? counted(numbers.length, "rank") : `rank${numbers.length === 1 ? "" : "s"} ${numbers.join(", ")}`);
    const unprotected = some((rank) => rank.unprotected);
    if (unprotected.length) all.push(["bad", `The log of ${list(unprotected)} is not kept: a failure ends the job until the next image is stored.`]);
    const overdue = ranks.filter((rank) => rank.overdue);
    if (overdue.length) all.push(["warn", `No new image for too long of ${list(overdue.map((rank) => rank.rank))}: ${overdue[0].overdue}`]);
    for (const { what, cause } of figures?.copies_missing ?? []) all.push(["warn", `Only one copy of ${what}: ${cause}`]);
    return all;
  }
}
