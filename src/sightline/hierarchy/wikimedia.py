"""What labels are, by Wikidata's "instance of" statements: a small client of the Wikimedia API.

Every answer is kept on disk as it came, so a run that was stopped goes on where it was, and a second one asks nothing.
"""

import hashlib
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from sightline import __version__
from sightline.errors import InputError
from sightline.files import replaced
from sightline.progress import tracked

API = "https://www.wikidata.org/w/api.php"
INSTANCE_OF = "P31"
AT_ONCE = 50  # what the API allows in one request
AGAIN = frozenset((429, 500, 502, 503, 504))


@dataclass
class Wikimedia:
    """The API, asked politely.

    Attributes:
        cache: the folder of answers.
        contact: a mail address or page of whoever runs this; Wikimedia asks for it.
        api: the address.
        site: whose page titles the labels are, such as ``enwiki`` or ``commonswiki``; labels such as Q243 are items.
        language: of the categories' names.
        per_second: requests at most.
        retries: of a request that the server could not answer now.
        wait: seconds before the first retry; twice as many before each further one, unless the server says how many.
        timeout: seconds for one request.
        sleep: how to wait.
    """

    cache: Path
    contact: str
    api: str = API
    site: str = "enwiki"
    language: str = "en"
    per_second: float = 1.0
    retries: int = 5
    wait: float = 2.0
    timeout: float = 30.0
    sleep: Callable[[float], None] = time.sleep
    _next: float = 0.0

    def __post_init__(self) -> None:
        if not self.contact.strip() or not self.contact.isprintable():
            raise InputError("contact: a mail address or page is needed, which Wikimedia can turn to")
        if not self.api.startswith(("https://", "http://")):
            raise InputError(f"api: {self.api!r} is no http address")

    def instance_of(self, labels: Sequence[str], show_progress: bool = False) -> list[list[str]]:
        """The names of what each label is an instance of; none where there is no such page or no statement."""
        by_item = [label for label in labels if _is_item(label)]
        titles = [_title(label) for label in labels if not _is_item(label) and "|" not in label]  # which no title holds
        parts = [("ids", part) for part in _parts(by_item)] + [("titles", part) for part in _parts(titles)]
        values: dict[str, list[str]] = {}
        for kind, part in tracked(parts, "pages", len(parts), show_progress):
            values.update(self._statements(kind, part))
        wanted = list(dict.fromkeys(item for found in values.values() for item in found))
        called: dict[str, str] = {}
        asked = list(_parts(wanted))
        for part in tracked(asked, "categories", len(asked), show_progress):
            entities = self._ask(action="wbgetentities", ids="|".join(part), props="labels", languages=self.language)
            for item, entity in entities.items():
                called[item] = entity.get("labels", {}).get(self.language, {}).get("value", item)
        return [[called.get(item, item) for item in values.get(_title(label), [])] for label in labels]

    def _statements(self, kind: str, part: list[str]) -> dict[str, list[str]]:
        """The items that each label is an instance of."""
        if kind == "ids":
            entities = self._ask(action="wbgetentities", ids="|".join(part), props="claims")
        else:
            entities = self._ask(
                action="wbgetentities",
                sites=self.site,
                titles="|".join(part),
                props="claims|sitelinks",
                sitefilter=self.site,
            )
        found = {}
        for item, entity in entities.items():
            if "missing" in entity:
                continue
            title = item if kind == "ids" else entity.get("sitelinks", {}).get(self.site, {}).get("title", "")
            found[_title(title)] = list(dict.fromkeys(_items(entity.get("claims", {}).get(INSTANCE_OF, []))))
        return found

    def _ask(self, **query: str) -> dict[str, Any]:
        """The entities of an answer, from disk or from the server."""
        address = self.api + "?" + urllib.parse.urlencode(query | {"format": "json", "maxlag": "5"})
        file = Path(self.cache) / f"{hashlib.sha256(address.encode()).hexdigest()[:24]}.json"
        if file.is_file():
            answer = json.loads(file.read_text(encoding="utf-8"))
        else:
            answer = self._fetch(address)
            with replaced(file) as scratch:
                scratch.write_text(json.dumps(answer, ensure_ascii=False), encoding="utf-8")
        entities: dict[str, Any] = answer.get("entities", {})
        return entities

    def _fetch(self, address: str) -> dict[str, Any]:
        agent = f"Sightline/{__version__} (label tree builder; {self.contact})"
        request = urllib.request.Request(address, headers={"User-Agent": agent, "Accept": "application/json"})
        wait, told = self.wait, ""
        for attempt in range(self.retries + 1):
            if attempt:
                self.sleep(wait)
                wait = 2 * wait
            self._keep_the_rate()
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as response:
                    answer = json.load(response)
            except urllib.error.HTTPError as error:
                told = f"{error.code} {error.reason}"
                if error.code not in AGAIN:
                    break
                wait = _asked_to_wait(error.headers.get("Retry-After"), wait)
                continue
            except (OSError, ValueError, HTTPException) as error:  # no connection, or half an answer
                told = str(error)
                continue
            if "error" not in answer:
                found: dict[str, Any] = answer
                return found
            told = str(answer["error"].get("info", answer["error"]))
            if answer["error"].get("code") not in ("maxlag", "ratelimited", "readonly"):
                break
        raise InputError(
            f"{self.api}: no answer ({told}); what was answered is kept in {self.cache}: run it again to go on"
        )

    def _keep_the_rate(self) -> None:
        now = time.monotonic()
        if now < self._next:
            self.sleep(self._next - now)
        self._next = max(now, self._next) + 1 / self.per_second


def _asked_to_wait(header: str | None, wait: float) -> float:
    return max(wait, float(header)) if header is not None and header.isdigit() else wait


def _is_item(label: str) -> bool:
    return label[:1] == "Q" and label[1:].isdigit()


def _title(label: str) -> str:
    """A page title as the site writes it."""
    text = " ".join(label.replace("_", " ").split())
    return text[:1].upper() + text[1:]


def _items(statements: Iterable[dict[str, Any]]) -> Iterable[str]:
    for statement in statements:
        value = statement.get("mainsnak", {}).get("datavalue", {}).get("value", {})
        if statement.get("rank") != "deprecated" and "id" in value:
            yield value["id"]


def _parts(words: Sequence[str]) -> Iterable[list[str]]:
    distinct = list(dict.fromkeys(words))
    return (distinct[start : start + AT_ONCE] for start in range(0, len(distinct), AT_ONCE))
