// What is known of a job: news are put together here. It draws nothing.

/** Lines of output that are kept. */
const LINES = 300;

export class State {
  constructor() {
    // What the user looks at: `{ kind, number }`.
    this.chosen = null;
    this.reset();
  }

  reset() {
    this.head = null;
    this.figures = null;
    this.summary = null;
    this.network = null;
    this.traffic = null;
    this.output = new Map();
    this.nodes = [];
    this.ranks = [];
    this.recoveries = new Map();
    this.moves = new Map();
    this.time = 0;
    this.heard = performance.now();
  }

  /** Takes news as the server sends them. */
  apply(news) {
    if (news.whole) this.reset();
    this.time = news.time;
    this.heard = performance.now();
    for (const part of ["head", "figures", "summary", "network", "traffic"]) if (news[part]) this[part] = news[part];
    for (const node of news.nodes ?? []) this.nodes[node.node] = node;
    for (const rank of news.ranks ?? []) this.ranks[rank.rank] = rank;
    for (const line of news.output ?? []) this.output.set(line.number, line);
    for (const number of this.output.keys()) {
      if (this.output.size <= LINES) break;
      this.output.delete(number);
    }
    for (const part of ["recoveries", "moves"]) {
      for (const one of news[part] ?? []) this[part].set(one.number, one);
      for (const number of this[part].keys()) {
        if (this[part].size <= 400) break;
        this[part].delete(number);
      }
    }
  }

  /** Whether the job is known to have ended, or nothing more is heard of it. */
  get isOver() {
    return this.head?.state.is === "ended" || this.head?.news.is === "over";
  }

  /** The job's time now, in seconds: it goes on between two news, but not that of a file. */
  now() {
    if (this.isOver || this.head?.news.is !== "come" || !this.head.has_figures) return this.time;
    return this.time + (performance.now() - this.heard) / 1000;
  }

  /** How many ranks do what. */
  counts() {
    const counts = {};
    for (const rank of this.ranks) counts[rank.doing] = (counts[rank.doing] ?? 0) + 1;
    return counts;
  }

  /** A node's name: its number, and its host where it has one. */
  nodeName(number) {
    if (number === null || number === undefined) return "no node";
    const host = this.nodes[number]?.host;
    return host ? `node ${number} (${host})` : `node ${number}`;
  }

  ranksOn(node) {
    return this.ranks.filter((rank) => rank.node === node && !isGone(rank));
  }

  isThere(rank) {
    return rank.node !== null && !isGone(rank);
  }

  /** The node that a store runs on; undefined: none. */
  nodeOfStore(store) {
    return this.nodes.find((node) => node?.roles.includes(`store ${store}`))?.node;
  }

  /** Whether a node has an image of the rank that is chosen. */
  hasCopy(node) {
    if (this.chosen?.kind !== "rank") return false;
    const stores = this.ranks[this.chosen.number]?.image?.stores ?? [];
    return stores.some((store) => this.nodes[node].roles.includes(`store ${store}`));
  }
}

/** Whether a rank is on no node of this job any more. */
export function isGone(rank) {
  return rank.doing === "elsewhere";
}

/** What ranks do that run: their programs go on. */
export const RUNNING = ["computes", "waits", "imaged"];

/** What ranks do: a word, and the sign by which a small square says it without colour. */
export const DOING = {
  pending: { word: "is to be started", short: "to be started", sign: "…" },
  starts: { word: "is being started", short: "starting", sign: "▸" },
  computes: { word: "computes", short: "computing", sign: "" },
  waits: { word: "waits for messages", short: "waiting", sign: "⋯" },
  imaged: { word: "is being imaged", short: "being imaged", sign: "◉" },
  moves: { word: "moves to another node", short: "moving", sign: "→" },
  lost: { word: "has failed", short: "failed", sign: "✕" },
  restored: { word: "is being restored", short: "being restored", sign: "↓" },
  replays: { word: "is executed again", short: "replaying", sign: "↻" },
  finished: { word: "has finished", short: "finished", sign: "✓" },
  elsewhere: { word: "is in another domain", short: "elsewhere", sign: "↗" },
};
