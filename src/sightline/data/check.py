"""What is wrong with a set of images, all of it in one pass: layout, files that cannot be decoded, duplicates, sizes."""

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import polars as pl

from sightline.data.images import LARGE, ImageFacts, inspect_images
from sightline.data.manifest import (
    IMAGE_SUFFIXES,
    Manifest,
    classes_in_several_splits,
    image_files,
    is_text,
    missing_levels,
    scan_manifest,
    visible_files,
)
from sightline.errors import SHOWN_FAULTS, counted, names
from sightline.files import file_hash

TINY = 32  # pixels
SHOWN_SUFFIXES = 10


@dataclass(frozen=True)
class Finding:
    """One kind of fault, or something a person should look at.

    Attributes:
        title: what was found, how often, and what to do about it.
        details: the images, folders or classes that it concerns, a line each.
        is_fault: training refuses such images; otherwise it is a warning.
    """

    title: str
    details: tuple[str, ...] = ()
    is_fault: bool = False


@dataclass(frozen=True)
class DataReport:
    """What a check of a set of images found; its text is what ``sightline data check`` prints.

    Attributes:
        manifest: the images that can be decoded and have what they need; those too deep in a tree as if they were moved.
        n_images: found, the unusable ones among them.
        findings: faults first.
    """

    manifest: Manifest
    n_images: int
    findings: tuple[Finding, ...]

    @property
    def faults(self) -> list[Finding]:
        """What stops training."""
        return [one for one in self.findings if one.is_fault]

    @property
    def warnings(self) -> list[Finding]:
        """What does not stop training, and may still be a mistake."""
        return [one for one in self.findings if not one.is_fault]

    def as_text(self, n_details: int | None = SHOWN_FAULTS) -> str:
        """The counts of each split, then the faults, then the warnings.

        Args:
            n_details: lines below each of them; None for all.
        """
        n_faults, n_warnings = len(self.faults), len(self.warnings)
        verdict = (counted(n_faults, "fault") if n_faults else "no fault") + (
            f", {counted(n_warnings, 'warning')}" if n_warnings else ""
        )
        found = f"{counted(self.n_images, 'image')}, {counted(self.manifest.n_levels, 'label level')}"
        lines = [f"{self.manifest.source}: {found}, {verdict}"]
        for split in sorted(self.manifest.table["split"].unique()):
            part = self.manifest.split(split)
            sizes = " < ".join(str(int(column.max()) + 1) for column in part.labels().T)
            lines.append(f"  {split:<5} {len(part):>8} images" + (f"  {sizes} classes" if sizes else ""))
        for one in self.findings:
            shown = [line.replace("\n", "\\n") for line in one.details[:n_details]]  # of a file's name
            lines += [f"  {'fault' if one.is_fault else 'warning'}: {one.title}", *(f"    {line}" for line in shown)]
            lines += [f"    ... and {len(one.details) - len(shown)} more"] if len(shown) < len(one.details) else []
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.as_text()


def inspect_data(
    source: Path | str,
    labelled: bool = True,
    skip_unreadable: bool = False,
    further: Callable[[Manifest], Iterable[Finding]] = lambda manifest: (),
    show_progress: bool = False,
) -> DataReport:
    """Check the layout of a table or folder tree, decode every image, and compare their bytes.

    :func:`~sightline.training.data_check.check_data` does this and asks whether a recipe can train on the images. A source
    that cannot be read at all raises ``InputError``.

    Args:
        source: a ``.csv`` or ``.parquet`` manifest, or a folder of images.
        labelled: images without a label are a fault.
        skip_unreadable: images that cannot be decoded are a warning.
        further: more findings about the images that are left.
        show_progress: draw a progress bar on standard error.
    """
    source = Path(source)
    manifest, layout = scan_manifest(source, labelled)
    everything = _all_images(source) if source.is_dir() else manifest
    facts = inspect_images(everything, show_progress)
    sound = everything.where(pl.lit(pl.Series([one.fault is None for one in facts], dtype=pl.Boolean)))
    manifest = manifest.where(pl.col("id").is_in(sound.table["id"].implode()))
    findings = [
        *_layout(source, layout),
        *_unreadable([one.fault for one in facts if one.fault], skip_unreadable),
        *(further(manifest) if len(manifest) else ()),
        *_duplicates(sound, manifest),
        *_sizes(everything.paths(), facts),
        *_several_splits(manifest),
        *([Finding(said)] if source.is_dir() and (said := files_not_read(source)) else ()),
        *(_links(source, everything.paths()) if source.is_dir() else ()),
        *(
            [Finding(f"{missing_levels(manifest)}; to train, add labels or name a column of codes (data.codes)")]
            if len(manifest) and not layout and not manifest.n_levels
            else ()
        ),
    ]
    return DataReport(manifest, len(everything), tuple(sorted(findings, key=lambda one: not one.is_fault)))


def _all_images(root: Path) -> Manifest:
    """Every image below a folder, whatever the layout."""
    images = [file.as_posix() for file in image_files(root, lambda error: None) if is_text(file)]
    paths = pl.Series(sorted(images), dtype=pl.String)
    return Manifest(root, root, pl.DataFrame({"id": paths, "path": paths}), 0)


def files_not_read(root: Path) -> str:
    """How many files below a folder are not taken for images, with their suffixes and those of images; empty if none."""
    files = visible_files(root, lambda error: None)
    unread = Counter(suffix for file in files if (suffix := file.suffix.lower()) not in IMAGE_SUFFIXES)
    if not unread:
        return ""
    most = [f"{n} {suffix or 'without a suffix'}" for suffix, n in unread.most_common(SHOWN_SUFFIXES)]
    more = f" and {len(unread) - len(most)} other suffixes" if len(unread) > len(most) else ""
    known = names(sorted(IMAGE_SUFFIXES))
    return f"{counted(unread.total(), 'file')} not read: {', '.join(most)}{more}; convert images to one of {known}"


def _layout(source: Path, faults: list[str]) -> Iterator[Finding]:
    if faults:
        where = "the folders" if source.is_dir() else "the table"
        mend = "; a .csv manifest (path,split,label) describes any layout" if source.is_dir() else ""
        yield Finding(f"{counted(len(faults), 'fault')} in the layout of {where}{mend}", tuple(faults), is_fault=True)


def _unreadable(faults: list[str], skip: bool) -> Iterator[Finding]:
    if faults:
        title = f"{counted(len(faults), 'image')} cannot be decoded"
        mend = "replace or remove them" + (" (left out)" if skip else ", or train without: data.skip_unreadable=true")
        yield Finding(f"{title}; {mend}", tuple(faults), is_fault=not skip)


def _duplicates(sound: Manifest, labelled: Manifest) -> Iterator[Finding]:
    """Images of the same bytes and box: in several classes, in several splits, and the rest."""
    class_of = dict(zip(labelled.table["id"], map(tuple, labelled.labels().tolist()), strict=True))
    split_of = dict(zip(labelled.table["id"], labelled.table["split"], strict=True))
    in_classes, in_splits, others = [], [], []
    for ids in _same_content(sound):
        line = " = ".join(ids)
        classes, splits = ({known[one] for one in ids if one in known} for known in (class_of, split_of))
        if len(classes) > 1:
            in_classes.append(line)
        if len(splits) > 1:
            in_splits.append(line)
        if len(classes) <= 1 and len(splits) <= 1:
            others.append(line)
    for found, where, mend in (
        (in_classes, "in more than one class", "keep one, or the labels contradict each other"),
        (in_splits, "in more than one split", "keep one, or a model is tested on what it was trained on"),
        (others, "more than once in one class", "keep one: copies teach nothing"),
    ):
        if found:
            yield Finding(f"{counted(len(found), 'image')} {where}; {mend}", tuple(found))


def _same_content(manifest: Manifest) -> list[list[str]]:
    """The ids of images that have the same bytes and the same box, where there are several."""
    rows = list(zip(manifest.table["id"], manifest.paths(), manifest.boxes(), strict=True))
    sizes = [path.stat().st_size for _, path, _ in rows]
    is_frequent = Counter(sizes)
    groups: dict[object, list[str]] = defaultdict(list)
    hashes: dict[Path, str] = {}
    for (name, path, box), size in zip(rows, sizes, strict=True):
        if is_frequent[size] > 1:  # bytes that differ in number need no look
            if path not in hashes:
                hashes[path] = file_hash(path)
            groups[hashes[path], box].append(name)
    return [ids for ids in groups.values() if len(ids) > 1]


def _sizes(paths: Sequence[Path], facts: Sequence[ImageFacts]) -> Iterator[Finding]:
    sized = [(path, one) for path, one in zip(paths, facts, strict=True) if one.fault is None]
    tiny = [f"{path}: {one.width} x {one.height}" for path, one in sized if min(one.width, one.height) < TINY]
    huge = [f"{path}: {one.width} x {one.height}" for path, one in sized if one.width * one.height > LARGE]
    if tiny:
        title = f"{counted(len(tiny), 'image')} with a side under {TINY} pixels; if they are thumbnails, replace them"
        yield Finding(title, tuple(tiny))
    if huge:
        millions = LARGE // 1_000_000
        yield Finding(
            f"{counted(len(huge), 'image')} of over {millions} million pixels; make smaller copies: they train faster",
            tuple(huge),
        )


def _several_splits(manifest: Manifest) -> Iterator[Finding]:
    if shared := classes_in_several_splits(manifest):
        title = f"{counted(len(shared), 'class', 'classes')} of label_0 in more than one split"
        yield Finding(f"{title}; to test on unseen classes, move each into one split", tuple(shared))


def _links(root: Path, paths: Sequence[Path]) -> Iterator[Finding]:
    home, real = os.path.realpath(root), cache(os.path.realpath)
    targets = {path: os.path.realpath(path) if path.is_symlink() else real(path.parent) for path in paths}
    if outside := [str(path) for path, target in targets.items() if not Path(target).is_relative_to(home)]:
        yield Finding(
            f"{counted(len(outside), 'image')} outside the folder, reached by links; to move the folder, copy them into it",
            tuple(outside),
        )
