"""Every state of the search page and how to reach it; what must hold of its layout at any width, light and dark."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from page_server import make_galleries, served, shape
from PIL import Image, ImageOps
from served_galleries import encoded

from sightline.gallery.gallery import Gallery

WIDTHS = {"phone": 390, "tablet": 768, "desktop": 1280}
SCHEMES = ("light", "dark")


def upload(data: bytes) -> dict:
    """A file as a person would choose it."""
    return {"name": "photo.png", "mimeType": "image/png", "buffer": data}


def landscape(image: Image.Image) -> bytes:
    """The image in the middle of one three times as wide."""
    return encoded(ImageOps.pad(image, (960, 320), color=image.getpixel((0, 0))))


@dataclass(frozen=True)
class State:
    """A state of the page.

    Attributes:
        path: where to start.
        shows: a selector of what is there once the page has reached it.
        file: an image that a person chooses.
        hold: addresses whose requests are never answered.
        cut: addresses whose requests fail, as they do offline.
        click: what a person clicks at the end.
        relabel: the class that a person then gives the item.
    """

    path: str
    shows: str
    file: dict | None = None
    hold: str | None = None
    cut: str | None = None
    click: str | None = None
    relabel: str | None = None

    def reach(self, page) -> None:
        """Bring a page of a browser to this state."""
        if self.hold:
            page.route(self.hold, lambda route: None)
        if self.cut:
            page.route(self.cut, lambda route: route.abort())
        page.goto(f"/{self.path}")
        if self.file:
            page.locator("#holds", has_text="images in").wait_for(state="attached")
            page.set_input_files("#file", self.file)
        if self.click:
            page.locator(self.click).first.click()
        if self.relabel:
            page.fill(".relabel input", self.relabel)
            page.click(".relabel button")
        page.locator(self.shows).first.wait_for()
        page.wait_for_function(DRAWN)


BY_ID = "?id=no%2F1&of=plain"
NEGATIVE = upload(landscape(ImageOps.invert(shape("circle", "red"))))
STATES = {
    "empty": State("?gallery=empty", ".banner.none"),
    "begun": State("", ".card img"),
    "results": State(BY_ID, ".card[data-relation]"),
    "detail": State(BY_ID, "#detail[open] img", click=".card .picture"),
    "relabelled": State(BY_ID, ".relabel .link", click=".card .picture", relabel="green circle"),
    "compared": State(f"{BY_ID}&gallery=plain&gallery2=other", "#both:not([hidden])"),
    "rejected": State("?gallery=strict", ".banner.outside", NEGATIVE),
    "rejected-shown": State("?gallery=strict&policy=flag", ".banner.outside", NEGATIVE, click=".banner button"),
    "no-match": State("?gallery=picky", ".banner.far", upload(landscape(shape("circle", "red", 2)))),
    "browse": State("?browse", ".class-head"),
    "filtered": State('?only={"year":{"max":2005}}', ".card[data-id]"),
    "filtered-to-nothing": State("?where=year<0", ".banner.none button"),
    "error": State("", ".banner.fault", upload(b"no image")),
    "slow": State(BY_ID, ".waiting", hold="**/v1/search/id"),
    "offline": State(BY_ID, ".banner.fault button", cut="**/v1/search/id"),
    "offline-at-start": State("", ".banner.fault button", cut="**/v1/galleries"),
}

# All pictures in view are there, and the fonts with them.
DRAWN = """() => document.fonts.status === "loaded" && [...document.querySelectorAll("img")]
    .filter((one) => one.checkVisibility() && one.getBoundingClientRect().top < innerHeight)
    .every((one) => one.complete)"""

# What is wrong with the layout, one sentence each.
FAULTS = """() => {
    const faults = [];
    const say = (what, element) => faults.push(`${what}: <${element.tagName} class="${element.className}"> ` +
        (element.textContent || "").trim().slice(0, 60));
    const isClipped = (element) => {
        for (let up = element; up; up = up.parentElement)
            if (getComputedStyle(up).clipPath !== "none" || (up !== element && getComputedStyle(up).overflowX === "auto")
                || up.classList.contains("skip")) return true;
        return false;
    };
    const all = [...document.body.querySelectorAll("*")].filter((one) => one.checkVisibility() && !isClipped(one));
    if (document.documentElement.scrollWidth > innerWidth)
        faults.push(`the page is ${document.documentElement.scrollWidth} wide, the window ${innerWidth}`);
    for (const one of all) {
        const box = one.getBoundingClientRect();
        if (box.width && (box.left < -1 || box.right > innerWidth + 1)) say(`from ${box.left} to ${box.right}`, one);
        const isTarget = one.matches("button:not(.link), select, .pick"); // for a finger
        if (innerWidth < 400 && isTarget && box.height < 30) say(`${box.height} high`, one);
    }
    const canvas = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    const rgba = (colour) => {
        canvas.clearRect(0, 0, 1, 1);
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data].map((part) => part / 255);
    };
    const over = ([r, g, b, a], below) => [r, g, b].map((part, at) => a * part + (1 - a) * below[at]);
    const ground = (element) => {
        if (!element) return [1, 1, 1];
        const own = rgba(getComputedStyle(element).backgroundColor);
        return own[3] === 1 ? own.slice(0, 3) : over(own, ground(element.parentElement));
    };
    const light = (colour) => colour.map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
        .reduce((sum, part, at) => sum + part * [0.2126, 0.7152, 0.0722][at], 0);
    const opacity = (element) => element ? Number(getComputedStyle(element).opacity) * opacity(element.parentElement) : 1;
    for (const one of all) {
        for (const text of [...one.childNodes].filter((node) => node.nodeType === 3 && node.data.trim())) {
            for (const word of text.data.matchAll(/[^\\s\\/–-]+/g)) {
                const range = document.createRange();
                range.setStart(text, word.index);
                range.setEnd(text, word.index + word[0].length);
                if (new Set([...range.getClientRects()].map((box) => Math.round(box.top))).size > 1)
                    say(`the word ${word[0]} is broken`, one);
            }
            if (one.closest(":disabled")) continue;
            const below = ground(one), style = getComputedStyle(one);
            const own = rgba(style.color);
            own[3] *= opacity(one);
            const [low, high] = [light(over(own, below)), light(below)].sort((a, b) => a - b);
            const size = parseFloat(style.fontSize), isLarge = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
            const contrast = (high + 0.05) / (low + 0.05);
            const isMark = one.ariaHidden === "true"; // a drawing beside a word
            if (contrast < (isLarge || isMark ? 3 : 4.5)) say(`contrast ${contrast.toFixed(2)}`, one);
        }
    }
    return faults;
}"""


@contextmanager
def serving_states(folder: Path) -> Iterator[str]:
    """The address of a service whose galleries can show every state."""
    made = make_galleries(folder)
    with Gallery.open(made["plain"], read_only=True) as plain, Gallery.create(folder / "empty", plain.encoder()):
        pass
    with served(*made.values(), folder / "empty") as address:
        yield address


def looks(page) -> Iterator[str]:
    """The name of every width and colour scheme, each once the page has taken it on."""
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        for name, width in WIDTHS.items():
            page.set_viewport_size({"width": width, "height": 844 if name == "phone" else 900})
            page.wait_for_function(DRAWN)
            yield f"{name}-{scheme}"
