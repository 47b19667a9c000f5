"""The page on which a person reviews the groups of a label tree, for one person on this machine."""

import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from itertools import chain, count, islice
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import polars as pl
from fastapi import APIRouter, Depends, FastAPI, Request, Response
from numpy.typing import NDArray
from pydantic import BaseModel

from sightline.errors import InputError
from sightline.hierarchy.cluster import ClusterOptions, clustered, group_names
from sightline.hierarchy.collect import BETWEEN
from sightline.hierarchy.embed import Vectors, read_vectors
from sightline.hierarchy.review import Change, Review, group_of
from sightline.serve.guard import Gate, guarded_app
from sightline.serve.pictures import Picture, Pictures, web_response
from sightline.serve.run import run_app
from sightline.serve.schemas import problem_response
from sightline.serve.settings import ServeSettings

MEMBERS_SHOWN, NEAR_SHOWN, FOUND_SHOWN = 400, 400, 50
THUMB = 112
router = APIRouter()


class ReviewPage:
    """What the page asks for, without the protocol.

    Args:
        review: the journal and its state.
    """

    def __init__(self, review: Review) -> None:
        self.review = review
        self._pictures = Pictures((), 50_000_000, 64_000_000)
        terms, self.vectors = read_vectors(review.folder)
        self.texts: list[str] = terms["text"].to_list()
        self.place = {text: row for row, text in enumerate(self.texts)}
        self.n_labels, self.n_images = terms["n_labels"].to_numpy(), terms["n_images"].to_numpy()
        self.labels = _lists(terms["labels"])
        self.examples = _lists(terms["examples"])
        unknown = [text for text in review.state.home if text not in self.place]
        if unknown:
            raise InputError(f"{review.folder / 'clusters.csv'}: {unknown[0]!r} is not in terms.csv: run cluster again")

    def overview(self) -> dict[str, Any]:
        """All groups with their counts, and what can be undone."""
        state = self.review.state
        counts = {number: np.zeros(3, np.int64) for number in state.groups}
        for number, group in state.groups.items():
            if group.level == 1:
                rows = self._rows(number)
                counts[number] += len(rows), self.n_labels[rows].sum(), self.n_images[rows].sum()
        for level in range(2, state.n_levels + 1):
            for number, group in state.groups.items():
                if group.level == level - 1 and group.parent is not None:
                    counts[group.parent] += counts[number]
        groups = [
            {"id": n, "name": g.name, "level": g.level, "parent": g.parent, "done": g.done, "counts": counts[n].tolist()}
            for n, g in state.groups.items()
        ]
        return {
            "version": self.review.version,
            "undo": self.review.can_undo,
            "redo": self.review.can_redo,
            "levels": state.n_levels,
            "groups": groups,
            "left_out": len(state.left_out()),
        }

    def members(self, number: int) -> dict[str, Any]:
        """What is in a group, the most typical first: texts of level 1, groups above."""
        if group_of(self.review.state, number).level > 1:
            return {
                "groups": [{"id": child, "images": self._with_image(child)} for child in self.review.state.children(number)]
            }
        rows = self._rows(number)
        centre = self.vectors[rows].mean(0)
        order = rows[np.linalg.norm(self.vectors[rows] - centre, axis=1).argsort(kind="stable")]
        return {"texts": [self._text(row) for row in order[:MEMBERS_SHOWN].tolist()], "n": len(rows)}

    def left_out(self) -> dict[str, Any]:
        """The texts that belong to no group."""
        texts = self.review.state.left_out()
        return {"texts": [self._text(self.place[text]) for text in texts[:MEMBERS_SHOWN]], "n": len(texts)}

    def near(self, number: int, level: int) -> list[int]:
        """The other groups of a level, the nearest to a group first."""
        state = self.review.state
        own = self._centre(number)
        others = [other for other, group in state.groups.items() if group.level == level and other != number]
        gaps = [float(np.linalg.norm(self._centre(other) - own)) for other in others]
        return [others[place] for place in np.argsort(gaps, kind="stable").tolist()][:NEAR_SHOWN]

    def found(self, words: str) -> list[dict[str, Any]]:
        """Texts that hold the words, with the group each is in."""
        wanted = words.lower().split()
        hits = ((text, home) for text, home in self.review.state.home.items() if all(word in text for word in wanted))
        return [{"text": text, "group": home} for text, home in islice(hits, FOUND_SHOWN if wanted else 0)]

    def act(self, version: int, change: Change) -> None:
        """Make a change that was asked for when the journal had ``version`` lines."""
        with self.review.lock:
            if version != self.review.version:
                raise InputError("the groups were changed elsewhere; they are shown as they are now")
            self.review.act(self._halves(change) if change.get("action") == "halve" else change)

    def _halves(self, change: Change) -> Change:
        """A split in two by k-means, as the change that the journal keeps."""
        number: Any = change.get("group")
        state, group = self.review.state, group_of(self.review.state, number)
        parts: list[Any] = state.children(number) if group.level > 1 else state.texts(number)
        if len(parts) < 2:
            raise InputError(f"{group.name!r} has one member: nothing to split")
        points = np.stack([self._centre(part) if group.level > 1 else self.vectors[self.place[part]] for part in parts])
        halves = clustered(points.astype(np.float32), ClusterOptions(ks=(2,)))[0]
        if halves.max() == 0:
            raise InputError(f"the members of {group.name!r} are all alike: choose some by hand")
        texts = [state.groups[part].name if group.level > 1 else part for part in parts]
        taken = {one.name for one in state.groups.values() if one.level == group.level}
        called = group_names(texts, halves, np.zeros(len(parts)))[1]
        name = next(name for name in chain([called], (f"{called} {n}" for n in count(2))) if name not in taken)
        moved = [part for part, half in zip(parts, halves.tolist(), strict=True) if half == 1]
        return {"action": "split", "group": number, "name": name, "groups" if group.level > 1 else "texts": moved}

    def picture(self, text: str, number: int) -> Picture:
        """An example image of a text, small."""
        shown = self.examples[self.place[text]] if text in self.place else []
        if not 0 <= number < len(shown):
            raise InputError(f"no image {number} of {text!r}")
        return self._pictures.picture(Path(shown[number]), {}, THUMB)

    def _rows(self, number: int) -> NDArray[np.int64]:
        return np.array([self.place[text] for text in self.review.state.texts(number)], np.int64)

    def _centre(self, number: int) -> Vectors:
        found: Vectors = self.vectors[self._rows(number)].mean(0)
        return found

    def _text(self, row: int) -> dict[str, Any]:
        return {
            "text": self.texts[row],
            "counts": [1, int(self.n_labels[row]), int(self.n_images[row])],
            "labels": self.labels[row],
            "images": min(3, len(self.examples[row])),
        }

    def _with_image(self, number: int) -> list[str]:
        """Some texts of a group that have an image."""
        return [text for text in self.review.state.texts(number) if self.examples[self.place[text]]][:3]


def page_of(request: Request) -> ReviewPage:
    """The review behind a request."""
    page: ReviewPage = request.app.state.page
    return page


PageOf = Annotated[ReviewPage, Depends(page_of)]


class ReviewAction(BaseModel):
    """A change, and how many lines the journal had when the person saw the groups."""

    version: int
    change: Change


@router.get("/api/overview")
def overview(page: PageOf) -> dict[str, Any]:
    """All groups."""
    with page.review.lock:
        return page.overview()


@router.get("/api/members")
def members(group: int, page: PageOf) -> dict[str, Any]:
    """What is in a group."""
    with page.review.lock:
        return page.members(group)


@router.get("/api/left-out")
def left_out(page: PageOf) -> dict[str, Any]:
    """What is in no group."""
    with page.review.lock:
        return page.left_out()


@router.get("/api/near")
def near(group: int, level: int, page: PageOf) -> list[int]:
    """The groups nearest to a group."""
    with page.review.lock:
        return page.near(group, level)


@router.get("/api/find")
def find(page: PageOf, words: str = "") -> list[dict[str, Any]]:
    """Texts by their words."""
    with page.review.lock:
        return page.found(words)


@router.post("/api/act")
def act(action: ReviewAction, page: PageOf) -> dict[str, Any]:
    """Make a change; all groups after it."""
    with page.review.lock:
        page.act(action.version, action.change)
        return page.overview()


@router.get("/picture")
def picture(text: str, n: int, page: PageOf) -> Response:
    """An example image of a text."""
    made = page.picture(text, n)
    return Response(made.data, headers={"Cache-Control": "max-age=3600"}, media_type=made.media_type)


@router.get("/")
def index() -> Response:
    """The page."""
    return web_response("review.html")


@router.get("/static/{name}")
def static(name: str) -> Response:
    """A file of the page."""
    return web_response(name)


def create_review_app(review: Review, settings: ServeSettings) -> FastAPI:
    """The application of one review; it needs no gallery."""
    app = guarded_app(Gate(settings), [router], openapi_url=None)
    app.state.page = ReviewPage(review)
    app.add_exception_handler(InputError, _refused_change)
    return app


async def _refused_change(_: Request, error: Exception) -> Response:
    return problem_response(409, str(error))


def serve_review(review: Review, host: str, port: int, open_page: bool, tell: Callable[[str], object]) -> None:
    """Serve the page until Ctrl-C.

    Args:
        review: the journal and its state.
        host: a loopback address: the page asks for no token.
        port: 0 takes a free one.
        open_page: in a browser.
        tell: is given the address once it is listened to.
    """
    settings = ServeSettings(galleries=(), host=host, port=port, rate=None)
    if not settings.is_loopback():
        raise InputError(f"--host {host}: the review page asks for no token, so it serves this machine alone: 127.0.0.1")

    def begin(address: str) -> None:
        tell(f"{address}/ (Ctrl-C ends)")
        threading.Thread(target=import_module, args=("sklearn.cluster",), daemon=True).start()  # or the first split waits
        if open_page:
            webbrowser.open(address)

    with suppress(KeyboardInterrupt):  # uvicorn hands the signal on once it has ended
        run_app(lambda: create_review_app(review, settings), settings, begin, log_level="WARNING")


def _lists(column: pl.Series) -> list[list[str]]:
    return [text.split(BETWEEN) if text else [] for text in column]
