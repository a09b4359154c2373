// Words for nodes, which several parts of the page have.

/** How a node is, in a word. */
export function nodeInWords(node, hasRanks) {
  if (node.state === "lost") return { word: "lost", kind: "bad" };
  if (node.state === "left") return { word: "gone", kind: "done" };
  if (node.state === "expected") return { word: "expected", kind: "warn" };
  const { state } = node.health;
  const health = state === "ok" ? null : state;
  if (node.drained) {
    const word = hasRanks ? "being drained" : "drained";
    return { word: health ? `${health}, ${word}` : word, kind: state === "failing" ? "bad" : "warn" };
  }
  if (health) return { word: health, kind: state === "failing" ? "bad" : "warn" };
  if (node.notice) return { word: "to be taken away", kind: "warn" };
  return hasRanks ? { word: "", kind: "" } : { word: "spare", kind: "" };
}

/** The ranks of a node as they fit on it: one, or the first and the last, or how many. */
export function ranksInWords(ranks) {
  if (!ranks.length) return "";
  if (ranks.length === 1) return String(ranks[0]);
  const [first, last] = [ranks[0], ranks[ranks.length - 1]];
  return last - first + 1 === ranks.length ? `${first}–${last}` : `${ranks.length}×`;
}

/** The roles of a node as they fit below it: r0 s1 for router 0 and store 1. */
export function rolesInShort(roles) {
  return roles.map((role) => role.replace(/^(\w)\w* ?/, "$1")).join(" ");
}
