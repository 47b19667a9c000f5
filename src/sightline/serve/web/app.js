// Joins the parts: one state, drawn from the address; every change goes through go().

import { forgetToken, galleries as readGalleries, hasToken, imageAddress, onTokenNeeded, samples } from "./api.js";
import { drawWaiting, titleOf } from "./cards.js";
import { chosenChips, chosenCodes, toggled } from "./codes.js";
import { cropper, queryImage } from "./crop.js";
import { closeDetail } from "./detail.js";
import { $, announce, count, h, plural, settled } from "./dom.js";
import { countCodesAgain, drawFacets } from "./facets.js";
import { banner, Lane } from "./lane.js";
import { imageOf, keep, watchInputs } from "./query.js";
import { fromAddress, isBrowsing, plainBrowse, plainLane, toAddress } from "./state.js";
import { composed } from "./where.js";

const RECENT = 8;
const SAMPLES = 18;
let galleries = [];
let state = null;
let lanes = [];
let previewed = "";
let begin;
const ready = new Promise((done) => (begin = done)); // the galleries are known
const recent = []; // [{key, title, src, query}], newest first

// ---- state ----

/** Take changes over into the address and onto the page; a new query is a step that the back button undoes. */
function go(changes, { step = false } = {}) {
  state = { ...state, ...changes };
  history[step ? "pushState" : "replaceState"](null, "", toAddress(state));
  return draw();
}

function ask(query, { title, src }) {
  const key = JSON.stringify([query.id, query.gallery, query.image]);
  const there = recent.findIndex((one) => one.key === key);
  if (there >= 0) recent.splice(there, 1);
  recent.unshift({ key, title, src, query });
  recent.length = Math.min(recent.length, RECENT);
  if ($("#detail").open) closeDetail();
  showFault("");
  const drawn = go({ query, policy: "", browse: plainBrowse() }, { step: true });
  scrollTo({ top: 0 });
  return drawn;
}

const takeImage = async (file) => {
  await ready; // an image may be dropped before the page knows what it can search
  const image = keep(file);
  const { name, url } = imageOf(image);
  return ask({ image, crop: null }, { title: name, src: url });
};

async function alike(item, gallery) {
  const asked = ask({ id: item.id, gallery }, { title: titleOf(item), src: item.thumbnail });
  lanes[0].title.focus({ preventScroll: true });
  await asked;
}

const only = (field, value) => {
  closeDetail();
  $("#filters").open = true;
  filter({ facets: { ...state.facets, [field]: { values: [value] } } });
};

const pick = (field, code) => {
  closeDetail();
  const has = toggled(chosenCodes(state.facets, field), code);
  const { [field]: _, ...others } = state.facets;
  filter({ facets: has.length ? { ...others, [field]: { has } } : others });
};

const picks = { chosen: (field) => chosenCodes(state.facets, field), toggle: pick };

// ---- drawing ----

async function draw() {
  const compared = state.lanes.length > 1 && state.query !== null;
  const browse = isBrowsing(state) ? state.browse : null;
  const first = galleries.find(({ name }) => name === state.lanes[0].gallery);
  document.body.classList.toggle("compared", compared);
  document.body.classList.toggle("browsing", browse !== null);
  $("#compare").setAttribute("aria-pressed", state.lanes.length > 1);
  $("#browse").setAttribute("aria-pressed", browse !== null);
  $("#holds").textContent = `${plural(first.items, "image")} in ${first.name}`;
  $("#k").value = state.k;
  $("#k-shown").textContent = state.k;
  $("#k").closest("section").hidden = browse !== null;
  drawFilters(first);
  drawPreview();
  drawRecent();
  const actions = {
    settings: setLane,
    browse: (changes) => go({ browse: { ...state.browse, ...changes } }, { step: true }),
    alike,
    only,
    picks,
    anyway: () => go({ policy: "flag" }),
    clear: clearFilters,
    retry: draw,
    refused,
  };
  const shown = state.query ? state.lanes : state.lanes.slice(0, 1);
  lanes = shown.map((settings, place) => lanes[place] ?? new Lane(place, galleries, actions));
  lanes.forEach((lane, place) => lane.configure(state.lanes[place], { compared, browse, hasQuery: state.query !== null }));
  if ($("#lanes").children.length !== lanes.length) $("#lanes").replaceChildren(...lanes.map((lane) => lane.element));
  $("#both").hidden = true;
  await (state.query ? drawAnswers() : browse ? drawBrowsing(browse) : drawBeginning(first));
}

async function drawBrowsing(browse) {
  document.body.classList.remove("beginning");
  showFilterFault("");
  const answer = await lanes[0].browse(browse, composed(state.facets, state.where));
  if (answer) announce(plural(answer.total, "item"));
}

function question() {
  const { query } = state;
  if (query.id) return query;
  const image = imageOf(query.image);
  return image && { ...image, crop: query.crop };
}

async function drawAnswers() {
  const asked = question();
  document.body.classList.remove("beginning");
  if (!asked) {
    lanes.forEach((lane) => lane.empty());
    lanes[0].banner.replaceChildren(
      banner(
        "none",
        "image",
        "This image is no longer available",
        "An image stays in the tab's memory and is lost on reload. Choose, drop or paste it again.",
      ),
    );
    return;
  }
  showFilterFault("");
  const shared = { k: state.k, where: composed(state.facets, state.where), policy: state.policy };
  const before = state;
  const answers = await Promise.all(lanes.map((lane) => lane.run(asked, shared)));
  if (state !== before || answers.some((answer) => !answer)) return;
  const title = answers[0].query.labels?.[0];
  if (state.query.id && title) $("#preview .name").textContent = title;
  announce(answers.map(({ results }) => plural(results.length, "result")).join(" and "));
  compareAnswers(answers);
}

function compareAnswers(answers) {
  if (answers.length < 2) return lanes[0].markBeside(null);
  const places = answers.map(({ results }) => new Map(results.map(({ id }, place) => [id, place])));
  const n_both = [...places[0].keys()].filter((id) => places[1].has(id)).length;
  $("#both").hidden = false;
  $("#both").textContent =
    `${count(n_both)} of ${count(Math.max(places[0].size, places[1].size))} results are in both rankings.`;
  // Cards are drawn over several frames: mark them when the last one is there.
  const mark = (tries) => {
    lanes.forEach((lane, side) => lane.markBeside(places[1 - side]));
    const missing = lanes.some((lane, side) => lane.list.children.length < places[side].size);
    if (missing && tries) requestAnimationFrame(() => mark(tries - 1));
  };
  return mark(20);
}

/** No query yet: say what to do, and offer items to begin with. */
async function drawBeginning(gallery) {
  const before = state;
  document.body.classList.add("beginning");
  lanes.forEach((lane) => lane.empty());
  const [lane] = lanes;
  lane.title.textContent = "Start with an image";
  if (!gallery.items) {
    lane.banner.replaceChildren(
      banner("none", "image", "This gallery is empty", "Add images with sightline index add, then search here."),
    );
    return;
  }
  lane.summary.replaceChildren(
    "Drop, paste or choose an image to find similar ones, click one of these, or ",
    h("button", { type: "button", className: "link", onclick: () => browseAll(true) }, `browse all ${plural(gallery.items, "image")}`),
    ".",
  );
  drawWaiting(lane.list, SAMPLES);
  try {
    const { results } = await samples(gallery, SAMPLES);
    if (state !== before || state.query) return;
    lane.list.replaceChildren(
      ...results.map((item) =>
        h(
          "li",
          { className: "card" },
          h(
            "button",
            { type: "button", className: "picture", onclick: () => alike(item, gallery.name) },
            h("img", {
              src: item.thumbnail,
              alt: `Search by ${titleOf(item)}`,
              width: 256,
              height: 256,
              decoding: "async",
            }),
          ),
        ),
      ),
    );
  } catch (error) {
    if (state === before) lane.fail(error);
  }
}

function drawPreview() {
  const { query } = state;
  const asked = query && question();
  const key = JSON.stringify(query && [query.id, query.gallery, query.image, query.crop]);
  $("#pick-text").textContent = query ? "Change image" : "Choose an image";
  $("#preview").hidden = !asked;
  if (!asked || key === previewed) return;
  previewed = key;
  if (query.id) {
    const picture = queryImage(imageAddress(query.id, query.gallery), "Query item");
    $("#preview").replaceChildren(
      h("div", { className: "stage" }, picture),
      h("p", { className: "soft small name" }, recent.find((one) => one.query.id === query.id)?.title ?? query.id),
    );
    return;
  }
  const changed = (crop) => {
    previewed = JSON.stringify([query.id, query.gallery, query.image, crop]); // already drawn as it is
    return go({ query: { image: query.image, crop }, policy: "" });
  };
  $("#preview").replaceChildren(...cropper(asked, query.crop, changed));
}

/** What cannot be shown is no query to go back to. */
function forgetRecent(one) {
  if (recent.includes(one)) recent.splice(recent.indexOf(one), 1);
  drawRecent();
}

function drawRecent() {
  $("#recent").hidden = recent.length < 2; // the newest is in view already
  $("#recent-list").replaceChildren(
    ...recent.map((one) =>
      h(
        "li",
        {},
        h(
          "button",
          {
            type: "button",
            title: one.title,
            "aria-label": `Search again by ${one.title}`,
            onclick: () => ask(one.query, one),
          },
          h("img", { src: one.src, alt: "", width: 48, height: 48, onerror: () => one.query.image && forgetRecent(one) }),
        ),
      ),
    ),
  );
}

// ---- filters ----

let facetsOf = "";
function drawFilters(gallery) {
  const key = JSON.stringify([gallery.name, state.facets]);
  if (key !== facetsOf) {
    facetsOf = key;
    drawFacets(gallery, state.facets, (facets) => {
      facetsOf = JSON.stringify([gallery.name, facets]); // drawn already: the focus stays on what was ticked
      filter({ facets });
    }, countAgain);
  }
  countAgain();
  const chosen = chosenChips(state.facets, pick);
  $("#chosen").hidden = !chosen.length;
  $("#chosen").replaceChildren(...chosen);
  if (document.activeElement !== $("#where")) $("#where").value = state.where;
  const n_on = Object.keys(state.facets).length + Number(state.where !== "");
  $("#filters-on").hidden = !n_on;
  $("#filters-on").textContent = n_on;
  $("#clear").hidden = !n_on;
}

function countAgain() {
  const gallery = galleries.find(({ name }) => name === state.lanes[0].gallery);
  countCodesAgain(gallery, composed(state.facets, state.where), state.facets);
}

const filter = (changes) => go({ ...changes, browse: { ...state.browse, page: 0 } });

function clearFilters() {
  $("#where").value = "";
  filter({ facets: {}, where: "" });
}

const browseAll = (on) => go({ query: null, browse: plainBrowse(on) }, { step: true });

function applyWhere() {
  if ($("#where").value.trim() !== state.where) filter({ where: $("#where").value.trim() });
}

function showFilterFault(text) {
  $("#where-error").hidden = !text;
  $("#where-error").textContent = text;
  $("#where").setAttribute("aria-invalid", text !== "");
}

const refused = (error) => error.status === 422 && state.where && showFilterFault(error.message);

// ---- the rest of the page ----

const setLane = (place, changes) =>
  go({ lanes: state.lanes.map((lane, at) => (at === place ? { ...lane, ...changes } : lane)) });

function toggleCompare() {
  if (state.lanes.length > 1) return go({ lanes: [state.lanes[0]] }, { step: true });
  const [first] = state.lanes;
  const other = galleries.find(({ name }) => name !== first.gallery);
  const second = other
    ? { ...first, gallery: other.name }
    : { ...plainLane(first.gallery), rerank: first.rerank ? "" : "kreciprocal" };
  return go({ lanes: [first, second] }, { step: true });
}

function showFault(text) {
  $("#query-error").hidden = !text;
  $("#query-error").textContent = text;
}

const THEMES = { "": "Theme: system", light: "Theme: light", dark: "Theme: dark" };
function setTheme(theme) {
  if (theme) localStorage.setItem("theme", theme);
  else localStorage.removeItem("theme");
  document.documentElement.dataset.theme = theme;
  $("#theme").title = THEMES[theme];
  $("#theme .name").textContent = THEMES[theme];
}

function nextTheme() {
  const names = Object.keys(THEMES);
  setTheme(names[(names.indexOf(localStorage.getItem("theme") ?? "") + 1) % names.length]);
}

function askForToken(isRefused) {
  const dialog = $("#sign-in");
  $("#token").value = "";
  $("#sign-in-error").hidden = !isRefused;
  dialog.returnValue = "";
  dialog.showModal();
  return new Promise((done) =>
    dialog.addEventListener("close", () => done(dialog.returnValue === "enter" ? $("#token").value.trim() : null), {
      once: true,
    }),
  );
}

function watch() {
  const release = settled(250, () => go({ k: Number($("#k").value) }));
  $("#k").addEventListener("input", () => {
    $("#k-shown").textContent = $("#k").value;
    release();
  });
  $("#where").addEventListener("change", applyWhere);
  $("#where").addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey) return;
    event.preventDefault();
    applyWhere();
  });
  $("#clear").addEventListener("click", clearFilters);
  $("#filters").addEventListener("toggle", countAgain);
  $("#compare").addEventListener("click", toggleCompare);
  $("#browse").addEventListener("click", () => browseAll(!isBrowsing(state)));
  $("#forget").addEventListener("click", () => {
    forgetToken();
    location.assign(".");
  });
  addEventListener("popstate", () => {
    if ($("#detail").open) closeDetail();
    state = fromAddress(
      location.search,
      galleries.map(({ name }) => name),
    );
    draw();
  });
  document.addEventListener("click", (event) => {
    for (const open of document.querySelectorAll(".options[open]")) if (!open.contains(event.target)) open.open = false;
  });
}

async function start() {
  setTheme(localStorage.getItem("theme") ?? "");
  onTokenNeeded(askForToken);
  try {
    galleries = await readGalleries();
  } catch (error) {
    const again = h("button", { type: "button", onclick: start }, "Try again");
    $("#lanes").replaceChildren(banner("fault", "alert", error.title || "The page cannot start", error.message, again));
    return;
  }
  $("#forget").hidden = !hasToken();
  state = fromAddress(
    location.search,
    galleries.map(({ name }) => name),
  );
  $("#lanes").replaceChildren();
  watch();
  begin();
  await draw();
}

$("#theme").addEventListener("click", nextTheme); // before the galleries are known
watchInputs(takeImage, showFault);
start();
