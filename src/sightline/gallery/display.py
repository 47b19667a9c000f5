"""Galleries and answers as HTML for notebooks: all text is escaped, all pictures are inside the page."""

import base64
import io
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from sightline.data.images import load_image
from sightline.errors import InputError
from sightline.gallery.gallery import Gallery, image_path, labels_of

SIZE = 96  # pixels of a thumbnail
N_THUMBNAILS = 8
BOX = f"width:{SIZE}px;height:{SIZE}px;object-fit:contain"
ROW = "display:flex;flex-wrap:wrap;gap:8px;margin-top:6px"
WARNING = "color:#b3261e;margin-top:4px"


def gallery_html(gallery: Gallery) -> str:
    """The size, kind and encoder of a gallery, and a few of its images."""
    try:
        stats, ids = gallery.stats(), _sample(gallery)
        known = gallery.metadata(ids)
    except InputError:  # closed, or its server is gone
        return f"<div>{escape(repr(gallery))}</div>"
    facts = {
        "items": f"{stats['items']:,}",
        "encoder": f"{stats['encoder']}, {stats['dim']} dimensions, fingerprint {stats['fingerprint']}",
        "metric": stats["metric"],
        "index": stats.get("index_built", stats["index"]),
    }
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in facts.items())
    pictures = [
        picture_html(image_path(gallery.folder, row), id_, labels_of(row)) for id_, row in zip(ids, known, strict=True)
    ]
    title = f"<b>{escape(type(gallery).__name__)}</b> {escape(gallery.address)}"
    return f'<div>{title}<table>{rows}</table><div style="{ROW}">{"".join(pictures)}</div></div>'


def _sample(gallery: Gallery) -> list[str]:
    """Some ids, spread over the gallery: the nearest of random directions, which no kind has to list all items for."""
    queries = np.random.default_rng(0).normal(size=(N_THUMBNAILS, gallery.identity.dim))
    sample: list[str] = []
    for row in gallery.search(queries, N_THUMBNAILS)[1].tolist():
        sample += [id_ for id_ in row if id_ is not None and id_ not in sample][:1]
    return sample


def answer_html(answer: Any) -> str:
    """An :class:`~sightline.gallery.query.Answer`: the query, its results with scores and labels, and the remarks."""
    query = picture_html(None if answer.query_path is None else Path(answer.query_path), answer.query, [])
    remarks = "".join(f'<div style="{WARNING}">{escape(remark)}</div>' for remark in answer.remarks())
    results = [picture_html(hit.path, hit.id, hit.labels, f"{hit.score:.4f}") for hit in answer.results]
    return f'<div><b>Query</b>{query}{remarks}<div style="{ROW}">{"".join(results)}</div></div>'


def picture_html(path: Path | None, name: str, labels: Sequence[str], score: str = "") -> str:
    """A thumbnail with its name, labels and score; a frame if the image cannot be read."""
    source = None if path is None else thumbnail_uri(path)
    image = (
        f'<div style="{BOX};border:1px dashed #999;color:#999;text-align:center">no image</div>'
        if source is None
        else f'<img src="{source}" alt="{escape(name)}" title="{escape(name)}" style="{BOX}">'
    )
    lines = (score, " < ".join(labels), Path(name).name)
    text = "".join(f'<div style="overflow-wrap:anywhere">{escape(line)}</div>' for line in lines if line)
    return f'<div style="width:{SIZE}px;font-size:11px">{image}{text}</div>'


def thumbnail_uri(path: Path) -> str | None:
    """A small copy of an image as a data URI; None if the image cannot be read."""
    try:
        image = load_image(path)
    except InputError:
        return None
    image.thumbnail((SIZE, SIZE))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=85)
    return f"data:image/jpeg;base64,{base64.b64encode(file.getvalue()).decode()}"
