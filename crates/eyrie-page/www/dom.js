// Makes and changes elements. Text is always set as text: nothing of a job is ever taken as HTML.

/** An element with attributes, listeners (`onclick`) and children (elements or text). */
export function h(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  set(element, attributes);
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

/** The same for SVG. */
export function svg(name, attributes = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", name);
  set(element, attributes);
  element.append(...children);
  return element;
}

/** Sets attributes; null removes one, a function is a listener. */
export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") {
      element.addEventListener(name.replace(/^on/, ""), value);
    } else if (value === null || value === undefined || value === false) {
      element.removeAttribute(name);
    } else {
      element.setAttribute(name, value === true ? "" : value);
    }
  }
}

/** Sets the text of an element, if it is another one. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Calls `work` once before the next picture is drawn, however often it is asked to. */
export function oncePerFrame(work) {
  let asked = false;
  return () => {
    if (asked) return;
    asked = true;
    requestAnimationFrame(() => {
      asked = false;
      work();
    });
  };
}
