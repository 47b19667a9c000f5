"""The page on which groups are reviewed: a small server for one person on this machine; it asks nothing of any other."""

import json
import sys
import threading
import webbrowser
from collections.abc import Callable
from functools import lru_cache, partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from importlib.resources import files
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sightline.data.images import load_image
from sightline.errors import InputError
from sightline.hierarchy.cluster import ClusterOptions, clustered, group_names
from sightline.hierarchy.collect import BETWEEN
from sightline.hierarchy.embed import Vectors, read_vectors
from sightline.hierarchy.review import Change, Review

MEMBERS_SHOWN, NEAR_SHOWN, FOUND_SHOWN = 400, 400, 50
THUMB = 112
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")
LARGEST_BODY = 8_000_000
STATIC = {
    "/": ("review.html", "text/html"),
    "/review.css": ("review.css", "text/css"),
    "/review.js": ("review.js", "text/javascript"),
}


class ReviewPage:
    """What the page asks for, without the protocol.

    Args:
        review: the journal and its state.
    """

    def __init__(self, review: Review) -> None:
        self.review = review
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
        told = {"version": self.review.version, "undo": self.review.can_undo, "redo": self.review.can_redo}
        return told | {"levels": state.n_levels, "groups": groups, "left_out": len(state.left_out())}

    def members(self, number: int) -> dict[str, Any]:
        """What is in a group, the most typical first: texts of level 1, groups above."""
        group = self._group(number)
        if group.level > 1:
            return {
                "groups": [{"id": child, "images": self._pictures(child)} for child in self.review.state.children(number)]
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
        state, shown = self.review.state, []
        for text, home in state.home.items():
            if wanted and all(word in text for word in wanted):
                shown.append({"text": text, "group": home})
                if len(shown) == FOUND_SHOWN:
                    break
        return shown

    def act(self, version: int, change: Change) -> None:
        """Make a change that was asked for when the journal had ``version`` lines."""
        with self.review.lock:
            if version != self.review.version:
                raise InputError("the groups were changed elsewhere; they are shown as they are now")
            self.review.act(self._halves(change) if change.get("action") == "halve" else change)

    def _halves(self, change: Change) -> Change:
        """A split in two by k-means, as the change that the journal keeps."""
        number: Any = change.get("group")
        state, group = self.review.state, self._group(number)
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
        name, n = called, 2
        while name in taken:
            name, n = f"{called} {n}", n + 1
        moved = [part for part, half in zip(parts, halves.tolist(), strict=True) if half == 1]
        return {"action": "split", "group": number, "name": name, "groups" if group.level > 1 else "texts": moved}

    def picture(self, text: str, number: int) -> bytes:
        """An example image of a text, small."""
        shown = self.examples[self.place[text]] if text in self.place else []
        if not 0 <= number < len(shown):
            raise InputError(f"no image {number} of {text!r}")
        return _thumbnail(shown[number])

    def _group(self, number: object) -> Any:
        group = self.review.state.groups.get(number) if isinstance(number, int) else None
        if group is None:
            raise InputError(f"no group {number!r}")
        return group

    def _rows(self, number: int) -> NDArray[np.int64]:
        return np.array([self.place[text] for text in self.review.state.texts(number)], np.int64)

    def _centre(self, number: int) -> Vectors:
        found: Vectors = self.vectors[self._rows(number)].mean(0)
        return found

    def _text(self, row: int) -> dict[str, Any]:
        counts = [1, int(self.n_labels[row]), int(self.n_images[row])]
        return {
            "text": self.texts[row],
            "counts": counts,
            "labels": self.labels[row],
            "images": min(3, len(self.examples[row])),
        }

    def _pictures(self, number: int) -> list[str]:
        """Some texts of a group that have an image."""
        return [text for text in self.review.state.texts(number) if self.examples[self.place[text]]][:3]


class _Handler(BaseHTTPRequestHandler):
    """Routes; one page, one person."""

    timeout = 30.0  # seconds without a byte after which a connection ends, and with it its thread

    def __init__(self, page: ReviewPage, listens_on: str, *args: Any) -> None:
        self.page, self.listens_on = page, listens_on
        super().__init__(*args)

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        asked = {name: values[0] for name, values in parse_qs(address.query).items()}
        if address.path in STATIC:
            name, kind = STATIC[address.path]
            text = (files("sightline.hierarchy") / "web" / name).read_bytes()
            return self._send(HTTPStatus.OK, text, f"{kind}; charset=utf-8")
        if address.path == "/favicon.ico":
            return self._send(HTTPStatus.NO_CONTENT, b"", "image/x-icon")
        routes: dict[str, Callable[[], Any]] = {
            "/api/overview": self.page.overview,
            "/api/members": lambda: self.page.members(int(asked["group"])),
            "/api/left-out": self.page.left_out,
            "/api/near": lambda: self.page.near(int(asked["group"]), int(asked["level"])),
            "/api/find": lambda: self.page.found(asked.get("words", "")),
        }
        if address.path == "/picture":
            return self._answer(lambda: self.page.picture(asked["text"], int(asked["n"])), "image/webp")
        if address.path not in routes:
            return self._send(HTTPStatus.NOT_FOUND, b"not found", "text/plain")
        return self._answer(routes[address.path])

    def do_POST(self) -> None:
        if urlsplit(self.path).path != "/api/act":
            return self._send(HTTPStatus.NOT_FOUND, b"not found", "text/plain")
        told = self.headers.get("Content-Length", "")
        length = int(told) if told.isdecimal() else LARGEST_BODY + 1
        # Another site's page cannot send this type without asking first, which is never answered.
        if self.headers.get_content_type() != "application/json" or length > LARGEST_BODY:
            return self._send(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, b"JSON is needed", "text/plain")
        body = self.rfile.read(length)

        def act() -> Any:
            asked = json.loads(body)
            if not isinstance(asked["change"], dict):
                raise TypeError("change: an object is needed")
            self.page.act(asked["version"], asked["change"])
            return self.page.overview()

        return self._answer(act)

    def _answer(self, make: Callable[[], Any], kind: str = "application/json") -> None:
        host = (self.headers.get("Host") or "").rsplit(":", 1)[0]
        # A page of another site whose name leads here would name that; whoever opens the server to a network allows names.
        if self.listens_on in LOOPBACK and host not in LOOPBACK:
            return self._send(HTTPStatus.FORBIDDEN, b"another host's name", "text/plain")
        try:
            with self.page.review.lock:
                found = make()
        except InputError as error:
            return self._send(HTTPStatus.CONFLICT, json.dumps({"error": str(error)}).encode(), "application/json")
        except (KeyError, ValueError, TypeError) as error:
            return self._send(HTTPStatus.BAD_REQUEST, json.dumps({"error": repr(error)}).encode(), "application/json")
        return self._send(HTTPStatus.OK, found if isinstance(found, bytes) else json.dumps(found).encode(), kind)

    def _send(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "max-age=3600" if kind.startswith("image/") else "no-store")
        self.send_header("Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing of requests."""


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that leaves before its answer is there, as when a page is closed or loaded again."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def create_server(review: Review, host: str = "127.0.0.1", port: int = 0) -> ThreadingHTTPServer:
    """The server, ready to run; its ``server_address`` says where it listens."""
    try:
        return _Server((host, port), partial(_Handler, ReviewPage(review), host))
    except OSError as error:
        raise InputError(f"{host}:{port}: cannot listen there: {error.strerror}; --port 0 takes a free one") from error


def serve_review(review: Review, host: str, port: int, open_page: bool, told: Callable[[str], None]) -> None:
    """Serve the page until Ctrl-C; ``review.csv`` is written at the end by the caller."""
    server = create_server(review, host, port)
    address = f"http://{host}:{server.server_address[1]}/"
    told(address)
    threading.Thread(
        target=import_module, args=("sklearn.cluster",), daemon=True
    ).start()  # or the first split waits for it
    if open_page:
        webbrowser.open(address)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass
    finally:
        server.server_close()


def _lists(column: pl.Series) -> list[list[str]]:
    return [text.split(BETWEEN) if text else [] for text in column]


@lru_cache(maxsize=4096)
def _thumbnail(file: str) -> bytes:
    small = load_image(Path(file))
    small.thumbnail((THUMB, THUMB))
    found = BytesIO()
    small.save(found, "WEBP", quality=85)
    return found.getvalue()
