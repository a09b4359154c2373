// The network of the job: its nodes and switches, how nodes are, and what links carry. All of it is
// in the list of nodes and in tables as well: this picture is for the eye.

import { takeRanks } from "./drag.js";
import { h, say, set, svg } from "./dom.js";
import { scale } from "./heat.js";
import { nodeInWords, ranksInWords, rolesInShort } from "./nodes.js";
import { bytes, counted } from "./units.js";

/** Pixels between two neighbours, and half the side of a node. */
const PITCH = 44;
const HALF = 14;
/** A small network is drawn larger, up to so many times, as far as it then has this width. */
const LARGEST = 2;
const WIDTH = 600;
/** With more vertices than this nodes have no text. */
const WITH_TEXT = 200;
/** How far a link is drawn that leads to another place than a neighbour's. */
const STUB = 0.46;
const HEAVIEST = 5;

export class NetworkMap {
  /** `hands`: `node(number)` is called when one is chosen, `drop(rank, node)` when a rank is. */
  constructor(state, hands) {
    this.state = state;
    this.hands = hands;
    this.title = h("h2", { id: "network-title" }, "Network");
    this.name = h("code", { class: "quiet" });
    this.drawing = svg("svg", { class: "network", role: "img" });
    this.note = h("p", { class: "quiet" });
    this.heaviest = h("ol", { class: "heaviest", "aria-label": "Links that carry most" });
    this.element = h("section", { class: "net", "aria-labelledby": "network-title", hidden: true }, h("div", { class: "head" }, this.title, this.name), this.drawing, this.note, this.heaviest);
    this.drawing.addEventListener("click", (event) => {
      const node = event.target.closest(".vertex[data-node]");
      if (node) hands.node(Number(node.dataset.node));
    });
    takeRanks(this.drawing, ".vertex[data-node]", hands.drop);
    this.vertices = [];
    this.ways = [];
  }

  update(news) {
    const { network } = this.state;
    if (news.whole && !network) this.element.hidden = true;
    if (!network) return;
    if (news.network) this.lay(network);
    if (news.network || news.nodes || news.ranks || news.whole) this.drawNodes();
    if (news.network || news.traffic || news.whole) this.drawLoads();
  }

  /** Draws all of a network. */
  lay(network) {
    this.element.hidden = false;
    say(this.name, network.network);
    const isDrawn = network.vertices.length > 0;
    this.drawing.toggleAttribute("hidden", !isDrawn);
    // Roles stand below the last row.
    const [width, height] = [network.width * PITCH, network.height * PITCH + 8];
    const zoom = Math.min(LARGEST, Math.max(1, WIDTH / width));
    set(this.drawing, { viewBox: `0 0 ${width} ${height}`, width: width * zoom, height: height * zoom });
    this.drawing.classList.toggle("dense", network.vertices.length > WITH_TEXT);
    this.ways = ways(network.links);
    const links = this.ways.map((way) => {
      way.path = svg("path", { class: "link", d: route(network, way.from, way.to) });
      way.title = svg("title", {});
      way.path.append(way.title);
      return way.path;
    });
    this.vertices = network.vertices.map((vertex) => this.vertex(vertex));
    this.drawing.replaceChildren(...links, ...this.vertices.map(({ element }) => element));
  }

  vertex(vertex) {
    const [x, y] = middle(vertex);
    const title = svg("title", {});
    if (vertex.is_switch) {
      say(title, vertex.name);
      return { element: svg("g", { class: "vertex switch" }, svg("circle", { cx: x, cy: y, r: HALF * 0.6 }), title) };
    }
    const text = svg("text", { x, y: y + 4 });
    const sign = svg("text", { class: "sign", x: x + HALF - 1, y: y - HALF + 5 });
    const box = svg("rect", { x: x - HALF, y: y - HALF, width: 2 * HALF, height: 2 * HALF, rx: 4 });
    const roles = svg("text", { class: "roles", x, y: y + HALF + 10 });
    const element = svg("g", { class: "vertex", "data-node": vertex.node }, box, text, sign, roles, title);
    return { element, text, sign, roles, title, node: vertex.node, name: vertex.name };
  }

  drawNodes() {
    const ranks = new Map();
    for (const rank of this.state.ranks) {
      if (!this.state.isThere(rank)) continue;
      if (!ranks.has(rank.node)) ranks.set(rank.node, []);
      ranks.get(rank.node).push(rank.rank);
    }
    for (const drawn of this.vertices) {
      if (!drawn.text) continue;
      const node = this.state.nodes[drawn.node];
      if (!node) {
        if (drawn.kind !== "vertex none") drawn.element.setAttribute("class", (drawn.kind = "vertex none"));
        say(drawn.title, `${drawn.name}: no node of the job`);
        continue;
      }
      const here = ranks.get(node.node) ?? [];
      const { word } = nodeInWords(node, here.length > 0);
      const health = node.health.state === "ok" ? "" : ` ${node.health.state}`;
      const copies = this.state.hasCopy(node.node) ? " copy" : "";
      const kind = `vertex ${node.state} ${here.length ? "full" : "free"}${node.drained ? " drained" : ""}${health}${copies}`;
      if (drawn.kind !== kind) drawn.element.setAttribute("class", (drawn.kind = kind));
      say(drawn.text, node.state === "lost" ? "✕" : ranksInWords(here));
      say(drawn.sign, health ? "!" : "");
      say(drawn.roles, rolesInShort(node.roles));
      const roles = node.roles.length ? `, ${node.roles.join(", ")}` : "";
      say(drawn.title, `${this.state.nodeName(node.node)} at ${drawn.name}${word ? `, ${word}` : ""}: ${counted(here.length, "rank")}${roles}`);
    }
    const { network } = this.state;
    const used = this.vertices.filter((vertex) => this.state.nodes[vertex.node]).length;
    const label = `${network.network}: ${counted(used, "node")} of the job, ${counted(this.ways.length, "link")}. Nodes and ranks are listed below.`;
    if (this.label !== label) set(this.drawing, { "aria-label": (this.label = label) });
  }

  drawLoads() {
    const { traffic } = this.state;
    const carried = new Map(traffic?.links ?? []);
    const sum = (links) => links.reduce((all, link) => all + (carried.get(link) ?? 0), 0);
    for (const way of this.ways) [way.there, way.back] = [sum(way.forth), sum(way.reverse)];
    const loads = this.ways.map((way) => Math.max(way.there, way.back)).filter((load) => load > 0);
    const most = Math.max(...loads, 0);
    const colour = scale(most, Math.min(...loads, most));
    for (const way of this.ways) {
      const heat = colour(Math.max(way.there, way.back));
      const kind = heat === null ? "link" : `link heat-${heat}`;
      if (way.kind !== kind) way.path.setAttribute("class", (way.kind = kind));
      say(way.title, `${this.nameOf(way.from)} → ${this.nameOf(way.to)}: ${bytes(way.there)} a second, back ${bytes(way.back)}`);
    }
    this.drawHeaviest(most);
  }

  drawHeaviest(most) {
    const { network } = this.state;
    if (!network.vertices.length) {
      say(this.note, `It has ${counted(network.nodes, "node")}: too many to be drawn.`);
      return;
    }
    const directed = this.ways.flatMap(({ from, to, there, back }) => [
      [from, to, there],
      [to, from, back],
    ]);
    const heaviest = directed.filter(([, , load]) => load > 0).sort((a, b) => b[2] - a[2]).slice(0, HEAVIEST);
    say(this.note, most ? "Links that carry most:" : "Nothing goes over the links.");
    this.heaviest.replaceChildren(...heaviest.map(([from, to, load]) => h("li", {}, `${this.nameOf(from)} → ${this.nameOf(to)}: ${bytes(load)} a second`)));
  }

  nameOf(vertex) {
    const { name, node } = this.state.network.vertices[vertex];
    return node === null ? name : `node ${node}`;
  }

  /** Marks the nodes that have images of the rank that is chosen. */
  marked() {
    if (this.state.network) this.drawNodes();
  }
}

/** Links between the same two vertices, in both directions, as one. */
function ways(links) {
  const all = new Map();
  for (const [link, from, to] of links) {
    const key = from < to ? `${from} ${to}` : `${to} ${from}`;
    const way = all.get(key) ?? { from: Math.min(from, to), to: Math.max(from, to), forth: [], reverse: [] };
    (from === way.from ? way.forth : way.reverse).push(link);
    all.set(key, way);
  }
  return [...all.values()];
}

function middle(vertex) {
  return [(vertex.x + 0.5) * PITCH, (vertex.y + 0.5) * PITCH];
}

/** The line of a link. One that leads out of a grid's plane, or round it, is begun at both ends. */
function route(network, from, to) {
  const [a, b] = [network.vertices[from], network.vertices[to]];
  const [[x, y], [u, v]] = [middle(a), middle(b)];
  const [dx, dy] = [b.x - a.x, b.y - a.y];
  if (!network.plane || Math.abs(dx) + Math.abs(dy) <= 1.01) return `M${x} ${y}L${u} ${v}`;
  const [wide, high] = network.plane;
  const round = (along, across, extent) => across === 0 && Math.abs(along) === extent - 1;
  let step = [0.7 * STUB, -0.7 * STUB];
  if (round(dx, dy, wide)) step = [-Math.sign(dx) * STUB, 0];
  else if (round(dy, dx, high)) step = [0, -Math.sign(dy) * STUB];
  const [p, q] = step.map((part) => part * PITCH);
  return `M${x} ${y}l${p} ${q}M${u} ${v}l${-p} ${-q}`;
}
