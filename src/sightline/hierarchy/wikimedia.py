"""What labels are, by Wikidata's "instance of" and "subclass of" statements: a small client of the Wikimedia API.

Every answer is kept on disk as it came, so a run that was stopped goes on where it was, and a second one asks nothing.
"""

import hashlib
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from sightline import __version__
from sightline.errors import InputError
from sightline.files import write_text
from sightline.progress import tracked

API = "https://www.wikidata.org/w/api.php"
INSTANCE_OF, SUBCLASS_OF, LANGUAGE = "P31", "P279", "en"  # the statements, and what their items are named in
TIMEOUT = 30.0  # seconds
AT_ONCE = 50  # what the API allows in one request
AGAIN = frozenset((429, 500, 502, 503, 504, "maxlag", "ratelimited", "readonly", None))  # faults that pass


@dataclass
class Wikimedia:
    """The API, asked politely.

    Attributes:
        cache: the folder of answers.
        contact: your mail address or web page, which Wikimedia requires.
        api: the address.
        site: whose page titles the labels are, such as ``enwiki`` or ``commonswiki``; labels such as Q243 are items.
        per_second: requests at most.
        retries: of a request that the server could not answer now.
        wait: seconds before the first retry; twice as many before each further one, unless the server says how many.
        sleep: how to wait.
    """

    cache: Path
    contact: str
    api: str = API
    site: str = "enwiki"
    per_second: float = 1.0
    retries: int = 5
    wait: float = 2.0
    sleep: Callable[[float], None] = time.sleep
    _next: float = 0.0

    def __post_init__(self) -> None:
        if not self.contact.strip() or not self.contact.isprintable():
            raise InputError("contact must be a mail address or web page: Wikimedia requires it")
        if not self.api.startswith(("https://", "http://")):
            raise InputError(f"api must be an http address, got {self.api!r}")

    def instance_of(self, labels: Sequence[str], superclasses: int = 0, show_progress: bool = False) -> list[list[str]]:
        """The names of what each label is an instance of; none where there is no such page or no statement.

        Args:
            labels: page titles, or items such as Q243.
            superclasses: "subclass of" statements to follow from each class, by the first of several; a class without
                one stays. Two classes with the same superclass become one.
            show_progress: draw bars.
        """
        by_item = [label for label in labels if _is_item(label)]
        titles = [_title(label) for label in labels if not _is_item(label) and "|" not in label]  # which no title holds
        asked = [{"ids": part, "props": "claims"} for part in _parts(by_item)]
        asked += [
            {"sites": self.site, "titles": part, "props": "claims|sitelinks", "sitefilter": self.site}
            for part in _parts(titles)
        ]
        values = {
            _title(entity.get("sitelinks", {}).get(self.site, {}).get("title", item)): _items(entity, INSTANCE_OF)
            for item, entity in self._entities(asked, "pages", show_progress)
        }
        for _ in range(superclasses):
            above = self._superclasses({item for found in values.values() for item in found}, show_progress)
            values = {
                title: list(dict.fromkeys(above.get(item, item) for item in found)) for title, found in values.items()
            }
        parts = _parts(item for found in values.values() for item in found)
        wanted = [{"ids": part, "props": "labels", "languages": LANGUAGE} for part in parts]
        called = {
            item: entity.get("labels", {}).get(LANGUAGE, {}).get("value", item)
            for item, entity in self._entities(wanted, "categories", show_progress)
        }
        return [[called.get(item, item) for item in values.get(_title(label), [])] for label in labels]

    def _superclasses(self, items: Iterable[str], show_progress: bool) -> dict[str, str]:
        """The first superclass of each item that has one."""
        asked = [{"ids": part, "props": "claims"} for part in _parts(sorted(items))]
        found = {item: _items(entity, SUBCLASS_OF) for item, entity in self._entities(asked, "superclasses", show_progress)}
        return {item: above[0] for item, above in found.items() if above}

    def _entities(
        self, queries: Sequence[Mapping[str, str]], title: str, show_progress: bool
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        for query in tracked(queries, title, len(queries), show_progress):
            yield from self._ask(query).items()

    def _ask(self, query: Mapping[str, str]) -> dict[str, Any]:
        """The entities of an answer that are there, from disk or from the server."""
        whole = {"action": "wbgetentities", **query, "format": "json", "maxlag": "5"}
        address = f"{self.api}?{urllib.parse.urlencode(whole)}"
        file = Path(self.cache) / f"{hashlib.sha256(address.encode()).hexdigest()[:24]}.json"
        if not file.is_file():
            write_text(file, json.dumps(self._fetch(address), ensure_ascii=False))
        entities = json.loads(file.read_text(encoding="utf-8")).get("entities", {})
        return {item: entity for item, entity in entities.items() if "missing" not in entity}

    def _fetch(self, address: str) -> dict[str, Any]:
        agent = f"Sightline/{__version__} (label tree builder; {self.contact})"
        request = urllib.request.Request(address, headers={"User-Agent": agent, "Accept": "application/json"})
        wait = self.wait
        for attempt in range(self.retries + 1):
            if attempt:
                self.sleep(wait)
                wait = 2 * wait
            self._keep_the_rate()
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
                    answer: dict[str, Any] = json.load(response)
                if "error" not in answer:
                    return answer
                code, reason = answer["error"].get("code"), str(answer["error"].get("info", answer["error"]))
            except urllib.error.HTTPError as error:
                code, reason = error.code, f"{error.code} {error.reason}"
                asked = error.headers.get("Retry-After", "")
                wait = max(wait, float(asked)) if asked.isdigit() else wait
            except (OSError, ValueError, HTTPException) as error:  # no connection, or half an answer
                code, reason = None, str(error)
            if code not in AGAIN:
                break
        raise InputError(
            f"{self.api}: no answer ({reason}); what was answered is kept in {self.cache}: run it again to go on"
        )

    def _keep_the_rate(self) -> None:
        now = time.monotonic()
        if now < self._next:
            self.sleep(self._next - now)
        self._next = max(now, self._next) + 1 / self.per_second


def _is_item(label: str) -> bool:
    return label[:1] == "Q" and label[1:].isdigit()


def _title(label: str) -> str:
    """A page title as the site writes it."""
    text = " ".join(label.replace("_", " ").split())
    return text[:1].upper() + text[1:]


def _items(entity: dict[str, Any], statement: str) -> list[str]:
    """The distinct items that an entity's statements name, preferred ones first, without deprecated ones."""
    kept = [one for one in entity.get("claims", {}).get(statement, []) if one.get("rank") != "deprecated"]
    kept.sort(key=lambda one: one.get("rank") != "preferred")
    values = (one.get("mainsnak", {}).get("datavalue", {}).get("value", {}) for one in kept)
    return list(dict.fromkeys(value["id"] for value in values if "id" in value))


def _parts(words: Iterable[str]) -> list[str]:
    """The distinct words, so many joined as one request takes."""
    distinct = list(dict.fromkeys(words))
    return ["|".join(distinct[start : start + AT_ONCE]) for start in range(0, len(distinct), AT_ONCE)]
