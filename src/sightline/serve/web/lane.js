// One ranking: its settings, what the server says of the query, and the results. Two lanes side by side are a comparison.

import { browseItems, search } from "./api.js";
import { drawCards, drawWaiting, walkWithArrows } from "./cards.js";
import { openDetail } from "./detail.js";
import { count, h, icon, plural } from "./dom.js";
import { fieldName } from "./facets.js";
import { tally } from "./relation.js";
import { ALPHA, SORTS } from "./state.js";

const MARKS = ["A", "B"];
const PAGE = 60; // items on a page while browsing

/**
 * actions: {settings(place, changes), browse(changes), alike(item, gallery), only(field, value), picks, anyway, clear,
 * retry, refused(problem)}; picks, of codes: {chosen(field), toggle(field, code)}
 */
export class Lane {
  constructor(place, galleries, actions) {
    Object.assign(this, { place, galleries, actions, answer: null, running: null });
    this.title = h("h2", { tabIndex: -1 }, "Results");
    this.tools = h("div", { className: "tools" });
    this.banner = h("div", { className: "banners" });
    this.summary = h("p", { className: "summary soft" });
    this.legend = h("ul", { className: "legend", "aria-label": "Relation to the query" });
    this.list = h("ul", { className: "grid" });
    this.pager = h("nav", { className: "pager", "aria-label": "Pages", hidden: true });
    walkWithArrows(this.list);
    this.element = h(
      "section",
      { className: "lane", "aria-label": `Ranking ${MARKS[place]}` },
      h("div", { className: "head" }, this.title, this.tools),
      this.banner,
      h("div", { className: "notes" }, this.summary, this.legend),
      this.list,
      this.pager,
    );
  }

  get gallery() {
    return this.galleries.find(({ name }) => name === this.settings.gallery);
  }

  /** Show the controls of these settings. They are drawn once, so that the focus stays where a person put it. */
  configure(settings, { compared, browse, hasQuery }) {
    this.settings = settings;
    this.title.textContent = browse ? "Browse" : compared ? `Ranking ${MARKS[this.place]}` : "Results";
    if (!this.controls) this.tools.append(...this.makeControls());
    const { gallery, options, expand, alpha, rerank, on } = this.controls;
    gallery.value = settings.gallery;
    options.hidden = !hasQuery;
    this.configureBrowsing(browse);
    expand.value = settings.expand;
    alpha.value = settings.alpha;
    alpha.parentElement.hidden = !settings.expand;
    rerank.checked = settings.rerank !== "";
    const n_on = Number(settings.expand > 0) + Number(settings.rerank !== "");
    on.hidden = !n_on;
    on.textContent = n_on;
  }

  makeControls() {
    const change = (changes) => this.actions.settings(this.place, changes);
    const bounded = (input, least, most, otherwise) =>
      input.value === "" ? otherwise : Math.min(most, Math.max(least, Number(input.value)));
    const gallery = h(
      "select",
      { "aria-label": "Gallery", onchange: () => change({ gallery: gallery.value }) },
      this.galleries.map(({ name }) => h("option", { value: name }, name)),
    );
    const expand = h("input", {
      type: "number",
      min: 0,
      max: 50,
      step: 1,
      onchange: () => change({ expand: Math.round(bounded(expand, 0, 50, 0)) }),
    });
    const alpha = h("input", {
      type: "number",
      min: 0,
      max: 10,
      step: "any",
      onchange: () => change({ alpha: bounded(alpha, 0, 10, ALPHA) }),
    });
    const rerank = h("input", {
      type: "checkbox",
      onchange: () => change({ rerank: rerank.checked ? "kreciprocal" : "" }),
    });
    const on = h("span", { className: "badge", hidden: true });
    const options = h(
      "details",
      { className: "options" },
      h("summary", {}, "Options", on),
      h(
        "div",
        { className: "sheet" },
        h(
          "label",
          { className: "line" },
          h("span", {}, "Query expansion", h("span", { className: "soft small" }, "average with this many nearest items")),
          expand,
        ),
        h(
          "label",
          { className: "line" },
          h("span", {}, "Weight of the nearest", h("span", { className: "soft small" }, "power of their similarity")),
          alpha,
        ),
        h(
          "label",
          { className: "line" },
          h("span", {}, "Re-rank", h("span", { className: "soft small" }, "by the neighbours that results share")),
          rerank,
        ),
      ),
    );
    options.addEventListener("keydown", (event) => {
      if (event.key !== "Escape" || !options.open) return;
      options.open = false;
      options.firstChild.focus();
    });
    const sort = h(
      "select",
      { "aria-label": "Sort", onchange: () => this.actions.browse({ sort: sort.value, page: 0 }) },
      Object.entries(SORTS).map(([value, name]) => h("option", { value }, name)),
    );
    const level = h("select", {
      "aria-label": "Class",
      onchange: () => this.actions.browse({ level: Number(level.value), page: 0 }),
    });
    this.controls = { gallery, options, expand, alpha, rerank, on, sort, level };
    return this.galleries.length > 1 ? [gallery, level, sort, options] : [level, sort, options];
  }

  /** Which label is the class, and the order; hidden unless the page browses. */
  configureBrowsing(browse) {
    const { sort, level } = this.controls;
    const { levels } = this.gallery;
    sort.hidden = !browse;
    level.hidden = !browse || levels.length < 2;
    if (!browse) return;
    level.replaceChildren(
      ...levels.map((name, value) => h("option", { value }, `Class: ${fieldName(name, levels).toLowerCase()}`)),
    );
    level.value = browse.level;
    sort.value = browse.sort;
  }

  /** Search, and show the answer. Resolves to the answer; to null where it failed or another request came first. */
  run(query, shared) {
    const send = (signal) => search(query, { ...this.settings, ...shared }, signal);
    return this.request(send, (answer) => this.show(answer, shared), shared.k);
  }

  /** List a page of the gallery; resolves like run(). */
  browse(browse, where) {
    const send = (signal) => browseItems(this.gallery.name, where, browse, PAGE, signal);
    return this.request(send, (answer) => this.showPage(answer, browse, where), PAGE);
  }

  async request(send, show, n_cards) {
    this.running?.abort();
    const mine = (this.running = new AbortController());
    const slow = setTimeout(() => this.wait(n_cards), 120); // a quick answer shows no intermediate state
    this.element.setAttribute("aria-busy", "true");
    try {
      const answer = await send(mine.signal);
      if (mine.signal.aborted) return null;
      this.answer = answer;
      show(answer);
      return answer;
    } catch (error) {
      if (!mine.signal.aborted) this.fail(error);
      return null;
    } finally {
      clearTimeout(slow);
      if (this.running === mine) {
        this.element.removeAttribute("aria-busy");
        this.element.classList.remove("waits");
      }
    }
  }

  wait(k) {
    this.element.classList.add("waits");
    if (this.answer) return; // earlier results stay in view, paler
    this.banner.replaceChildren();
    this.summary.textContent = "Loading…";
    drawWaiting(this.list, k);
  }

  show(answer, shared) {
    const { results, verdict, took, candidates } = answer;
    const n_levels = this.gallery.levels.length;
    this.banner.replaceChildren(...this.verdictBanners(verdict, results, shared));
    const reordered = this.settings.rerank ? " Re-ranked: scores are comparable within this list only." : "";
    const filtered = shared.where ? " that pass the filters," : "";
    const milliseconds = Math.max(1, Math.round(took.encode_ms + took.search_ms));
    this.summary.textContent = results.length
      ? `${plural(results.length, "result")} of ${plural(candidates, "item")}${filtered} in ${milliseconds} ms.${reordered}`
      : "";
    this.legend.replaceChildren(
      ...tally(results, n_levels).map((kind) =>
        h(
          "li",
          { className: "mark", "data-relation": kind.step },
          h("span", { "aria-hidden": "true" }, kind.mark),
          ` ${kind.text} ${count(kind.count)}`,
        ),
      ),
    );
    this.list.classList.toggle("pale", verdict?.belongs === false || verdict?.matched === false);
    this.pager.hidden = true;
    this.drawItems(results, answer);
  }

  drawItems(items, answer, headed = null) {
    const alike = (item) => this.actions.alike(item, this.gallery.name);
    const { only } = this.actions;
    const isShared = (field, code) => answer.query?.lists?.[field]?.includes(code) ?? false;
    const picks = { ...this.actions.picks, isShared };
    const open = (place) => openDetail(items, place, this.gallery, { from: this.list, alike, only, picks });
    drawCards(this.list, items, this.gallery.levels.length, { open, alike, picks }, () => this.answer === answer, headed);
  }

  showPage(answer, browse, where) {
    const { items, total } = answer;
    this.banner.replaceChildren(...this.verdictBanners(null, items, { where }));
    this.legend.replaceChildren();
    this.list.classList.remove("pale");
    const order =
      browse.sort === "class"
        ? "Within a class, the least typical images come first."
        : "The images furthest from the mean of their class come first.";
    const all = where ? `${count(total)} of ${plural(this.gallery.items, "image")}` : plural(total, "image");
    this.summary.textContent = items.length ? `${all}. ${order}` : "";
    this.drawItems(items, answer, browse.sort === "class" ? (item) => this.classHead(item, browse.level, where) : null);
    const last = Math.ceil(total / PAGE) - 1;
    const step = (by, name, word) =>
      h(
        "button",
        { type: "button", disabled: browse.page + by < 0 || browse.page + by > last, onclick: () => this.turnPage(browse.page + by) },
        icon(name),
        word,
      );
    this.pager.hidden = total <= PAGE && !browse.page;
    const first = browse.page * PAGE;
    const range = items.length ? `${count(first + 1)}–${count(first + items.length)} of ${count(total)}` : "No items here";
    this.pager.replaceChildren(step(-1, "left", "Previous"), h("span", { className: "soft" }, range), step(1, "right", "Next"));
  }

  turnPage(page) {
    this.actions.browse({ page });
    this.title.focus({ preventScroll: true });
    scrollTo({ top: 0 });
  }

  /** The head of a class: its name, and where all of them are listed, their number. */
  classHead(item, level, where) {
    const name = item.labels[level] ?? "";
    const field = this.gallery.fields.find((one) => one.name === this.gallery.levels[level]);
    const held = where ? null : field?.values?.find((one) => one.value === name);
    return { key: name, text: name || "No label", note: held ? plural(held.count, "image") : "" };
  }

  verdictBanners(verdict, results, shared) {
    if (verdict && !verdict.belongs && verdict.policy !== "ignore") {
      const withheld = !results.length;
      const anyway = withheld && h("button", { type: "button", onclick: this.actions.anyway }, "Show the nearest anyway");
      const shown = withheld
        ? "No results are shown."
        : "The results below are the nearest items, and may be meaningless.";
      const text = `It is ${typicality(verdict.quantile)}. ${shown}`;
      return [banner("outside", "outside", "This image does not belong to this collection", text, anyway || null)];
    }
    if (verdict?.matched === false && results.length) {
      // "matched" is false only where both numbers are known.
      const [nearest, limit] = [verdict.similarity.toFixed(3), verdict.similarity_threshold.toFixed(3)];
      const numbers = `The nearest item scores ${nearest}; a match scores ${limit} or higher.`;
      const text = `It is the kind of image this collection holds, but no item matches it. ${numbers}`;
      return [banner("far", "far", "Nothing here is close to this image", text)];
    }
    if (!results.length) {
      const clear = shared.where ? h("button", { type: "button", onclick: this.actions.clear }, "Clear all filters") : null;
      return [
        banner(
          "none",
          "image",
          shared.where ? "No item passes the filters" : "This gallery holds no other item",
          shared.where ? "Remove or relax a filter to see items." : "Add images with sightline index add.",
          clear,
        ),
      ];
    }
    return [];
  }

  fail(error) {
    this.empty();
    const ofTheFile = [413, 415].includes(error.status); // the same file would be refused again
    const again = ofTheFile ? null : h("button", { type: "button", onclick: this.actions.retry }, "Try again");
    const text = error.message.replace(/^image: ./, (start) => start.at(-1).toUpperCase());
    const title =
      {
        0: "No answer from the server",
        401: "Token required",
        404: "Not found",
        413: "The image is too large",
        415: "This file cannot be read as an image",
        422: "The request is not valid",
        429: "The server is busy",
      }[error.status] ?? "The request failed";
    this.banner.replaceChildren(banner("fault", "alert", title, text, again));
    this.actions.refused(error);
  }

  empty() {
    this.answer = null;
    this.running?.abort();
    this.banner.replaceChildren();
    this.legend.replaceChildren();
    this.list.replaceChildren();
    this.pager.hidden = true;
    this.summary.textContent = "";
  }

  /** On every card, the place it has in the list beside: {id: place}. */
  markBeside(places) {
    for (const card of this.list.querySelectorAll(".card[data-id]")) {
      const note = card.querySelector(".beside");
      const place = places?.get(card.dataset.id);
      note.hidden = !places;
      note.textContent =
        place === undefined ? `Not in ${MARKS[1 - this.place]}` : `Place ${place + 1} in ${MARKS[1 - this.place]}`;
    }
  }
}

/** In words, where an image lies among those that the rejector was calibrated on; quantile is the share nearer in. */
export function typicality(quantile) {
  if (quantile === null) return "less typical than almost all images of the collection";
  if (quantile >= 1) return "less typical than every image that the rejector was calibrated on";
  const percent = (Math.floor(1000 * quantile) / 10).toLocaleString("en", { maximumFractionDigits: 1 });
  return `less typical than ${percent} % of the images that the rejector was calibrated on`;
}

export const banner = (kind, drawing, title, text, action = null) =>
  h(
    "div",
    { className: `banner ${kind}`, role: kind === "fault" ? "alert" : "status" },
    icon(drawing),
    h("div", {}, h("p", { className: "strong" }, title), h("p", {}, text)),
    action,
  );
