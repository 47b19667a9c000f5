// The preview of the query and its crop: drawn with a pointer, adjusted with keys.

import { announce, h, icon, settled } from "./dom.js";

const LEAST = 0.05; // of a side: less than that is a click, not a part
const STEP = 0.02;
const START = [0.15, 0.15, 0.85, 0.85];
const clamp = (value, least = 0, most = 1) => Math.min(most, Math.max(least, value));
const percent = (value) => `${(100 * value).toFixed(2)}%`;

/** The sides in order, at least LEAST apart, inside the image. */
export function tidy([x1, y1, x2, y2]) {
  const across = [Math.min(x1, x2), Math.max(x1, x2)].map((side) => clamp(side));
  const down = [Math.min(y1, y2), Math.max(y1, y2)].map((side) => clamp(side));
  for (const pair of [across, down]) {
    if (pair[1] - pair[0] < LEAST) pair[1] = clamp(pair[0] + LEAST);
    if (pair[1] - pair[0] < LEAST) pair[0] = pair[1] - LEAST;
  }
  return [across[0], down[0], across[1], down[1]];
}

function moved([x1, y1, x2, y2], dx, dy) {
  const right = clamp(dx, -x1, 1 - x2);
  const down = clamp(dy, -y1, 1 - y2);
  return [x1 + right, y1 + down, x2 + right, y2 + down];
}

/** A picture of the query; one of few pixels is drawn larger if its sides allow that. */
export function queryImage(url, alt) {
  const image = h("img", { src: url, alt, draggable: false });
  image.addEventListener("load", () => {
    const { naturalWidth: width, naturalHeight: height } = image;
    image.classList.toggle("small-one", width < 160 && height < 1.5 * width);
  });
  return image;
}

/** A preview whose part can be chosen; changed(crop or null) is called when a choice has settled. */
export function cropper({ url, name }, crop, changed) {
  const box = h("div", {
    className: "part",
    tabIndex: 0,
    role: "group",
    "aria-roledescription": "adjustable part of the image",
    "aria-describedby": "crop-help",
    hidden: true,
  });
  for (const corner of ["nw", "ne", "sw", "se"])
    box.append(h("span", { className: `corner ${corner}`, "data-corner": corner }));
  const image = queryImage(url, `Query image: ${name}`);
  const stage = h("div", { className: "stage" }, image, box);
  const text = h("span", {});
  const button = h("button", { type: "button", className: "quiet", onclick: toggle }, icon("crop"), text);
  const settle = settled(350, () => changed(crop));

  image.addEventListener("error", () => {
    stage.replaceChildren(
      h("p", { className: "lost soft small" }, "No preview: this browser cannot show the file."),
    );
    button.hidden = true;
  });

  function show() {
    box.hidden = crop === null;
    stage.classList.toggle("cropped", crop !== null);
    text.textContent = crop ? "Whole image" : "Crop";
    button.title = crop ? "" : "Or drag on the image to search by a part of it";
    if (!crop) return;
    const [x1, y1, x2, y2] = crop;
    Object.assign(box.style, { left: percent(x1), top: percent(y1), width: percent(x2 - x1), height: percent(y2 - y1) });
    const [left, top, right, bottom] = crop.map((side) => Math.round(100 * side));
    const words = `Crop: from ${left} to ${right} percent across, ${top} to ${bottom} percent down`;
    box.setAttribute("aria-label", words);
  }

  function set(next, { now = false } = {}) {
    crop = next;
    show();
    if (now) changed(crop);
    else settle();
  }

  function toggle() {
    if (crop) {
      set(null, { now: true });
      announce("Searching by the whole image.");
    } else {
      set(START, { now: true });
      box.focus();
    }
  }

  box.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (way) {
      event.preventDefault();
      const [dx, dy] = way.map((side) => side * STEP);
      set(
        event.shiftKey
          ? tidy([crop[0], crop[1], Math.max(crop[0] + LEAST, crop[2] + dx), Math.max(crop[1] + LEAST, crop[3] + dy)])
          : moved(crop, dx, dy),
      );
      announce(box.getAttribute("aria-label"));
    } else if (event.key === "Escape") {
      event.stopPropagation();
      set(null, { now: true });
      button.focus();
    }
  });

  const placeOf = (event) => {
    const edge = stage.getBoundingClientRect();
    return [clamp((event.clientX - edge.left) / edge.width), clamp((event.clientY - edge.top) / edge.height)];
  };

  stage.addEventListener("pointerdown", (event) => {
    if (event.button || button.hidden) return;
    event.preventDefault();
    const from = placeOf(event);
    const before = crop;
    const corner = event.target.dataset.corner;
    const isMove = !corner && event.target === box;
    let to = from;
    stage.setPointerCapture(event.pointerId);

    const follow = (moving) => {
      to = placeOf(moving);
      if (isMove) crop = moved(before, to[0] - from[0], to[1] - from[1]);
      else if (corner) {
        const [x1, y1, x2, y2] = before;
        crop = tidy([
          corner.endsWith("w") ? to[0] : x1,
          corner.startsWith("n") ? to[1] : y1,
          corner.endsWith("e") ? to[0] : x2,
          corner.startsWith("s") ? to[1] : y2,
        ]);
      } else if (Math.max(Math.abs(to[0] - from[0]), Math.abs(to[1] - from[1])) >= LEAST) crop = tidy([...from, ...to]);
      show();
    };
    const done = () => {
      stage.removeEventListener("pointermove", follow);
      if (crop !== null) box.focus({ preventScroll: true });
      if (crop !== before) changed(crop);
    };
    stage.addEventListener("pointermove", follow);
    stage.addEventListener("lostpointercapture", done, { once: true });
  });

  show();
  return [stage, h("p", { className: "soft small name" }, name), button];
}
