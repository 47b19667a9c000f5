"""What people ask a gallery for: images, folders of them or ids; and the answers as a table, as JSON and as a page."""

import base64
import io
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from sightline.data.images import load_image
from sightline.data.manifest import read_manifest
from sightline.errors import InputError, names
from sightline.files import replaced
from sightline.gallery.filters import filter_names
from sightline.gallery.gallery import Gallery
from sightline.gallery.image_paths import image_path
from sightline.gallery.items import Value
from sightline.gallery.refine import best_matches, refined_search
from sightline.models.encoder import Encoder
from sightline.ranking.refine import NOTHING, Refinement

Said = tuple[bool, float, float, bool | None, float | None, float | None]  # the fields of Judged
Judge = Callable[[NDArray[np.float32], NDArray[np.floating[Any]], NDArray[np.bool_]], Sequence[Said]]
THUMBNAIL = 160
PAGE = """<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ title }}</title>
<style>
body { font: 14px/1.4 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; padding: 0 1rem }
body { color: #222; background: #fff }
h1 { font-size: 1.3rem } h2 { font-size: 1rem; margin: 2rem 0 .5rem; overflow-wrap: anywhere }
ol { display: grid; grid-template-columns: repeat(auto-fill, minmax(9rem, 1fr)); gap: .75rem; padding: 0; list-style: none }
figure { margin: 0; padding: .5rem; border: 1px solid #ddd; border-radius: .4rem; height: 100%; box-sizing: border-box }
.query figure { border: 2px solid #5b3fa0 }
.frame { height: 8rem; display: flex; align-items: center; justify-content: center; background: #f6f6f6; color: #777 }
img { max-width: 100%; max-height: 8rem }
figcaption { margin-top: .4rem; font-size: .8rem; overflow-wrap: anywhere }
.verdict { margin: .5rem 0; padding: .4rem .6rem; border-left: .3rem solid #b3261e; background: #fbeceb; color: #222 }
.score { font-variant-numeric: tabular-nums; font-weight: 600 }
@media (prefers-color-scheme: dark) {
  body { color: #eee; background: #181818 } figure { border-color: #444 } .frame { background: #262626 }
}
</style>
<h1>{{ title }}</h1>
{% for answer in answers %}
<h2>{{ answer.query }}</h2>
{% for remark in answer.remarks() %}
<p class="verdict">{{ remark }}</p>
{% endfor %}
<ol>
  <li class="query"><figure><div class="frame">{{ picture(answer.query_path, "query") }}</div>
  <figcaption><span class="score">query</span></figcaption></figure></li>
{% for hit in answer.results %}
  <li><figure><div class="frame">{{ picture(hit.metadata.get("path"), hit.id) }}</div>
  <figcaption><span class="score">{{ loop.index }} · {{ "%.4f" | format(hit.score) }}</span><br>{{ hit.id }}
  {%- if hit.labels() %}<br>{{ hit.labels() | join(" < ") }}{% endif %}</figcaption></figure></li>
{% endfor %}
</ol>
{% endfor %}
</html>
"""


@dataclass(frozen=True)
class Result:
    """One item that was found."""

    id: str
    score: float
    metadata: dict[str, Value]

    def labels(self) -> list[str]:
        """Its labels, finest first."""
        found: list[str] = []
        while (label := self.metadata.get(f"label_{len(found)}")) is not None:
            found.append(str(label))
        return found


@dataclass(frozen=True)
class Judged:
    """What a rejector says of a query: is it of the kind that the gallery holds, and is its match there?"""

    belongs: bool
    energy: float
    threshold: float
    matched: bool | None
    similarity: float | None
    similarity_threshold: float | None


class Belonging(Protocol):
    """What a verdict says at least."""

    @property
    def belongs(self) -> bool:
        """Whether the query is of the kind that the gallery holds."""


def withholds(policy: str | None, verdict: Belonging | None) -> bool:
    """Whether a query gets no results: under the policy ``reject``, if a rejector says that it does not belong."""
    return policy == "reject" and verdict is not None and not verdict.belongs


@dataclass(frozen=True)
class Answer:
    """What was found for one query.

    Attributes:
        query: its name.
        query_path: its image, if there is one.
        results: best first; none where the policy is ``reject`` and the query does not belong.
        policy: ``reject``, ``flag`` or ``ignore``; None where nobody was asked.
        verdict: what the rejector says of it.
        unknown: names in the condition that no item has, where nothing was found.
    """

    query: str
    query_path: str | None
    results: list[Result]
    policy: str | None = None
    verdict: Judged | None = None
    unknown: tuple[str, ...] = ()

    def remarks(self) -> list[str]:
        """What is to be said of the query besides its results: nothing where all is well, or is to be ignored."""
        found = []
        said = None if self.policy == "ignore" else self.verdict
        if said and not said.belongs:
            found.append(f"does not belong: energy {said.energy:.4g}, accepted up to {said.threshold:.4g}")
        if said and said.matched is False:
            found.append(f"no match: similarity {said.similarity:.4f}, a match from {said.similarity_threshold:.4f} on")
        if not self.results and (said is None or said.belongs):
            found.append(f"nothing found{': no item has ' + names(self.unknown) if self.unknown else ''}")
        return found


def ask(
    gallery: Gallery,
    queries: Sequence[str],
    k: int = 10,
    *,
    encoder: Encoder | None = None,
    where: str | None = None,
    refinement: Refinement = NOTHING,
    judge: Judge | None = None,
    policy: str | None = None,
    root: Path | None = None,
    n_workers: int = 0,
) -> list[Answer]:
    """Answer queries of any kind.

    Args:
        gallery: what to search.
        queries: image files, folders (each image below is a query), or ids of the gallery, which do not find themselves.
        k: results for each.
        encoder: the gallery's; None for the one saved in it. Ids need none.
        where: a condition that results meet.
        refinement: what to do after the first ranking.
        judge: says of the queries' vectors, their best similarities and whether they are items if they belong, and have a
            match.
        policy: what to do then: ``reject`` gives no results to a query that does not belong, ``flag`` says so, ``ignore``
            does not.
        root: where to look for images that lay beside the gallery; see :func:`image_path`. Results have full paths.
        n_workers: processes that read images.
    """
    images, ids = _sorted_out(queries)
    try:
        known = gallery.metadata(ids)
    except InputError as error:
        raise InputError(f"{error}; and there is no image or folder of that name") from error
    vectors = np.empty((0, gallery.identity.dim), np.float32)
    if images:
        encoder = gallery.encoder() if encoder is None else encoder
        gallery.check_encoder(encoder)
        vectors = encoder.encode(images, n_workers=n_workers)
    vectors = np.concatenate([vectors, gallery.vectors(ids)])
    own = [None] * len(images) + list(ids)
    scores, found = refined_search(gallery, vectors, k, refinement, where=where, own=own)
    verdicts = _verdicts(gallery, vectors, own, judge)
    told = _metadata(gallery, found, root)
    unknown: tuple[str, ...] = ()
    if where is not None and not told:
        unknown = tuple(name for name in filter_names(where) if not gallery.filter(f"metadata[{name!r}] != None"))
    files = [*images, *(image_path(gallery.folder, row, root) for row in known)]
    answers = []
    for place, name in enumerate([*map(str, images), *ids]):
        verdict, file = verdicts[place], files[place]
        hits = (
            []
            if withholds(policy, verdict)
            else [(id_, s) for id_, s in zip(found[place], scores[place], strict=True) if id_ is not None]
        )
        results = [Result(id_, float(score), told[id_]) for id_, score in hits]
        answers.append(Answer(name, None if file is None else str(file), results, policy, verdict, unknown))
    return answers


def _verdicts(
    gallery: Gallery, vectors: NDArray[np.float32], own: list[str | None], judge: Judge | None
) -> list[Judged] | list[None]:
    """One for each query, by its own vector and its best item of all: neither filtered, expanded nor re-ranked."""
    if judge is None:
        return [None] * len(vectors)
    return [Judged(*verdict) for verdict in judge(vectors, *best_matches(gallery, vectors, own))]


def _sorted_out(queries: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The queries that are images, those in folders included, and those that are ids."""
    images: list[Path] = []
    ids: list[str] = []
    for query in queries:
        if not query:
            raise InputError("an empty name is no query: an image, a folder or an id is needed")
        if os.path.isdir(query):  # False, unlike Path's, for an id too long to be a file's name
            images += read_manifest(Path(query), labelled=False).paths()
        elif os.path.isfile(query):
            images.append(Path(query))
        else:
            ids.append(query)
    if not images and not ids:
        raise InputError("nothing to search for: an image, a folder or an id is needed")
    return images, ids


def _metadata(gallery: Gallery, ids: NDArray[np.object_], root: Path | None) -> dict[str, dict[str, Value]]:
    """What is known of the items, with the full paths of their images."""
    unique = sorted({id_ for id_ in ids.reshape(-1) if id_ is not None})
    known = dict(zip(unique, map(dict, gallery.metadata(unique)), strict=True))
    for row in known.values():
        if (file := image_path(gallery.folder, row, root)) is not None:
            row["path"] = str(file)
    return known


def as_text(answers: Sequence[Answer]) -> str:
    """A line for each query, one for each remark on it, and one for each result: place, similarity, path or id, labels."""
    lines = []
    for answer in answers:
        lines += [answer.query, *(f"      {remark}" for remark in answer.remarks())]
        for place, hit in enumerate(answer.results, start=1):
            shown = hit.metadata.get("path") or hit.id
            lines.append(f"{place:>4}  {hit.score:.4f}  {shown}  {' < '.join(hit.labels())}".rstrip())
    return "\n".join(lines)


def as_json(answers: Sequence[Answer]) -> str:
    """A list of queries with their results, all metadata, and the verdict, whatever the policy."""
    return json.dumps([asdict(answer) for answer in answers], ensure_ascii=False, indent=2)


def write_contact_sheet(file: Path, answers: Sequence[Answer], title: str) -> Path:
    """One HTML file with small pictures of queries and results, which needs nothing but itself."""
    if file.is_dir():
        raise InputError(f"{file}: a folder; the page is one file, such as {file / 'found.html'}")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(PAGE).render(title=title, answers=answers, picture=_picture)
    with replaced(Path(file)) as scratch:
        scratch.write_text(page, encoding="utf-8")
    return Path(file)


def _picture(path: str | None, name: str) -> str:
    """An image element, or a word where there is no image."""
    try:
        if path is None:
            raise InputError("no path")
        image = load_image(Path(path))
    except InputError:
        return Markup("no image")
    image.thumbnail((2 * THUMBNAIL, 2 * THUMBNAIL))
    encoded = io.BytesIO()
    image.save(encoded, "JPEG", quality=85)
    source = "data:image/jpeg;base64," + base64.b64encode(encoded.getvalue()).decode()
    return Markup('<img src="{}" alt="{}">').format(source, name)
