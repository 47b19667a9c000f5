"""The page on which a person reviews the groups of a label tree, for one person on this machine."""

import threading
import webbrowser
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from fastapi import APIRouter, FastAPI, Request, Response
from numpy.typing import NDArray
from pydantic import BaseModel

from sightline.errors import InputError
from sightline.hierarchy.cluster import ClusterOptions, find_groups, group_names
from sightline.hierarchy.collect import BETWEEN
from sightline.hierarchy.journal import Change, Review, group_of
from sightline.hierarchy.term_vectors import Vectors, read_vectors
from sightline.serve.guard import Gate, guarded_app
from sightline.serve.pictures import Pictures
from sightline.serve.run import run_app
from sightline.serve.schemas import problem_response
from sightline.serve.settings import ServeSettings

MEMBERS_SHOWN, NEAR_SHOWN, FOUND_SHOWN = 400, 400, 50
THUMB = 112


class ReviewAction(BaseModel):
    """A change, and the length of the journal when the page was drawn."""

    version: int
    change: Change


class ReviewPage:
    """Answers to the page's requests, one per public method.

    Args:
        review: the journal and its state.
    """

    def __init__(self, review: Review) -> None:
        self.review = review
        self._pictures = Pictures((), 50_000_000, 64_000_000)
        terms, self.vectors = read_vectors(review.folder)
        self.texts: list[str] = terms["text"].to_list()
        self.place = {text: row for row, text in enumerate(self.texts)}
        self.counts = terms.select(pl.lit(1), "n_labels", "n_images").to_numpy()
        self.labels = _lists(terms["labels"])
        self.examples = _lists(terms["examples"])
        if unknown := [text for text in review.state.home if text not in self.place]:
            raise InputError(f"{review.folder / 'clusters.csv'}: {unknown[0]!r} is not in terms.csv: run cluster again")

    def overview(self) -> dict[str, Any]:
        """All groups with their counts, and what can be undone."""
        state = self.review.state
        counts = {number: np.zeros(3, np.int64) for number in state.groups}
        for number, group in sorted(state.groups.items(), key=lambda pair: pair[1].level):  # children first
            if group.level == 1:
                counts[number] += self.counts[self._rows(number)].sum(0)
            if group.parent is not None:
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

    def members(self, group: int) -> dict[str, Any]:
        """The members of a group, the most typical first: texts at level 1, groups above."""
        state = self.review.state
        if group_of(state, group).level > 1:
            return {"groups": [{"id": child, "images": self._with_image(child)} for child in state.children(group)]}
        rows = self._rows(group)
        order = rows[np.linalg.norm(self.vectors[rows] - self._centre(group), axis=1).argsort(kind="stable")]
        return {"texts": [self._text(row) for row in order[:MEMBERS_SHOWN].tolist()], "n": len(rows)}

    def left_out(self) -> dict[str, Any]:
        """The texts that belong to no group."""
        texts = self.review.state.left_out()
        return {"texts": [self._text(self.place[text]) for text in texts[:MEMBERS_SHOWN]], "n": len(texts)}

    def near(self, group: int, level: int) -> list[int]:
        """The other groups of a level, the nearest to a group first."""
        own = self._centre(group)
        others = [number for number, one in self.review.state.groups.items() if one.level == level and number != group]
        gaps = [float(np.linalg.norm(self._centre(other) - own)) for other in others]
        return [others[place] for place in np.argsort(gaps, kind="stable").tolist()][:NEAR_SHOWN]

    def find(self, words: str = "") -> list[dict[str, Any]]:
        """Texts that contain all the words, with their groups."""
        wanted = words.lower().split()
        hits = ((text, home) for text, home in self.review.state.home.items() if all(word in text for word in wanted))
        return [{"text": text, "group": home} for text, home in islice(hits, FOUND_SHOWN if wanted else 0)]

    def act(self, action: ReviewAction) -> dict[str, Any]:
        """Apply a change and return all groups."""
        if action.version != self.review.version:
            raise InputError("the groups were changed elsewhere; the page now shows their current state")
        change = action.change
        self.review.act(self._halves(change) if change.get("action") == "halve" else change)
        return self.overview()

    def _halves(self, change: Change) -> Change:
        """A split in two by k-means, as a change for the journal."""
        number: Any = change.get("group")
        state, group = self.review.state, group_of(self.review.state, number)
        parts: list[Any] = state.children(number) if group.level > 1 else state.texts(number)
        if len(parts) < 2:
            raise InputError(f"{group.name!r} must have at least 2 members to be split")
        points = np.stack([self._centre(part) if group.level > 1 else self.vectors[self.place[part]] for part in parts])
        halves = find_groups(points.astype(np.float32), ClusterOptions(ks=(2,)))[0]
        if halves.max() == 0:
            raise InputError(f"the members of {group.name!r} are identical: select some by hand")
        texts = [state.groups[part].name if group.level > 1 else part for part in parts]
        taken = {one.name for one in state.groups.values() if one.level == group.level}
        called = group_names(texts, halves, np.zeros(len(parts)))[1]
        name = next(name for name in chain([called], (f"{called} {n}" for n in count(2))) if name not in taken)
        moved = [part for part, half in zip(parts, halves.tolist(), strict=True) if half == 1]
        return {"action": "split", "group": number, "name": name, "groups" if group.level > 1 else "texts": moved}

    def picture(self, text: str, n: int) -> Response:
        """A thumbnail of a text's example image."""
        shown = self.examples[self.place[text]] if text in self.place else []
        if not 0 <= n < len(shown):
            raise InputError(f"no image {n} of {text!r}")
        return self._pictures.respond(Path(shown[n]), {}, THUMB)

    def _rows(self, number: int) -> NDArray[np.int64]:
        return np.array([self.place[text] for text in self.review.state.texts(number)], np.int64)

    def _centre(self, number: int) -> Vectors:
        return np.asarray(self.vectors[self._rows(number)].mean(0))

    def _text(self, row: int) -> dict[str, Any]:
        return {
            "text": self.texts[row],
            "counts": self.counts[row].tolist(),
            "labels": self.labels[row],
            "images": min(3, len(self.examples[row])),
        }

    def _with_image(self, number: int) -> list[str]:
        """Up to 3 texts of a group that have an image."""
        return [text for text in self.review.state.texts(number) if self.examples[self.place[text]]][:3]


def create_review_app(review: Review, settings: ServeSettings) -> FastAPI:
    """The application of one review; it has no gallery."""

    def locked(answer: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(answer)
        def answer_locked(**fields: Any) -> Any:
            with review.lock:
                return answer(**fields)

        return answer_locked

    page, router = ReviewPage(review), APIRouter()
    router.add_api_route("/picture", page.picture)
    router.add_api_route("/api/act", locked(page.act), methods=["POST"])
    for answer in (page.overview, page.members, page.left_out, page.near, page.find):
        router.add_api_route(f"/api/{answer.__name__.replace('_', '-')}", locked(answer))
    app = guarded_app(Gate(settings), router, "review.html", openapi_url=None)
    app.add_exception_handler(InputError, _refuse_change)
    return app


async def _refuse_change(_: Request, error: Exception) -> Response:
    return problem_response(409, str(error))


def serve_review(review: Review, host: str, port: int, open_page: bool, tell: Callable[[str], object]) -> None:
    """Serve the page until Ctrl-C.

    Args:
        review: the journal and its state.
        host: a loopback address: the page has no tokens.
        port: 0 picks a free one.
        open_page: open the page in a browser.
        tell: called with the address once the service listens.
    """
    settings = ServeSettings(host=host, port=port, rate=None)
    if not settings.is_loopback():
        raise InputError(f"--host must be a loopback address such as 127.0.0.1, got {host}: the review page has no tokens")

    def begin(address: str) -> None:
        tell(f"{address}/ (stop with Ctrl-C)")
        if find_spec("sklearn"):  # or the first split would wait for it
            threading.Thread(target=import_module, args=("sklearn.cluster",), daemon=True).start()
        if open_page:
            webbrowser.open(address)

    with suppress(KeyboardInterrupt):  # uvicorn re-raises the signal after it has shut down
        run_app(lambda: create_review_app(review, settings), settings, begin, log_level="WARNING")


def _lists(column: pl.Series) -> list[list[str]]:
    return [text.split(BETWEEN) if text else [] for text in column]
