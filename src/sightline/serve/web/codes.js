// Lists such as codes: chips on items, and counts along the dots of 26.1.15 to filter by, one level at a time.

import { countCodes } from "./api.js";
import { count, h, icon } from "./dom.js";
import { isName } from "./where.js";

const MANY = 10; // codes from which a search box is shown
const isBelow = (code, top) => code === top || code.startsWith(`${top}.`);

/** "26.1.15" -> ["26", "26.1", "26.1.15"] */
const beginnings = (code) =>
  code
    .split(".")
    .map((_, depth, parts) => parts.slice(0, depth + 1).join("."))
    .filter(Boolean);

/** The codes chosen by a filter of a field. */
export const chosenCodes = (facets, field) => {
  const found = facets[field]?.has;
  return Array.isArray(found) ? found.filter((code) => typeof code === "string" && code !== "") : [];
};

/** The chosen codes with one more, which takes the place of those above and below it; or without it, if it is one. */
export const toggled = (chosen, code) =>
  chosen.includes(code)
    ? chosen.filter((one) => one !== code)
    : [...chosen.filter((one) => !isBelow(one, code) && !isBelow(code, one)), code];

/** The chosen codes after a click on a code in the counts: one level down, or up again from a chosen one. */
export function stepped(chosen, code) {
  const above = chosen.includes(code) ? beginnings(code).at(-2) : null;
  const rest = toggled(chosen, code);
  return above && !rest.some((one) => isBelow(one, above)) ? [...rest, above] : rest;
}

/** [[field, value]] of all lists of an item. */
export const listed = (item) =>
  Object.entries(item.metadata ?? {}).flatMap(([field, values]) =>
    Array.isArray(values) ? values.map((value) => [field, value]) : [],
  );

/**
 * A button that filters by a code; only its text where no filter can name the field. picks: {chosen(field), toggle(field,
 * code), isShared(field, code)}, shared with the query.
 */
export function chip(field, code, { chosen, toggle, isShared }) {
  if (!isName(field)) return h("span", { className: "chip" }, h("span", {}, code));
  const isOn = chosen(field).includes(code);
  return h(
    "button",
    {
      type: "button",
      className: "chip",
      "aria-pressed": isOn,
      title: `${isOn ? "Do not filter" : "Filter"} by ${field} ${code}`,
      onclick: () => toggle(field, code),
    },
    h("span", {}, code),
    isShared(field, code) &&
      h("span", { className: "tie", title: "The query has it too" }, "✓", h("span", { className: "unseen" }, ": the query has it too")),
  );
}

/** The chosen codes of all fields, each with a cross to take it away. */
export const chosenChips = (facets, toggle) =>
  Object.keys(facets).flatMap((field) =>
    chosenCodes(facets, field).map((code) =>
      h(
        "li",
        {},
        h(
          "button",
          { type: "button", className: "chip", "aria-pressed": true, onclick: () => toggle(field, code) },
          h("span", {}, code),
          icon("close"),
          h("span", { className: "unseen" }, `: remove this filter on ${field}`),
        ),
      ),
    ),
  );

/** Counts of the codes of one field among the items that pass the filters. */
export class CodeTree {
  constructor(gallery, field, title) {
    Object.assign(this, { gallery, field, title, asked: "", choose: () => {} });
    this.list = h("ul", { className: "ticks codes", "aria-label": title });
    this.look = h("input", { type: "search", "aria-label": `Find a value of ${title}`, oninput: () => this.find() });
    this.element = h("div", {}, this.look, this.list);
    this.look.hidden = true;
  }

  /** Count again where the filters changed. */
  async refresh(where, chosen) {
    const within = [...new Set(chosen.flatMap(beginnings))];
    const asked = JSON.stringify([where, chosen]);
    if (asked === this.asked) return;
    this.asked = asked;
    try {
      const { levels } = await countCodes(this.gallery, this.field, within, where);
      if (this.asked !== asked) return; // a person went on meanwhile
      this.draw(levels, chosen);
    } catch (error) {
      this.asked = "";
      this.list.replaceChildren(h("li", { className: "soft small" }, `No counts: ${error.message}`));
    }
  }

  draw(levels, chosen) {
    const focused = document.activeElement?.dataset.code;
    const hadFocus = this.list.contains(document.activeElement);
    const rows = (within) => levels[within].map((one) => this.row(one, levels, chosen, rows));
    this.list.replaceChildren(...rows(""));
    if (!levels[""].length) this.list.append(h("li", { className: "soft small" }, "None"));
    this.look.hidden = levels[""].length < MANY;
    this.look.placeholder = `Find among ${count(levels[""].length)}`;
    this.find();
    if (hadFocus) this.list.querySelector(`[data-code="${CSS.escape(focused)}"]`)?.focus();
  }

  row({ code, count: held, has_more }, levels, chosen, rows) {
    const isOpen = chosen.some((one) => isBelow(one, code));
    return h(
      "li",
      { "data-top": code },
      h(
        "button",
        {
          type: "button",
          className: "code",
          "data-code": code,
          "aria-pressed": chosen.includes(code),
          onclick: () => this.choose(stepped(chosen, code)),
        },
        h("span", { className: "words" }, code),
        h("span", { className: "soft" }, count(held)),
      ),
      isOpen && has_more && levels[code]
        ? h("ul", { "aria-label": `${this.title} below ${code}` }, rows(code))
        : null,
    );
  }

  /** Show only the first-level codes that have what was typed. */
  find() {
    const sought = this.look.value.trim().toLowerCase();
    for (const line of this.list.children) line.hidden = !(line.dataset.top ?? "").toLowerCase().includes(sought);
  }
}
