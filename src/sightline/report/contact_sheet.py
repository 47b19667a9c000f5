"""Answers of a gallery as one page of small pictures."""

import base64
import io
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sightline.data.images import load_image
from sightline.errors import InputError
from sightline.files import replaced
from sightline.gallery.query import Answer

THUMBNAIL = 160


def write_contact_sheet(file: Path, answers: Sequence[Answer], title: str) -> Path:
    """One HTML file with small pictures of queries and results, which needs nothing but itself."""
    if file.is_dir():
        raise InputError(f"{file}: a folder; the page is one file, such as {file / 'found.html'}")
    loader = PackageLoader("sightline.report")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    page = environment.get_template("contact_sheet.html").render(title=title, answers=answers, picture=_picture)
    with replaced(Path(file)) as scratch:
        scratch.write_text(page, encoding="utf-8")
    return Path(file)


def _picture(path: Path | str | None, name: str) -> str:
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
