// The HTTP API as functions. An error becomes a Problem whose message a person can read.

const LONGEST_WAIT = 10; // seconds that a busy server may ask us to wait before we say so instead
const TRIES = 3;
const RENEWED = 300_000; // milliseconds after which the cookie is renewed; the server's lasts longer

export class Problem extends Error {
  constructor(status, title, detail) {
    super(detail || title);
    Object.assign(this, { status, title });
  }
}

let token = sessionStorage.getItem("token") ?? "";
let signingIn = null; // one dialog, however many requests wait for it
let sessionSince = 0;
let askForToken = async () => null;

/** Who to ask when the server wants a token: a function (refused: bool) => Promise of the token, or of null. */
export const onTokenNeeded = (ask) => (askForToken = ask);
export const hasToken = () => token !== "";

export function forgetToken() {
  token = "";
  sessionStorage.removeItem("token");
}

/** The cookie that lets <img> elements load; false where the token is not accepted. It ends before the token does. */
async function openSession() {
  const response = await send("v1/session", { method: "POST" });
  if (response.status === 401) return false;
  sessionStorage.setItem("token", token);
  sessionSince = Date.now();
  return true;
}

async function keepSession() {
  if (hasToken() && Date.now() - sessionSince > RENEWED) await openSession();
}

async function signIn() {
  let refused = hasToken();
  for (;;) {
    const entered = await askForToken(refused);
    if (!entered) throw new Problem(401, "Token required", "This gallery is not public. Enter a token to search it.");
    token = entered;
    if (await openSession()) return;
    forgetToken();
    refused = true;
  }
}

async function send(path, { headers, ...options } = {}) {
  try {
    const bearer = token ? { Authorization: `Bearer ${token}` } : {};
    return await fetch(path, { ...options, headers: { Accept: "application/json", ...bearer, ...headers } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, "No answer from the server", "The server does not answer. It may have stopped, or the network is down.");
  }
}

const pause = (seconds) => new Promise((done) => setTimeout(done, 1000 * seconds));

async function request(path, options) {
  for (let tried = 1; ; tried += 1) {
    const response = await send(path, options);
    if (response.ok) return response;
    if (response.status === 401) {
      signingIn ??= signIn().finally(() => (signingIn = null));
      await signingIn;
      continue;
    }
    const wait = Number(response.headers.get("Retry-After") ?? NaN);
    if ([429, 503].includes(response.status) && tried < TRIES && wait <= LONGEST_WAIT) {
      await pause(wait);
      continue;
    }
    const body = await response.json().catch(() => ({}));
    throw new Problem(response.status, body.title ?? response.statusText, body.detail ?? TITLES[response.status] ?? "");
  }
}

const TITLES = {
  413: "The image is larger than this server accepts.",
  415: "This file is not an image that the server can read.",
  429: "The server is busy. Try again in a moment.",
};

export async function galleries() {
  await keepSession();
  return (await request("v1/galleries")).json();
}

/** Search by an image {file, crop} or an item {id, gallery}. */
export async function search(query, settings, signal) {
  await keepSession();
  if (query.file) return searchByImage(query, settings, signal);
  const { policy, ...asked } = settings; // an item of a gallery belongs to it
  try {
    return await post("v1/search/id", { id: query.id, ...asked }, signal);
  } catch (error) {
    // When two galleries are compared, the other one may not hold the item: it is asked by the image itself.
    if (error.status !== 404 || query.gallery === settings.gallery) throw error;
    const image = await request(imageAddress(query.id, query.gallery), { signal });
    return searchByImage({ file: await image.blob(), name: "item" }, settings, signal);
  }
}

function searchByImage({ file, name, crop }, settings, signal) {
  const form = new FormData();
  form.append("image", file, name || "image");
  for (const [key, value] of Object.entries(settings)) if (value !== null && value !== "") form.append(key, value);
  if (crop) form.append("crop", crop.map((side) => side.toFixed(4)).join(","));
  return request("v1/search", { method: "POST", body: form, signal }).then((response) => response.json());
}

/** Items to begin with: those nearest to a random direction. */
export function samples(gallery, k) {
  const vector = Array.from({ length: gallery.dim }, () => Math.random() - 0.5);
  return post("v1/search/vector", { gallery: gallery.name, vector, k, policy: "ignore" });
}

/** One page of a gallery's items: {total, items}. */
export async function browseItems(gallery, where, { sort, level, page }, limit, signal) {
  await keepSession();
  const asked = { gallery, sort, level, offset: page * limit, limit, ...(where ? { where } : {}) };
  return (await request(`v1/items?${new URLSearchParams(asked)}`, { signal })).json();
}

/** How many items that pass a filter have each code: {levels: {"": [{code, count, has_more}], "26": ...}}. */
export async function countCodes(gallery, field, within, where) {
  const asked = new URLSearchParams({ gallery, field, ...(where ? { where } : {}) });
  for (const code of within) asked.append("within", code);
  return (await request(`v1/codes?${asked}`)).json();
}

/** Set the finest label of an item; null takes a correction back. Resolves to {item, is_new_label}. */
export const relabel = (id, gallery, label) =>
  request(`v1/items/${encodeURIComponent(id)}/label?gallery=${encodeURIComponent(gallery)}`, {
    method: "POST",
    body: JSON.stringify({ label }),
    headers: { "Content-Type": "application/json" },
  }).then((response) => response.json());

const post = (path, body, signal) =>
  request(path, {
    method: "POST",
    body: JSON.stringify(Object.fromEntries(Object.entries(body).filter(([, value]) => value !== null && value !== ""))),
    headers: { "Content-Type": "application/json" },
    signal,
  }).then((response) => response.json());

/** An id is encoded whole: browsers would resolve the dots of "../a.png" themselves. */
export const imageAddress = (id, gallery, kind = "image") =>
  `v1/items/${encodeURIComponent(id)}/${kind}?gallery=${encodeURIComponent(gallery)}`;
