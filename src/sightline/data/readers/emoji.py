"""The same emoji drawn by four vendors: emoji < subcategory < category."""

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import polars as pl

from sightline.data.images import as_rgb, open_image
from sightline.data.readers.archives import NpmPackage, need_files, npm_archives, read_archive, read_member
from sightline.data.readers.source import Record, sources_page, split_of, write_collection
from sightline.errors import InputError
from sightline.progress import tracked

PACKAGES = {
    "apple": NpmPackage(
        "emoji-datasource-apple",
        "16.0.0",
        "dVYjsK0FnCry9F+PBtnivhG2K0xdwlmqYaSgiUtztUdAGPYiHYhZcVKvNBqC791g2qyEcFNTBO6utg4eQ3uLTw==",
        "images © Apple Inc., not licensed for commercial use; data MIT",
    ),
    "google": NpmPackage(
        "emoji-datasource-google",
        "16.0.0",
        "ZRexfzs7MVoLnmzZmNsO4TKhnAJp5D++Vm6PpUpH/jEQQlemp3l88CjZ+DoZ2faM9R4QxZkOPJCoT8DlPhfQ3A==",
        "images (Noto) Apache-2.0; data MIT",
    ),
    "twitter": NpmPackage(
        "emoji-datasource-twitter",
        "16.0.0",
        "7F+uCuHH+7Qnrc15P5tnbvKkg9E6tlzi4MnT2uW1RlN4pLYTza6cP/dstIfSDMtpjFLWuZewWg8jBbuL2eyELQ==",
        "images (Twemoji) CC-BY-4.0; data MIT",
    ),
    "facebook": NpmPackage(
        "emoji-datasource-facebook",
        "16.0.0",
        "b9ZxJdB7nMWGckH1vyCjPSosaa6MJYuojPPFiQ0LmDIZS8vlG454XKcmTFKrXIMAA72O4MRJMYFhvWI8pjyciQ==",
        "images © Facebook, Inc., no clear licence; data MIT",
    ),
}
VERSION = 1
KEYS = ("short_name", "name", "subcategory", "category", "image")


COLUMNS = ("path", "split", "label_0", "label_1", "label_2", "vendor", "name", "pixels")


def write_emoji(
    out: Path,
    show_progress: bool = False,
    root: Path | None = None,
    packages: dict[str, NpmPackage] = PACKAGES,
) -> Path:
    """Emoji, each drawn by four vendors: emoji < subcategory < category; needs npm, or its packages in --root.

    Every emoji that all vendors draw, 64 x 64 on white, and its ``manifest.csv``, whose path is returned. The pinned
    packages give 1,857 emoji and 7,428 images. Columns: ``path``, ``split``, ``label_0`` (short name, unique), ``label_1``
    (subcategory), ``label_2`` (category), ``vendor``, ``name`` (Unicode's). No emoji is in two splits.

    Args:
        out: a folder, new, empty, or with this very set, which is then left as it is.
        show_progress: draw bars.
        root: a folder of archives made by ``npm pack``; None fetches them.
        packages: the package of each vendor.
    """
    pinned = [f"{package.name}@{package.version}" for package in packages.values()]
    record: Record = {"data": "emoji", "version": VERSION, "packages": pinned}

    def fill(draft: Path) -> tuple[pl.DataFrame, str]:
        with npm_archives(list(packages.values()), root, show_progress) as found:
            by_vendor = dict(zip(packages, found, strict=True))
            rows = list(_write_images(draft, by_vendor, _drawn_by_all(by_vendor), show_progress))
        manifest = pl.DataFrame(rows, COLUMNS, orient="row").sort("path")
        alike = manifest.filter(pl.col("label_0").n_unique().over("vendor", "pixels") > 1)["label_0"].n_unique()
        sentences = [
            "Each emoji that all vendors draw, 64 x 64, transparency on white.",
            f"{alike} emoji share a picture, pixel for pixel, with another emoji of the same vendor: "
            "flags of dependent territories above all. They stay, as two classes.",
        ]
        n_of = dict(manifest.group_by("vendor").len().iter_rows())
        listed = [(p.name, p.version, p.licence, n_of[vendor]) for vendor, p in packages.items()]
        return manifest.drop("pixels"), sources_page("Emoji", "emoji < subcategory < category", manifest, sentences, listed)

    return write_collection(out, record, fill)


def _drawn_by_all(by_vendor: dict[str, Path]) -> list[dict[str, Any]]:
    """The entries of ``emoji.json`` that every vendor has an image of, as the first archive lists them."""
    archive = next(iter(by_vendor.values()))
    listed = read_member(archive, read_archive(archive, lambda path: path == "emoji.json"), "emoji.json")
    needed = {*KEYS, *(f"has_img_{vendor}" for vendor in by_vendor)}
    if not isinstance(listed, list) or not all(isinstance(entry, dict) and needed <= entry.keys() for entry in listed):
        raise InputError(f"{archive.name}: emoji.json is not a list of emoji with {', '.join(sorted(needed))}")
    emoji = [entry for entry in cast(list[dict[str, Any]], listed) if all(entry[f"has_img_{v}"] for v in by_vendor)]
    if not emoji:
        raise InputError(f"{archive.name}: emoji.json names no emoji that all of {', '.join(by_vendor)} draw")
    return emoji


def _write_images(
    draft: Path, by_vendor: dict[str, Path], emoji: list[dict[str, Any]], show_progress: bool
) -> Iterator[tuple[str, ...]]:
    """One row of the manifest for each image, and a hash of its pixels."""
    for vendor, archive in by_vendor.items():
        start = f"img/{vendor}/64/"
        files = read_archive(archive, lambda path, start=start: path.startswith(start))  # type: ignore[misc]
        need_files(archive, files, [start + entry["image"] for entry in emoji])
        for entry in tracked(emoji, f"Writing {vendor}", len(emoji), show_progress):
            try:
                with open_image(io.BytesIO(files[start + entry["image"]])) as opened:
                    image = as_rgb(opened)
            except Exception as error:  # on broken bytes Pillow's decoders raise anything
                raise InputError(f"{archive.name}: {start}{entry['image']} is not a readable image: {error}") from error
            path = f"images/{Path(entry['image']).stem}/{vendor}.png"
            (draft / path).parent.mkdir(parents=True, exist_ok=True)
            image.save(draft / path)
            labels = (entry["short_name"], entry["subcategory"], entry["category"])
            pixels = hashlib.sha256(image.tobytes()).hexdigest()
            yield path, split_of("emoji", labels[0]), *labels, vendor, entry["name"].lower(), pixels
