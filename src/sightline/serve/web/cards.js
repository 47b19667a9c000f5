// Results as a grid of cards, drawn in steps: the first ones at once, the rest between frames.

import { chip, listed } from "./codes.js";
import { $, h, icon } from "./dom.js";
import { relationOf } from "./relation.js";

const AT_ONCE = 12;
const MOST_CHIPS = 4; // on a card, in two rows; the details show all

export const titleOf = (item) => item.labels?.[0] ?? item.id;

/** The number on a card: how near a result is to the query, or how typical an item is of its class. */
export function measureOf(item) {
  if (item.score !== undefined) return { name: "Score", text: item.score.toFixed(3), title: "Score: higher is nearer" };
  const text = item.typicality === null ? "" : item.typicality.toFixed(3);
  return { name: "Typicality", text, title: "Typicality: cosine to the mean of the other images of its class" };
}

const coarser = (item) => (item.labels ?? []).slice(1).join(" · ");

/** What the picture is, in words: its labels from the finest on. */
export const alternative = (item) => (item.labels?.length ? `${item.labels.join(", ")}` : `Item ${item.id}`);

/**
 * Fill a list; actions: {open(place), alike(item), picks}, picks for chips of codes; drawing ends when stillWanted() is false. headed(item) gives the head
 * {key, text, note} that stands above the first of several items with the same key; null for no heads.
 */
export function drawCards(list, results, n_levels, actions, stillWanted, headed = null) {
  list.replaceChildren();
  let next = 0;
  const head = (place) => {
    const own = headed?.(results[place]);
    return own && own.key !== (place ? headed(results[place - 1]).key : null) ? [classHead(own)] : [];
  };
  const draw = () => {
    if (!stillWanted()) return;
    const until = next === 0 ? AT_ONCE : next + 2 * AT_ONCE;
    const cards = results
      .slice(next, until)
      .flatMap((item, step) => [...head(next + step), card(item, next + step, n_levels, actions)]);
    list.append(...cards);
    next = until;
    if (next < results.length) requestAnimationFrame(draw);
  };
  draw();
}

const classHead = ({ text, note }) =>
  h("li", { className: "class-head" }, h("h3", {}, text), h("span", { className: "soft small" }, note));

function chips(item, place, { open, picks }) {
  const all = listed(item);
  if (!all.length) return null;
  const n_shown = all.length > MOST_CHIPS ? MOST_CHIPS - 1 : all.length;
  all.sort((a, b) => picks.isShared(...b) - picks.isShared(...a));
  const shown = all.slice(0, n_shown).map(([field, code]) => h("li", {}, chip(field, code, picks)));
  const more = { type: "button", className: "chip", "aria-label": `All ${all.length} codes`, onclick: () => open(place) };
  if (n_shown < all.length) shown.push(h("li", {}, h("button", more, `+${all.length - n_shown}`)));
  return h("ul", { className: "chips", "aria-label": "Filter by" }, shown);
}

function card(item, place, n_levels, actions) {
  const { open, alike } = actions;
  const kind = relationOf(item.relation, n_levels);
  const lost = () => h("span", { className: "lost soft small" }, alternative(item), h("br"), "No picture");
  const image =
    item.thumbnail === null
      ? lost()
      : h("img", {
          src: item.thumbnail,
          alt: alternative(item),
          loading: place < AT_ONCE ? "eager" : "lazy",
          decoding: "async",
          width: 256,
          height: 256,
          onerror: () => image.replaceWith(lost()),
        });
  return h(
    "li",
    { className: "card", "data-id": item.id, "data-relation": kind?.step },
    h("button", { type: "button", className: "picture", "aria-haspopup": "dialog", onclick: () => open(place) }, image),
    kind && h("span", { className: "mark" }, h("span", { "aria-hidden": "true" }, kind.mark), ` ${kind.text}`),
    h(
      "p",
      { className: "title" },
      h("span", { className: "words" }, titleOf(item)),
      h("span", { className: "score", title: measureOf(item).title }, measureOf(item).text),
    ),
    h("p", { className: "levels soft small", title: alternative(item) }, coarser(item)),
    chips(item, place, actions),
    h("p", { className: "beside soft small", hidden: true }),
    h(
      "button",
      { type: "button", className: "alike quiet", onclick: () => alike(item) },
      icon("alike"),
      "More like this",
      h("span", { className: "unseen" }, `: ${titleOf(item)}, place ${place + 1}`),
    ),
  );
}

/** Write the labels of an item on its card again, and what the finest was before. */
export function redrawLabels(list, item) {
  const card = list.querySelector(`[data-id="${CSS.escape(item.id)}"]`);
  if (!card) return; // on an earlier page
  const was = item.metadata.original_label_0;
  $(".words", card).textContent = titleOf(item);
  $(".levels", card).textContent = was === undefined ? coarser(item) : `Was ${was ?? "not labelled"}`;
  $(".levels", card).title = alternative(item);
}

/** Cards of grey while the first answer is on its way; they take the room that results will. */
export function drawWaiting(list, n) {
  list.replaceChildren(
    ...Array.from({ length: Math.min(n, 24) }, () =>
      h(
        "li",
        { className: "card waiting", "aria-hidden": "true" },
        h("span", { className: "picture" }),
        h("p", { className: "title" }, "\u00a0"),
        h("p", { className: "levels small" }, "\u00a0"),
      ),
    ),
  );
}

/** Arrow keys go from picture to picture, up and down by what is drawn above and below. */
export function walkWithArrows(list) {
  list.addEventListener("keydown", (event) => {
    if (!event.target.classList.contains("picture") || !event.key.startsWith("Arrow")) return;
    const all = [...list.querySelectorAll("button.picture")];
    const here = all.indexOf(event.target);
    const top = all[0].parentElement.offsetTop;
    const across = Math.max(1, all.filter((one) => one.parentElement.offsetTop === top).length);
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across }[event.key];
    event.preventDefault();
    all[here + step]?.focus();
  });
}
