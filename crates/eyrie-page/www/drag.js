// Ranks that are dragged to a node: the same on the list of nodes and on the picture of the network.

const DRAGGED = "application/x-eyrie-rank";

/** Lets ranks (`.rank`) in `place` be dragged, as long as `mayAct()`. */
export function giveRanks(place, mayAct) {
  place.addEventListener("dragstart", (event) => {
    const rank = event.target.closest?.(".rank");
    if (!rank || !mayAct()) return event.preventDefault();
    event.dataTransfer.setData(DRAGGED, rank.dataset.rank);
    event.dataTransfer.effectAllowed = "move";
  });
}

/** Lets ranks be dropped on what `selector` finds in `place` and has the number of a node. */
export function takeRanks(place, selector, drop) {
  let target = null;
  const aim = (at) => {
    target?.classList.remove("target");
    target = at;
    target?.classList.add("target");
  };
  document.addEventListener("dragend", () => aim(null));
  place.addEventListener("dragleave", (event) => {
    if (!place.contains(event.relatedTarget)) aim(null);
  });
  place.addEventListener("dragover", (event) => {
    const node = event.target.closest(selector);
    if (!node || !event.dataTransfer.types.includes(DRAGGED)) return;
    event.preventDefault();
    if (target !== node) aim(node);
  });
  place.addEventListener("drop", (event) => {
    const node = event.target.closest(selector);
    const rank = event.dataTransfer.getData(DRAGGED);
    aim(null);
    if (!node || rank === "") return;
    event.preventDefault();
    drop(Number(rank), Number(node.dataset.node));
  });
}
