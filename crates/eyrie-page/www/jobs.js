// The list of all jobs.

import { h } from "./dom.js";
import { listen } from "./live.js";
import { clock, counted, time } from "./units.js";
import { access } from "./access.js";

export function stateInWords(head) {
  const state = head.state;
  if (state.is === "ended") {
    if (state.saved) return { word: "saved", kind: "done" };
    return state.code === 0 ? { word: "ended", kind: "done" } : { word: `ended with code ${state.code}`, kind: "bad" };
  }
  if (head.news.is === "over") return { word: "gone", kind: "bad" };
  if (head.news.is === "missing") return { word: "no news", kind: "warn" };
  if (head.cut_off) return { word: "cut off", kind: "warn" };
  return { word: { starting: "starting", running: "running", saving: "being saved" }[state.is], kind: state.is === "running" ? "good" : "warn" };
}

export function show(main) {
  document.title = "Jobs · Eyrie";
  document.getElementById("title").replaceChildren(h("h1", {}, "Jobs"));
  const list = h("div", { class: "jobs", "aria-busy": "true" }, h("p", { class: "quiet" }, "Looking for jobs…"));
  const banner = h("div", { class: "banners" });
  main.replaceChildren(banner, list);
  listen(
    "/api/live",
    "jobs",
    (jobs) => {
      list.removeAttribute("aria-busy");
      const focused = document.activeElement?.getAttribute("href");
      list.replaceChildren(...(jobs.length ? jobs.map(card) : [none()]));
      if (focused && list.contains(document.querySelector(`.jobs a[href="${CSS.escape(focused)}"]`))) {
        list.querySelector(`a[href="${CSS.escape(focused)}"]`).focus();
      }
    },
    (lost) => banner.replaceChildren(...(lost ? [h("p", { class: "banner bad", role: "alert" }, "eyrie serve does not answer. This page goes on by itself when it is back.")] : [])),
  );
}

function none() {
  const text = access.possible ? "No job runs here. Start one:" : "There are no events.";
  return h("div", { class: "empty" }, h("p", {}, text), access.possible ? h("pre", {}, "eyrie run -n 4 --nodes 2 --spares 1 ./solver") : null);
}

function card(job) {
  const { head, summary } = job;
  const { word, kind } = stateInWords(head);
  const facts = [
    ["ranks", String(summary.ranks)],
    ["nodes", String(job.nodes)],
    ["elapsed", clock(job.time)],
    ["failures", String(summary.rank_failures)],
    ["recoveries", summary.recoveries ? `${summary.recoveries}, longest ${time(summary.longest_recovery)}` : "0"],
    ["checkpoints", String(summary.checkpoints)],
  ];
  return h(
    "a",
    { class: "job", href: `/job/${encodeURIComponent(job.name)}`, "aria-label": `Job ${job.name}, ${word}, ${counted(summary.ranks, "rank")}` },
    h("span", { class: "name" }, job.name, h("span", { class: `chip ${kind}` }, word)),
    h("code", { class: "program" }, head.program ?? ""),
    h("dl", {}, facts.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
  );
}
