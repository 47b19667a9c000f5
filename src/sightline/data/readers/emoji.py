"""The same emoji drawn by four vendors: emoji < subcategory < category."""

import hashlib
import io
from pathlib import Path
from typing import Any, cast

import polars as pl

from sightline.data.images import as_rgb, open_image
from sightline.data.readers.folder import Record, sources_page, split_of, write_collection
from sightline.data.readers.packages import NpmPackage, need_files, npm_archives, read_archive, read_json
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


def write_emoji(
    folder: Path,
    show_progress: bool = False,
    archives: Path | None = None,
    packages: dict[str, NpmPackage] = PACKAGES,
) -> Path:
    """Write every emoji that all vendors draw, 64 x 64 on white, and its ``manifest.csv``, whose path is returned.

    The pinned packages give 1,857 emoji and 7,428 images. Columns: ``path``, ``split``, ``label_0`` (short name, unique),
    ``label_1`` (subcategory), ``label_2`` (category), ``vendor``, ``name`` (Unicode's). No emoji is in two splits.

    Args:
        folder: new, empty, or with this very set, which is then left as it is.
        show_progress: draw bars.
        archives: a folder of archives made by ``npm pack``; None fetches them.
        packages: the package of each vendor.
    """
    record: Record = {
        "data": "emoji",
        "version": VERSION,
        "packages": [f"{package.name}@{package.version}" for package in packages.values()],
    }

    def fill(draft: Path) -> tuple[pl.DataFrame, str]:
        with npm_archives(list(packages.values()), archives, show_progress) as found:
            by_vendor = dict(zip(packages, found, strict=True))
            emoji = _drawn_by_all(by_vendor)
            rows = _write_images(draft, by_vendor, emoji, show_progress)
        manifest = pl.DataFrame(
            rows, ["path", "split", "label_0", "label_1", "label_2", "vendor", "name", "pixels"], orient="row"
        ).sort("path")
        return manifest.drop("pixels"), _sources(manifest, packages)

    return write_collection(folder, record, fill)


def _drawn_by_all(by_vendor: dict[str, Path]) -> list[dict[str, Any]]:
    """The entries of ``emoji.json`` that every vendor has an image of, as the first archive lists them."""
    archive = next(iter(by_vendor.values()))
    listed = read_json(archive, read_archive(archive, lambda path: path == "emoji.json"), "emoji.json")
    needed = {*KEYS, *(f"has_img_{vendor}" for vendor in by_vendor)}
    if not isinstance(listed, list) or not all(isinstance(entry, dict) and needed <= entry.keys() for entry in listed):
        raise InputError(f"{archive.name}: emoji.json is not a list of emoji with {', '.join(sorted(needed))}")
    emoji = [entry for entry in cast(list[dict[str, Any]], listed) if all(entry[f"has_img_{v}"] for v in by_vendor)]
    if not emoji:
        raise InputError(f"{archive.name}: emoji.json names no emoji that all of {', '.join(by_vendor)} draw")
    return emoji


def _write_images(
    draft: Path, by_vendor: dict[str, Path], emoji: list[dict[str, Any]], show_progress: bool
) -> list[tuple[str, ...]]:
    """One row of the manifest for each image, and a hash of its pixels."""
    rows: list[tuple[str, ...]] = []
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
            rows.append((path, split_of("emoji", labels[0]), *labels, vendor, entry["name"].lower(), pixels))
    return rows


def _sources(manifest: pl.DataFrame, packages: dict[str, NpmPackage]) -> str:
    sizes = " < ".join(str(manifest[f"label_{level}"].n_unique()) for level in range(3))
    counts = manifest.group_by("split").agg(pl.len(), pl.col("label_0").n_unique()).sort("split")
    shared = manifest.filter(pl.col("label_0").n_unique().over("vendor", "pixels") > 1)
    alike = shared["label_0"].n_unique()
    sentences = [
        f"{len(manifest)} images, classes {sizes} (emoji < subcategory < category): each emoji that all vendors draw.",
        "Splits share no emoji: "
        + ", ".join(f"{split} {images} images of {classes} emoji" for split, images, classes in counts.iter_rows())
        + ".",
        f"{alike} emoji share a picture, pixel for pixel, with another emoji of the same vendor: "
        "flags of dependent territories above all. They stay, as two classes.",
        "The images are 64 x 64, transparency on white.",
    ]
    n_of = dict(manifest.group_by("vendor").len().iter_rows())
    return sources_page("Emoji", sentences, [(p.name, p.version, p.licence, n_of[v]) for v, p in packages.items()])
