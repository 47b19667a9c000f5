// One item, large, with all its labels and metadata.

import { $, h, icon } from "./dom.js";
import { alternative, measureOf, titleOf } from "./cards.js";
import { fieldName, isShown } from "./facets.js";
import { relationOf } from "./relation.js";

const dialog = $("#detail");
let shown = null; // {results, place, gallery, alike, only}

/** Open at a place of a list of results; alike(item), only(field, value) are what a person can go on with. */
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
  const { results, place, gallery, alike, only } = shown;
  const item = results[place];
  const kind = relationOf(item.relation, gallery.levels.length);
  const known = new Set(gallery.levels);
  const rest = Object.entries(item.metadata ?? {}).filter(
    ([name, value]) => isShown(name) && !known.has(name) && value !== null,
  );
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
        h(
          "dl",
          {},
          ...labels,
          measureOf(item).text && pair(measureOf(item).name, measureOf(item).text),
          ...rest.map(([name, value]) =>
            pair(fieldName(name, gallery.levels), typeof value === "boolean" ? (value ? "yes" : "no") : String(value)),
          ),
          pair("Id", h("code", {}, item.id)),
        ),
      ),
    ),
  );
}

const pair = (name, ...values) => h("div", {}, h("dt", {}, name), h("dd", {}, ...values));

dialog.addEventListener("keydown", (event) => {
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
