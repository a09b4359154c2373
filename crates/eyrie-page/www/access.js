// Who may act: the token comes behind the # of the address, which no browser sends to a server. It
// is kept for this tab only, and goes to our own server only, in a header.

import { choose } from "./dialog.js";
import { h } from "./dom.js";

const KEY = "eyrie-token";
export const access = { act: false, possible: true };
let changed = () => {};

/** The token out of the address, if it has one. */
function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given === null) return;
  sessionStorage.setItem(KEY, given);
  history.replaceState(null, "", location.pathname + location.search);
}

export function headers() {
  const token = sessionStorage.getItem(KEY);
  return token ? { Authorization: `Bearer ${token}` } : {};
}

/** Finds out whether we may act, and says so at the top. `then` is called when that changes. */
export async function begin(then) {
  changed = then;
  takeToken();
  // The address with the token, opened in this same tab.
  window.addEventListener("hashchange", () => {
    takeToken();
    look();
  });
  await look();
}

async function look() {
  try {
    const answer = await fetch("/api/access", { headers: headers() });
    Object.assign(access, await answer.json());
  } catch {
    access.act = false;
  }
  show();
  changed();
}

function show() {
  const place = document.getElementById("access");
  if (access.act) {
    place.replaceChildren(h("button", { type: "button", class: "chip can", onclick: leave, title: "Forget the token in this tab" }, "Can act"));
  } else if (access.possible) {
    place.replaceChildren(h("button", { type: "button", class: "chip", onclick: ask }, "Read-only"));
  } else {
    place.replaceChildren(h("span", { class: "chip" }, "From a file"));
  }
}

async function ask() {
  const given = await choose({
    title: "Act on jobs",
    will: [
      "This page is read-only until it has the token.",
      "eyrie serve has printed an address that ends in #token=…: open that, or paste the token here.",
    ],
    fields: [{ name: "token", label: "Token", type: "password" }],
    button: "Use it",
  });
  if (!given?.token) return;
  sessionStorage.setItem(KEY, given.token.trim().replace(/^.*token=/, ""));
  await look();
  if (!access.act) ask();
}

function leave() {
  sessionStorage.removeItem(KEY);
  look();
}
