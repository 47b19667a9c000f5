// What is asked, as one value that lives in the address: a link or the back button brings it back.
//
// query: null | {id, gallery} | {image, crop}: an image has a number, its bytes stay in this tab and go nowhere else.
// lanes: one, or two that are compared: {gallery, expand, alpha, rerank}.
// browse: {on, sort, level, page}: the gallery without a query, from page 0 on. Filters without a query browse too.

export const K = { least: 1, most: 200, usual: 30 };
export const ALPHA = 2;

export const SORTS = { class: "Sort by class", least_typical: "Sort by typicality" };
export const plainBrowse = (on = false) => ({ on, sort: "class", level: 0, page: 0 });

/** Does the page list the gallery? Without a query, if a person asked for it or has set a filter. */
export const isBrowsing = ({ query, browse, facets, where }) =>
  !query && (browse.on || Object.keys(facets).length > 0 || where !== "");

export const plainLane = (gallery) => ({ gallery, expand: 0, alpha: ALPHA, rerank: "" });

const number = (text, least, most, otherwise) => {
  const value = Number(text);
  return text !== null && text !== "" && Number.isFinite(value) ? Math.min(most, Math.max(least, value)) : otherwise;
};

export function toAddress(state) {
  const address = new URLSearchParams();
  const { query } = state;
  if (query?.id) {
    address.set("id", query.id);
    address.set("of", query.gallery);
  } else if (query) {
    address.set("image", query.image);
    if (query.crop) address.set("crop", query.crop.map((side) => +side.toFixed(4)).join(","));
  }
  state.lanes.forEach((lane, place) => {
    const mark = place ? "2" : "";
    address.set(`gallery${mark}`, lane.gallery);
    if (lane.expand) address.set(`expand${mark}`, lane.expand);
    if (lane.expand && lane.alpha !== ALPHA) address.set(`alpha${mark}`, lane.alpha);
    if (lane.rerank) address.set(`rerank${mark}`, lane.rerank);
  });
  if (state.k !== K.usual) address.set("k", state.k);
  if (Object.keys(state.facets).length) address.set("only", JSON.stringify(state.facets));
  if (state.where) address.set("where", state.where);
  if (state.policy) address.set("policy", state.policy);
  if (!query && state.browse.on) address.set("browse", "");
  if (isBrowsing(state)) {
    if (state.browse.sort !== "class") address.set("sort", state.browse.sort);
    if (state.browse.level) address.set("level", state.browse.level);
    if (state.browse.page) address.set("page", state.browse.page);
  }
  return `?${address}`;
}

export function fromAddress(text, names) {
  const address = new URLSearchParams(text);
  const crop = (address.get("crop") ?? "").split(",").map(Number);
  const lanes = ["", "2"]
    .filter((mark) => !mark || address.has("gallery2"))
    .map((mark) => ({
      gallery: names.includes(address.get(`gallery${mark}`)) ? address.get(`gallery${mark}`) : names[0],
      expand: number(address.get(`expand${mark}`), 0, 50, 0),
      alpha: number(address.get(`alpha${mark}`), 0, 10, ALPHA),
      rerank: address.get(`rerank${mark}`) === "kreciprocal" ? "kreciprocal" : "",
    }));
  let query = null;
  if (address.has("id")) query = { id: address.get("id"), gallery: address.get("of") ?? lanes[0].gallery };
  else if (address.has("image")) query = { image: address.get("image"), crop: isCrop(crop) ? crop : null };
  return {
    query,
    lanes,
    k: Math.round(number(address.get("k"), K.least, K.most, K.usual)),
    facets: readFacets(address.get("only")),
    where: address.get("where") ?? "",
    policy: ["flag", "ignore"].includes(address.get("policy")) ? address.get("policy") : "",
    browse: {
      on: address.has("browse"),
      sort: address.get("sort") in SORTS ? address.get("sort") : "class",
      level: Math.round(number(address.get("level"), 0, 9, 0)),
      page: Math.round(number(address.get("page"), 0, 1e6, 0)),
    },
  };
}

const isCrop = (sides) =>
  sides.length === 4 && sides.every((side) => side >= 0 && side <= 1) && sides[0] < sides[2] && sides[1] < sides[3];

function readFacets(text) {
  try {
    const facets = JSON.parse(text ?? "{}");
    return facets && typeof facets === "object" && !Array.isArray(facets) ? facets : {};
  } catch {
    return {}; // a link that somebody cut short
  }
}
