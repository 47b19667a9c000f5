"""What people ask a gallery for: images, folders of them or ids; and the answers as a table, as JSON and as a page."""

import base64
import io
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup
from numpy.typing import NDArray

from sightline.data.images import load_image
from sightline.data.manifest import read_manifest
from sightline.errors import InputError
from sightline.files import replaced
from sightline.models.encoder import Encoder
from sightline.search.gallery import Gallery
from sightline.search.items import Value
from sightline.search.refine import NOTHING, Refinement, refined_search

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
.score { font-variant-numeric: tabular-nums; font-weight: 600 }
@media (prefers-color-scheme: dark) {
  body { color: #eee; background: #181818 } figure { border-color: #444 } .frame { background: #262626 }
}
</style>
<h1>{{ title }}</h1>
{% for answer in answers %}
<h2>{{ answer.query }}</h2>
<ol>
  <li class="query"><figure><div class="frame">{{ picture(answer.query_path, "query") }}</div>
  <figcaption><span class="score">query</span></figcaption></figure></li>
{% for hit in answer.results %}
  <li><figure><div class="frame">{{ picture(hit.metadata.get("path"), hit.id) }}</div>
  <figcaption><span class="score">{{ loop.index }} · {{ "%.4f" | format(hit.score) }}</span><br>{{ hit.id }}
  {%- if hit.labels() %}<br>{{ hit.labels() | join(" < ") }}{% endif %}</figcaption></figure></li>
{% endfor %}
</ol>
{% if not answer.results %}<p>Nothing matches.</p>{% endif %}
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
class Answer:
    """What was found for one query: its name, its image if there is one, and the results, best first."""

    query: str
    query_path: str | None
    results: list[Result]


def ask(
    gallery: Gallery,
    queries: Sequence[str],
    k: int = 10,
    *,
    encoder: Encoder | None = None,
    where: str | None = None,
    refinement: Refinement = NOTHING,
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
        n_workers: processes that read images.
    """
    images, ids = _sorted_out(queries)
    vectors = np.empty((0, gallery.identity.dim), np.float32)
    if images:
        encoder = gallery.encoder() if encoder is None else encoder
        gallery.check_encoder(encoder)
        vectors = encoder.encode(images, n_workers=n_workers)
    known = gallery.metadata(ids)
    vectors = np.concatenate([vectors, gallery.vectors(ids)])
    own = [None] * len(images) + list(ids)
    scores, found = refined_search(gallery, vectors, k, refinement, where=where, own=own)
    told = _metadata(gallery, found)
    paths = [str(image) for image in images] + [str(row["path"]) if row.get("path") else None for row in known]
    return [
        Answer(
            name, path, [Result(id_, float(s), told[id_]) for s, id_ in zip(row, row_ids, strict=True) if id_ is not None]
        )
        for name, path, row, row_ids in zip([*map(str, images), *ids], paths, scores, found, strict=True)
    ]


def _sorted_out(queries: Sequence[str]) -> tuple[list[Path], list[str]]:
    """The queries that are images, those in folders included, and those that are ids."""
    images: list[Path] = []
    ids: list[str] = []
    for query in queries:
        if Path(query).is_dir():
            images += read_manifest(Path(query), labelled=False).paths()
        elif Path(query).is_file():
            images.append(Path(query))
        else:
            ids.append(query)
    if not images and not ids:
        raise InputError("nothing to search for: an image, a folder or an id is needed")
    return images, ids


def _metadata(gallery: Gallery, ids: NDArray[np.object_]) -> dict[str, dict[str, Value]]:
    unique = sorted({id_ for id_ in ids.reshape(-1) if id_ is not None})
    return dict(zip(unique, gallery.metadata(unique), strict=True))


def as_text(answers: Sequence[Answer]) -> str:
    """A line for each query, and one for each result: place, similarity, path or id, labels."""
    lines = []
    for answer in answers:
        lines.append(answer.query)
        for place, hit in enumerate(answer.results, start=1):
            shown = hit.metadata.get("path") or hit.id
            lines.append(f"{place:>4}  {hit.score:.4f}  {shown}  {' < '.join(hit.labels())}".rstrip())
    return "\n".join(lines)


def as_json(answers: Sequence[Answer]) -> str:
    """A list of queries with their results and all metadata."""
    return json.dumps([asdict(answer) for answer in answers], ensure_ascii=False, indent=2)


def write_contact_sheet(file: Path, answers: Sequence[Answer], title: str) -> Path:
    """One HTML file with small pictures of queries and results, which needs nothing but itself."""
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
