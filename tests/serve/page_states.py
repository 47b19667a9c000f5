"""Every state of the search page and how to reach it; what must hold of its layout at any width, light and dark."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from page_server import chosen, encoded, make_galleries, served, shape
from PIL import Image, ImageOps

from sightline.gallery.gallery import Gallery

WIDTHS = {"phone": 390, "tablet": 768, "desktop": 1280}
SCHEMES = ("light", "dark")


def landscape(image: Image.Image) -> bytes:
    """The image in the middle of one three times as wide."""
    return encoded(ImageOps.pad(image, (960, 320), color=image.getpixel((0, 0))))


@dataclass(frozen=True)
class State:
    """A state of the page."""

    path: str  # where to start
    shows: str  # a selector of what is there once the page has reached it
    file: dict | None = None  # an image that a person chooses
    hold: str | None = None  # addresses whose requests are never answered
    cut: str | None = None  # addresses whose requests fail, as they do offline
    click: str | None = None  # what a person clicks at the end, one after the other with "then" between them
    relabel: str | None = None  # the class that a person then gives the item

    def reach(self, page) -> None:
        if self.hold:
            page.route(self.hold, lambda route: None)
        if self.cut:
            page.route(self.cut, lambda route: route.abort())
        page.goto(f"/{self.path}")
        if self.file:
            page.locator("#holds", has_text="images in").wait_for(state="attached")
            page.set_input_files("#file", self.file)
        for selector in self.click.split(" then ") if self.click else []:
            page.locator(selector).first.click()
        if self.relabel:
            page.fill(".relabel input", self.relabel)
            page.click(".relabel button")
        page.locator(self.shows).first.wait_for()
        page.wait_for_function(DRAWN)


CODES = "#filters > summary then [data-field=codes] > summary"
BY_ID = "?id=no%2F1&of=plain"
NEGATIVE = chosen(landscape(ImageOps.invert(shape("circle", "red"))))
STATES = {
    "empty": State("?gallery=empty", ".banner.none"),
    "begun": State("", ".card img"),
    "results": State(BY_ID, ".card[data-relation]"),
    "detail": State(BY_ID, "#detail[open] img", click=".card .picture"),
    "relabelled": State(BY_ID, ".relabel .link", click=".card .picture", relabel="green circle"),
    "compared": State(f"{BY_ID}&gallery=plain&gallery2=other", "#both:not([hidden])"),
    "rejected": State("?gallery=strict", ".banner.outside", NEGATIVE),
    "rejected-shown": State("?gallery=strict&policy=flag", ".banner.outside", NEGATIVE, click=".banner button"),
    "no-match": State("?gallery=picky", ".banner.far", chosen(landscape(shape("circle", "red", 2)))),
    "browse": State("?browse", ".class-head"),
    "codes": State("?id=no%2F6&of=other&gallery=other", ".code", click=CODES),
    "filtered": State('?only={"year":{"max":2005}}', ".card[data-id]"),
    "filtered-to-nothing": State("?where=year<0", ".banner.none button"),
    "error": State("", ".banner.fault", chosen(b"no image")),
    "slow": State(BY_ID, ".waiting", hold="**/v1/search/id"),
    "offline": State(BY_ID, ".banner.fault button", cut="**/v1/search/id"),
    "offline-at-start": State("", ".banner.fault button", cut="**/v1/galleries"),
}

# All pictures in view are there, and the fonts with them.
DRAWN = """() => document.fonts.status === "loaded" && [...document.querySelectorAll("img")]
    .filter((one) => one.checkVisibility() && one.getBoundingClientRect().top < innerHeight)
    .every((one) => one.complete)"""

FAULTS = Path(__file__).with_name("layout_faults.js").read_text(encoding="utf-8")


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
