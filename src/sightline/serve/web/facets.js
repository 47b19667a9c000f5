// Filters from the values in a gallery: values to tick, ranges for numbers, counts of codes.

import { CodeTree, chosenCodes } from "./codes.js";
import { $, count, h } from "./dom.js";
import { isName } from "./where.js";

const HIDDEN = /^(path|file_.*|[xy]_[12])$/; // the image's file and box: not useful as filters
const ORIGINAL = "original_"; // label_0 and so on of an item before it was relabelled
const MANY = 10; // values from which a search box is shown

export const isShown = (name) => !HIDDEN.test(name);

/** label_1 of 3 -> "Parent label"; other names as they are, with spaces. */
export function fieldName(name, levels) {
  if (name.startsWith(ORIGINAL)) return `Original ${fieldName(name.slice(ORIGINAL.length), levels).toLowerCase()}`;
  const level = levels.indexOf(name);
  if (level < 0) return name.charAt(0).toUpperCase() + name.slice(1).replaceAll("_", " ");
  return ["Label", "Parent label", "Grandparent label"][level] ?? `Label, level ${level}`;
}

const trees = new Map(); // gallery and field -> CodeTree: drawn once, so that counts stay until there are new ones

function treeOf(gallery, field, title, choose) {
  const key = JSON.stringify([gallery.name, field.name]);
  if (!trees.has(key)) trees.set(key, new CodeTree(gallery.name, field.name, title));
  const tree = trees.get(key);
  tree.choose = (codes) => choose(codes.length ? { has: codes } : null);
  return tree;
}

/** Count the codes of what passes the filters, in the facets that are open. */
export function countCodesAgain(gallery, where, facets) {
  if (!$("#filters").open) return;
  for (const part of $("#facets").children) {
    const tree = trees.get(JSON.stringify([gallery.name, part.dataset.field]));
    if (part.open && tree) tree.refresh(where, chosenCodes(facets, part.dataset.field));
  }
}

/** Fill #facets; changed(facets) is called with the new choice, opened() when a person opens a field. */
export function drawFacets(gallery, facets, changed, opened) {
  const open = new Set([...$("#facets").children].filter((part) => part.open).map((part) => part.dataset.field));
  const parts = gallery.fields
    .filter((field) => isShown(field.name) && isName(field.name))
    .map((field) => {
      const choose = (chosen) => {
        const next = { ...facets };
        if (chosen) next[field.name] = chosen;
        else delete next[field.name];
        facets = next;
        note();
        changed(next);
      };
      const badge = h("span", { className: "badge", hidden: true });
      const note = () => {
        const chosen = facets[field.name];
        badge.hidden = !chosen;
        const several = chosen?.values ?? chosen?.has;
        badge.textContent = several ? count(several.length) : "set";
      };
      const title = fieldName(field.name, gallery.levels);
      const body =
        field.kind === "number"
          ? range(field, title, facets, choose)
          : field.kind === "list"
            ? treeOf(gallery, field, title, choose).element
            : field.values?.length
              ? ticks(field, title, facets, choose)
              : null;
      if (!body) return null;
      note();
      const isOpen = open.has(field.name);
      return h(
        "details",
        { className: "fold inner", "data-field": field.name, open: isOpen, ontoggle: opened },
        h("summary", {}, title, badge),
        body,
      );
    });
  $("#facets").replaceChildren(...parts.filter(Boolean));
}

function ticks(field, title, facets, choose) {
  const chosen = new Set(facets[field.name]?.values ?? []);
  const lines = field.values.map(({ value, count: held }) => {
    const tick = h("input", {
      type: "checkbox",
      checked: chosen.has(value),
      onchange: () => {
        if (tick.checked) chosen.add(value);
        else chosen.delete(value);
        choose(chosen.size ? { values: [...chosen] } : null);
      },
    });
    return h(
      "label",
      { className: "tick" },
      tick,
      h("span", {}, shown(value)),
      h("span", { className: "soft" }, count(held)),
    );
  });
  const list = h("div", { className: "ticks", role: "group", "aria-label": title }, lines);
  if (lines.length < MANY) return list;
  const look = h("input", {
    type: "search",
    placeholder: `Find among ${count(lines.length)}`,
    "aria-label": `Find a value of ${title}`,
    oninput: () => {
      const sought = look.value.trim().toLowerCase();
      for (const line of lines) line.hidden = !line.textContent.toLowerCase().includes(sought);
    },
  });
  return h("div", {}, look, list);
}

const shown = (value) => (value === null ? "none" : value === true ? "yes" : value === false ? "no" : String(value));

function range(field, title, facets, choose) {
  const now = { ...facets[field.name] };
  const side = (key, word, bound) => {
    const input = h("input", {
      type: "number",
      step: "any",
      value: now[key] ?? "",
      placeholder: bound === null || bound === undefined ? "" : String(bound),
      "aria-label": `${title}, ${word}`,
      onchange: () => {
        if (input.value === "") delete now[key];
        else now[key] = input.valueAsNumber;
        choose(Object.keys(now).length ? { ...now } : null);
      },
    });
    return h("label", {}, h("span", { className: "soft small" }, word), input);
  };
  return h("div", { className: "range" }, side("min", "from", field.min), side("max", "to", field.max));
}
