// One item, large, with all its labels and metadata.

import { relabel } from "./api.js";
import { alternative, measureOf, redrawLabels, titleOf } from "./cards.js";
import { chip } from "./codes.js";
import { $, announce, h, icon } from "./dom.js";
import { fieldName, isShown } from "./facets.js";
import { relationOf } from "./relation.js";

const dialog = $("#detail");
let shown = null; // {results, place, gallery, alike, only}

/** Open at a place of a list of results; alike(item), only(field, value), picks are what a person can go on with. */
export function openDetail(results, place, gallery, actions) {
  shown = { results, place, gallery, ...actions };
  draw();
  if (!dialog.open) dialog.showModal();
  $("h2", dialog).focus();
}

export const closeDetail = () => dialog.close();

function go(step) {
  const place = shown.place + step;
  if (place < 0 || place >= shown.results.length) return;
  shown.place = place;
  const pressed = document.activeElement?.dataset.step;
  draw();
  const again = pressed && $(`[data-step="${pressed}"]`, dialog);
  (again && !again.disabled ? again : $("h2", dialog)).focus();
}

function draw() {
  const { results, place, gallery, alike, only, picks } = shown;
  const item = results[place];
  const kind = relationOf(item.relation, gallery.levels.length);
  const known = new Set(gallery.levels);
  const rest = Object.entries(item.metadata ?? {}).filter(
    ([name, value]) => isShown(name) && !known.has(name) && value !== null,
  );
  rest.sort(([, a], [, b]) => Array.isArray(b) - Array.isArray(a)); // codes first
  const step = (by, name, word) =>
    h(
      "button",
      {
        type: "button",
        "data-step": by,
        disabled: !results[place + by],
        onclick: () => go(by),
        "aria-label": word,
        title: word,
      },
      icon(name),
    );
  const labels = (item.labels ?? []).map((label, level) =>
    pair(
      fieldName(gallery.levels[level] ?? `level_${level}`, gallery.levels),
      h("span", {}, label),
      gallery.levels[level] &&
        h(
          "button",
          { type: "button", className: "link", onclick: () => only(gallery.levels[level], label) },
          "Show only these",
          h("span", { className: "unseen" }, `: ${label}`),
        ),
    ),
  );
  dialog.replaceChildren(
    h(
      "div",
      { className: "bar" },
      step(-1, "left", "Previous result"),
      h("span", { className: "soft" }, `${place + 1} of ${results.length}`),
      step(1, "right", "Next result"),
      h("button", { type: "button", className: "end", onclick: closeDetail, "aria-label": "Close" }, icon("close")),
    ),
    h(
      "div",
      { className: "inside" },
      item.image &&
        h(
          "a",
          {
            className: "large",
            href: item.image,
            target: "_blank",
            rel: "noopener",
            title: "Open the image alone",
            "data-relation": kind?.step,
          },
          h("img", { src: item.image, alt: alternative(item) }),
        ),
      h(
        "div",
        { className: "facts" },
        h("h2", { id: "detail-title", tabIndex: -1 }, titleOf(item)),
        kind &&
          h(
            "p",
            { className: "mark", "data-relation": kind.step },
            h("span", { "aria-hidden": "true" }, kind.mark),
            ` ${kind.text}`,
          ),
        h("button", { type: "button", className: "primary", onclick: () => alike(item) }, icon("alike"), "More like this"),
        gallery.writable && labelForm(item, gallery),
        h(
          "dl",
          {},
          ...labels,
          ...rest.map(([name, value]) =>
            pair(fieldName(name, gallery.levels), ...worded(name, value, picks)),
          ),
          measureOf(item).text && pair(measureOf(item).name, measureOf(item).text),
          pair("Id", h("code", {}, item.id)),
        ),
      ),
    ),
  );
}

const worded = (name, value, picks) =>
  Array.isArray(value)
    ? [h("ul", { className: "chips" }, value.map((code) => h("li", {}, chip(name, code, picks))))]
    : [typeof value === "boolean" ? (value ? "yes" : "no") : String(value)];

/** Where a person says which class the item really belongs to. */
function labelForm(item, gallery) {
  const was = item.metadata.original_label_0;
  const known = gallery.fields.find(({ name }) => name === "label_0")?.values ?? [];
  const input = h("input", { type: "text", required: true, maxLength: 1000, autocomplete: "off", "aria-describedby": "label-note" });
  input.setAttribute("list", "labels");
  const note = h("p", { id: "label-note", className: "soft small", role: "status" });
  const undo = h("button", { type: "button", className: "link", onclick: () => save(null) }, "Undo");
  if (was !== undefined) note.append(`Was ${was ?? "not labelled"}. `, undo);
  const save = async (label) => {
    try {
      const { item: now, is_new_label } = await relabel(item.id, gallery.name, label);
      Object.assign(item, now);
      if (shown.from) redrawLabels(shown.from, item);
      const text = label === null ? "The correction is undone." : `Saved: ${titleOf(item)}.`;
      announce(is_new_label && label !== null ? `${text} No other item has this label.` : text);
      if (shown.results[shown.place] !== item) return; // a person went on meanwhile
      draw();
      if (is_new_label && label !== null) $("#label-note").prepend("No other item has this label. ");
      $("h2", dialog).focus();
    } catch (error) {
      note.textContent = error.message;
      input.setAttribute("aria-invalid", "true");
    }
  };
  return h(
    "form",
    {
      className: "relabel",
      onsubmit: (event) => {
        event.preventDefault();
        if (input.value.trim()) save(input.value.trim());
      },
    },
    h("label", {}, "Belongs to another class?", input),
    h("datalist", { id: "labels" }, known.map(({ value }) => h("option", { value }))),
    h("button", {}, "Relabel"),
    note,
  );
}

const pair = (name, ...values) => h("div", {}, h("dt", {}, name), h("dd", {}, ...values));

dialog.addEventListener("keydown", (event) => {
  if (event.target.matches("input")) return; // arrows move the cursor there
  if (event.key === "ArrowLeft") go(-1);
  if (event.key === "ArrowRight") go(1);
});
dialog.addEventListener("click", (event) => {
  if (event.target === dialog) closeDetail(); // the backdrop
});
dialog.addEventListener("close", () => {
  const { results, place, from } = shown;
  from?.querySelector(`[data-id="${CSS.escape(results[place].id)}"] .picture`)?.focus();
});
