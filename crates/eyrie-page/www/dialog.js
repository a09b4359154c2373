// Asks the user, and shows lines about what was asked for.

import { h } from "./dom.js";

/** Asks the user. `will`: sentences on what will happen. Resolves with the fields, or null. */
export async function choose({ title, will, command, fields = [], button, danger = false, extra = null }) {
  const dialog = document.getElementById("dialog");
  // One question after another.
  while (dialog.open) await closed(dialog);
  const inputs = fields.map((field) => fieldOf(field));
  const form = h(
    "form",
    { method: "dialog" },
    h("h2", { id: "dialog-title" }, title),
    will.map((text) => h("p", {}, text)),
    extra,
    inputs.map(({ label, input }) => h("label", {}, label, input)),
    command ? h("p", { class: "as-command" }, "The same on a terminal: ", h("code", {}, command)) : null,
    h(
      "div",
      { class: "buttons" },
      h("button", { type: "submit", value: "no", formnovalidate: true }, button ? "Cancel" : "Close"),
      button ? h("button", { type: "submit", value: "yes", class: danger ? "danger" : "primary" }, button) : null,
    ),
  );
  dialog.replaceChildren(form);
  dialog.returnValue = "no";
  dialog.showModal();
  // Enter in a field means yes; a dialog that endangers something begins at Cancel.
  const first = inputs[0]?.input ?? form.querySelector(danger ? "button[value=no]" : "button:last-child");
  first?.focus();
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !(event.target instanceof HTMLInputElement)) return;
    event.preventDefault();
    dialog.close("yes");
  });
  await closed(dialog);
  if (dialog.returnValue !== "yes") return null;
  return Object.fromEntries(inputs.map(({ name, input }) => [name, input.value]));
}

function closed(dialog) {
  return new Promise((resolve) => dialog.addEventListener("close", resolve, { once: true }));
}

function fieldOf({ name, label, type = "text", options, value }) {
  if (!options) return { name, label, input: h("input", { type, name, autocomplete: "off", value }) };
  const all = options.map(([key, text]) => h("option", { value: key, selected: key === value }, text));
  return { name, label, input: h("select", { name }, all) };
}

/** Shows a line for some seconds, or until `close` of what it returns is called. */
export function toast(text, kind = "") {
  const line = h("div", { class: `toast ${kind}`, role: kind === "bad" ? "alert" : null }, h("span", {}, text));
  const close = () => line.remove();
  line.append(h("button", { type: "button", "aria-label": "Close", onclick: close }, "×"));
  document.getElementById("toasts").append(line);
  if (kind !== "waits") setTimeout(close, kind === "bad" ? 30_000 : 6_000);
  return { close };
}
