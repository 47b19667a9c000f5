// Elements made by calls: text is always set as text, so nothing that a gallery holds is ever read as markup.

export const $ = (selector, root = document) => root.querySelector(selector);

/** An element with properties, attributes (aria-*, data-*, role), listeners (onclick) and children that are not null. */
export function h(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name in element && !name.includes("-")) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

const SVG = "http://www.w3.org/2000/svg";

/** A drawing of 24 x 24 from icons.svg; hidden from screen readers, which read the text beside it. */
export function icon(name) {
  const drawing = document.createElementNS(SVG, "svg");
  drawing.setAttribute("class", "icon");
  drawing.setAttribute("aria-hidden", "true");
  const use = document.createElementNS(SVG, "use");
  use.setAttribute("href", `static/icons.svg#${name}`);
  drawing.append(use);
  return drawing;
}

export const count = (n) => n.toLocaleString("en");
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

/** Say something to screen readers without moving the focus. */
export function announce(text) {
  $("#announcer").textContent = text;
}

/** Calls made in quick succession become one, made when they have paused. */
export function settled(milliseconds, call) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => call(...values), milliseconds);
  };
}
