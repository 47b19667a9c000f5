// One ranking: its settings, what the server says of the query, and the results. Two lanes side by side are a comparison.

import { search } from "./api.js";
import { drawCards, drawWaiting, walkWithArrows } from "./cards.js";
import { openDetail } from "./detail.js";
import { count, h, icon, plural } from "./dom.js";
import { tally } from "./relation.js";
import { ALPHA } from "./state.js";

const MARKS = ["A", "B"];

/** actions: {settings(place, changes), alike(item, gallery), only(field, value), anyway, clear, retry, refused(problem)} */
export class Lane {
  constructor(place, galleries, actions) {
    Object.assign(this, { place, galleries, actions, answer: null, running: null });
    this.title = h("h2", { tabIndex: -1 }, "Results");
    this.tools = h("div", { className: "tools" });
    this.banner = h("div", { className: "banners" });
    this.summary = h("p", { className: "summary soft" });
    this.legend = h("ul", { className: "legend", "aria-label": "Relation to the query" });
    this.list = h("ul", { className: "grid" });
    walkWithArrows(this.list);
    this.element = h(
      "section",
      { className: "lane", "aria-label": `Ranking ${MARKS[place]}` },
      h("div", { className: "head" }, this.title, this.tools),
      this.banner,
      h("div", { className: "told" }, this.summary, this.legend),
      this.list,
    );
  }

  get gallery() {
    return this.galleries.find(({ name }) => name === this.settings.gallery);
  }

  /** Show the controls of these settings. They are drawn once, so that the focus stays where a person put it. */
  configure(settings, compared) {
    this.settings = settings;
    this.title.textContent = compared ? `Ranking ${MARKS[this.place]}` : "Results";
    if (!this.controls) this.tools.append(...this.makeControls());
    const { gallery, expand, alpha, rerank, on } = this.controls;
    gallery.value = settings.gallery;
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
    this.controls = { gallery, expand, alpha, rerank, on };
    return this.galleries.length > 1 ? [gallery, options] : [options];
  }

  /** Ask, and show the answer. Resolves to the answer; to null where it failed or another question came first. */
  async run(query, shared) {
    this.running?.abort();
    const mine = (this.running = new AbortController());
    const slow = setTimeout(() => this.wait(shared.k), 120); // a quick answer shows no intermediate state
    this.element.setAttribute("aria-busy", "true");
    try {
      const answer = await search(query, { ...this.settings, ...shared }, mine.signal);
      if (mine.signal.aborted) return null;
      this.show(answer, query, shared);
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
    this.summary.textContent = "Searching…";
    drawWaiting(this.list, k);
  }

  show(answer, query, shared) {
    this.answer = answer;
    const { results, verdict, took } = answer;
    const n_levels = this.gallery.levels.length;
    this.banner.replaceChildren(...this.verdictBanners(verdict, results, shared));
    const reordered = this.settings.rerank ? " Re-ranked: scores order these results and mean nothing across queries." : "";
    const milliseconds = Math.max(1, Math.round(took.encode_ms + took.search_ms));
    this.summary.textContent = results.length
      ? `${plural(results.length, "result")} of ${count(this.gallery.items)} items in ${milliseconds} ms.${reordered}`
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
    drawCards(
      this.list,
      results,
      n_levels,
      {
        open: (place) =>
          openDetail(results, place, this.gallery, {
            from: this.list,
            alike: (item) => this.actions.alike(item, this.gallery.name),
            only: this.actions.only,
          }),
        alike: (item) => this.actions.alike(item, this.gallery.name),
      },
      () => this.answer === answer,
    );
  }

  verdictBanners(verdict, results, shared) {
    if (verdict && !verdict.belongs && verdict.policy !== "ignore") {
      const withheld = !results.length;
      const anyway = withheld && h("button", { type: "button", onclick: this.actions.anyway }, "Show the nearest anyway");
      const shown = withheld
        ? "No results are shown."
        : "The results below are the nearest there are, and may mean nothing.";
      const [lies, limit] = [verdict.energy.toPrecision(3), verdict.threshold.toPrecision(3)];
      const text = `${shown} Its distance from the collection is ${lies}; images that belong stay below ${limit}.`;
      return [banner("outside", "outside", "This image does not belong to this collection", text, anyway || null)];
    }
    if (verdict?.matched === false && results.length) {
      // Whether there is a match is said only where both numbers are known.
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
          shared.where ? "Loosen a filter to see results." : "Add images with sightline index add.",
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
        401: "A token is needed",
        404: "Not found",
        413: "The image is too large",
        415: "This file cannot be read as an image",
        422: "The server cannot do that",
        429: "The server is busy",
      }[error.status] ?? "The search failed";
    this.banner.replaceChildren(banner("fault", "alert", title, text, again));
    this.actions.refused(error);
  }

  empty() {
    this.answer = null;
    this.running?.abort();
    this.banner.replaceChildren();
    this.legend.replaceChildren();
    this.list.replaceChildren();
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

export const banner = (kind, drawing, title, text, action = null) =>
  h(
    "div",
    { className: `banner ${kind}`, role: kind === "fault" ? "alert" : "status" },
    icon(drawing),
    h("div", {}, h("p", { className: "strong" }, title), h("p", {}, text)),
    action,
  );
