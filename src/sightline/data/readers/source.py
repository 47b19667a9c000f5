"""What the readers of public data sets share: finding files, reading lists, checking counts, and writing one manifest.

A reader of files on disk is a :class:`Reader`; what is drawn or fetched is written by :func:`write_collection`.
"""

import hashlib
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import ClassVar, NamedTuple, NoReturn

import numpy as np
import polars as pl
from numpy.typing import NDArray
from PIL import Image

from sightline.data.manifest import FLAGS, SUFFIXES, UNREADABLE, label_columns, table_faults, write_table
from sightline.data.readers.archives import unpack
from sightline.errors import InputError, named_errors, names, raise_faults
from sightline.files import read_json, replaced_folder, write_text
from sightline.progress import tracked

SHOWN_ENTRIES, SHOWN_PATHS = 12, 5  # in a message: names of a folder, images
MANIFEST, RECORD = "manifest.csv", "collection.json"
Judgements = Mapping[str, Mapping[str, Sequence[str]]]
Record = dict[str, str | int | list[str]]


class PublishedCounts(NamedTuple):
    """How much a part of a data set has; None, or fewer levels than there are, where that is not known."""

    images: int | None = None
    classes: tuple[int | None, ...] = ()


@dataclass(frozen=True)
class Draft:
    """What a reader found of one part of a data set.

    Attributes:
        part: ``train``, ``val`` or ``test``; or ``query`` or ``gallery``, which are in the split ``test``.
        file: the file that lists it; None where the published counts do not hold for it.
        rows: the manifest's columns without ``split``.
        folder: what ``path`` starts from.
        judgements: for each query's id, the ids of the items of each kind, such as ``easy``; None where labels say it.
    """

    part: str
    file: Path | None
    rows: pl.DataFrame
    folder: Path
    judgements: Judgements | None = None

    def table(self) -> pl.DataFrame:
        """The rows with full paths, their split, and whether they are queries or items of the gallery."""
        has_role = f"is_{self.part}" in FLAGS
        roles = {flag: pl.lit(flag == f"is_{self.part}") for flag in FLAGS if has_role}
        path = pl.lit(f"{self.folder}/") + pl.col("path")
        return self.rows.with_columns(path=path, split=pl.lit("test" if has_role else self.part), **roles)


@dataclass(frozen=True)
class SourceFiles:
    """The files of a data set, as the user has them.

    Attributes:
        root: the folder that the user named.
        room: makes a folder for the images that a reader unpacks or writes; called once, and refused if its place is taken.
        show_progress: draw bars.
        more: where files are looked for beside the root.
    """

    root: Path
    room: Callable[[], Path]
    show_progress: bool = False
    more: tuple[Path, ...] = ()

    def find(self, choices: Sequence[str], is_it: Callable[[Path], bool] = Path.is_file) -> Path | None:
        """The first of the choices that is there."""
        paths = (base / choice for base in (self.root, *self.more) for choice in choices)
        return next((path for path in paths if is_it(path)), None)

    def file(self, *choices: str) -> Path:
        """The first of these files; one error that says what was looked for, and what the folder has."""
        return self.find(choices) or self.refuse("file", choices)

    def folder(self, *choices: str) -> Path:
        """The first of these folders; refused like :meth:`file`."""
        return self.find(choices, Path.is_dir) or self.refuse("folder", choices)

    def refuse(self, what: str, choices: Sequence[str]) -> NoReturn:
        """Say what was looked for, and what the folder has."""
        found = sorted(entry.name + "/" * entry.is_dir() for entry in os.scandir(self.root))
        has = f"it has {_some(found, SHOWN_ENTRIES)}" if found else "it is empty"
        raise InputError(f"{self.root}: no {what} {' or '.join(map(repr, choices))} in this folder; {has}")

    def unpacked(self, archives: Sequence[str], unless: Sequence[str]) -> "SourceFiles":
        """Where none of the folders ``unless`` is there but an archive is: a source that also looks into the archive."""
        archive = self.find(archives)
        if archive is None or self.find(unless, Path.is_dir):
            return self
        made = self.room()
        unpack(archive, made)
        return replace(self, more=(made,))


@dataclass(frozen=True)
class Reader:
    """How one data set's files on disk become a manifest.

    Attributes:
        about: what the images are, in a few words.
        needs: the files that the folder must have.
        read: finds and reads them, part by part.
        counts: what the published set has: for each split, ``query`` and ``gallery``.
        class_disjoint: no class of the finest level is in two splits.
        labelled: its images have labels.
        archives: names of an archive that is unpacked where none of ``folders`` is there.
        folders: what the archive holds.
    """

    about: str
    needs: str
    read: Callable[[SourceFiles], Iterable[Draft]]
    counts: Mapping[str, PublishedCounts] = field(default_factory=dict)
    class_disjoint: bool = True
    labelled: bool = True
    archives: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    suffix: ClassVar[str] = SUFFIXES[0]

    def __post_init__(self) -> None:
        object.__setattr__(self, "__doc__", f"{self.about}; needs {self.needs}")  # as a function has it

    def __call__(self, out: Path, root: Path, subset: bool = False, show_progress: bool = False) -> Path:
        """Write the manifest of a public data set that is on disk; it appears complete or not at all.

        Images that come in an archive or an array are written to a folder beside the manifest, ``<its name>_images``, and
        judgements to ``<its name>.judgements.json``. Every image is looked for, none is decoded.

        Args:
            out: a ``.parquet`` or ``.csv`` file; paths in it are relative to its folder.
            root: the folder with the published files.
            subset: leave out missing images, and check no counts.
            show_progress: draw bars.

        Returns:
            ``out``.
        """
        root, out = Path(root), Path(out)
        if out.suffix not in SUFFIXES:
            raise InputError(f"{out}: the manifest's name must end in one of {names(SUFFIXES)}")
        if not root.is_dir():
            raise InputError(f"{root}: no such folder; give a folder with {self.needs}")
        images = out.with_name(f"{out.stem}_images")
        places = {root.resolve(): os.path.relpath(root.resolve(), out.parent.resolve())}
        with ExitStack() as at_the_end:

            def room() -> Path:
                made = at_the_end.enter_context(replaced_folder(images)).resolve()
                places[made] = images.name
                return made

            source = SourceFiles(root.resolve(), room, show_progress).unpacked(self.archives, self.folders)
            drafts = list(self.read(source))
            table = self._checked(root.resolve(), drafts, subset, show_progress)
        for folder, place in reversed(places.items()):  # the folder that was made may lie below the root
            start = "" if place == "." else f"{Path(place).as_posix()}/"
            table = table.with_columns(pl.col("path").str.replace(f"{folder}/", start, literal=True))
        for judged in (draft.judgements for draft in drafts if draft.judgements is not None):
            write_text(judgements_file(out), json.dumps(_of_those_left(judged, set(table["id"]))))
        return write_table(table, out)

    def _checked(self, root: Path, drafts: Sequence[Draft], subset: bool, show_progress: bool) -> pl.DataFrame:
        """The table with its columns in order; all faults at once."""
        table = pl.concat([draft.table() for draft in drafts], how="diagonal")
        first = [name for name in ("path", "split", *label_columns(len(table.columns)), *FLAGS) if name in table.columns]
        table = table.select(*first, pl.exclude(first))
        looked_for = tracked(table["path"], "Looking for images", len(table), show_progress)
        missing = [path for path in looked_for if not os.path.isfile(path)]
        lost = [f"{len(missing)} of {len(table)} images are missing: {_images(missing, root)}"] if missing else []
        if subset and len(missing) == len(table):
            raise InputError(f"{root}: none of its {len(table)} images exists; give a folder with {self.needs}")
        if subset and lost:
            warnings.warn(f"{root}: left out: {lost[0]}; to use these too, copy them there", stacklevel=3)
            table = table.filter(~pl.col("path").is_in(missing))
        faults = [] if subset else [*_count_faults(table, drafts, self.counts, root), *lost]
        if twice := table.filter(pl.col("path").is_duplicated())["path"].unique(maintain_order=True).to_list():
            faults.append(f"paths listed more than once ({len(twice)}): {_images(twice, root)}")
        if self.class_disjoint and self.labelled:
            splits = table.group_by("label_0").agg(pl.col("split").unique().sort()).sort("label_0")
            shared = splits.filter(pl.col("split").list.len() > 1).rows()
            faults += [f"class {label!r} is in the splits {names(several)}" for label, several in shared]
        raise_faults(root, faults)
        return table


def judgements_file(manifest: Path) -> Path:
    """Where the judgements of a manifest are.

    Example:
        >>> judgements_file(Path("sets/roxford5k.parquet")).as_posix()
        'sets/roxford5k.judgements.json'
    """
    return manifest.with_name(f"{manifest.stem}.judgements.json")


def _of_those_left(judgements: Judgements, ids: set[str]) -> Judgements:
    return {
        query: {kind: [item for item in items if item in ids] for kind, items in kinds.items()}
        for query, kinds in judgements.items()
        if query in ids
    }


def _some(words: Sequence[str], n_shown: int) -> str:
    return names(words[:n_shown]) + (f" and {len(words) - n_shown} more" if len(words) > n_shown else "")


def _images(paths: Sequence[str], root: Path) -> str:
    return _some([os.path.relpath(path, root) for path in paths], SHOWN_PATHS)


def _count_faults(
    table: pl.DataFrame, drafts: Sequence[Draft], counts: Mapping[str, PublishedCounts], root: Path
) -> Iterator[str]:
    """Where the parts are not as large as they should be: the file that lists them, what was found, what was published."""
    files = {draft.part: draft.file for draft in drafts if draft.file is not None}
    for part in (part for part in counts if part in files):
        rows = table.filter(pl.col(f"is_{part}") if f"is_{part}" in table.columns else pl.col("split") == part)
        labels = [(f"label_{level}", n) for level, n in enumerate(counts[part].classes)]
        classes = [(f"classes in {label}", rows[label].n_unique(), n) for label, n in labels]
        for what, n_found, n_published in [("images", len(rows), counts[part].images), *classes]:
            if n_published not in (None, n_found):
                where = os.path.relpath(files[part], root)
                yield f"{where} ({part}): {n_found} {what}, {n_published} are published"


def layout_faults(file: Path, needed: str) -> AbstractContextManager[None]:
    """One error that names the file and what it should hold, for whatever taking its content apart leads to."""
    kinds = (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, *UNREADABLE)
    return named_errors(file, f"{needed} needed", *kinds)


def read_text(file: Path) -> str:
    """The file's text; refused if it is not UTF-8."""
    with named_errors(file, "not UTF-8 text", UnicodeDecodeError):
        return file.read_text(encoding="utf-8-sig")


def read_fields(file: Path, columns: Sequence[str], header: int = 0, form: str = "") -> pl.DataFrame:
    """The fields of each line, separated by blanks; lines with another number of them are refused, all at once.

    Args:
        file: of text.
        columns: names of the fields; the last one takes all that is left of a line.
        header: the line that has these names, above the rows; 0 if none has.
        form: of the paths in the column ``path``, such as ``<kind>/<file>``: another number of slashes is refused.
    """
    lines = read_text(file).splitlines()
    wanted, found = " ".join(columns), " ".join(" ".join(lines[header - 1 : header] if header else []).split())
    if header and found != wanted:
        raise InputError(f"{file}: line {header} must be the header {wanted!r}, found {found!r}")
    numbered = list(enumerate(lines, start=1))[header:]
    rows = [(number, line.strip().split(maxsplit=len(columns) - 1)) for number, line in numbered if line.strip()]
    check_widths(file, rows, len(columns))
    table = pl.DataFrame([row for _, row in rows], dict.fromkeys(columns, pl.String), orient="row")
    if form:
        wrong = table.filter(pl.col("path").str.count_matches("/", literal=True) != form.count("/"))["path"]
        raise_faults(file, [f"{path}: not of the form {form}" for path in wrong])
    return table


def read_lists(
    source: SourceFiles,
    files: Sequence[str],
    fields: Sequence[str],
    columns: Mapping[str, str | pl.Expr],
    splits: Sequence[str] = ("train", "test"),
    header: int = 0,
    form: str = "",
    folders: Sequence[str] = (),
) -> Iterator[Draft]:
    """The parts of a set that is a list of images for each split: with this, a set is data.

    Args:
        source: the files.
        files: where the list of a split may be; ``{}`` stands for the split.
        fields: of a line, as :func:`read_fields` takes them, with ``header`` and ``form``.
        columns: ``path`` and the labels, from the fields.
        splits: each has a list.
        header: see :func:`read_fields`.
        form: see :func:`read_fields`.
        folders: where the folder that paths start from may be; none if it is the folder of the list.
    """
    for split in splits:
        listed = source.file(*(name.format(split) for name in files))
        rows = read_fields(listed, fields, header, form).select(**columns)
        yield Draft(split, listed, rows, source.folder(*folders) if folders else listed.parent)


def check_widths(file: Path, rows: Iterable[tuple[int, Sequence[str]]], n_fields: int) -> None:
    """Refuse lines, given with their numbers, that have another number of fields."""
    wrong = ((number, len(row)) for number, row in rows if len(row) != n_fields)
    raise_faults(file, [f"line {number}: must have {n_fields} fields, found {n_found}" for number, n_found in wrong])


def read_columns(file: Path, *choices: Sequence[str]) -> pl.DataFrame:
    """The columns of a CSV file as text, by the first choice of which it has all; refused if it has none of them whole.

    Args:
        file: with a header.
        choices: names of columns; they come back under those of the first choice.
    """
    with table_faults(file):
        table = pl.read_csv(file, infer_schema=False)
    for columns in choices:
        if set(columns) <= set(table.columns):
            return table.select(pl.col(column).alias(name) for column, name in zip(columns, choices[0], strict=True))
    needed = " or ".join(names(columns) for columns in choices)
    raise InputError(f"{file}: must have the columns {needed}; the header has {names(table.columns)}")


def write_arrays(
    folder: Path, images: NDArray[np.uint8], part: str, labels: Sequence[Sequence[str]], show_progress: bool
) -> pl.DataFrame:
    """Write arrays of pixels as ``<part>/<label>/<number>.png`` below a folder; the rows.

    Args:
        folder: for all parts.
        images: (N, H, W, 3), or (N, H, W) of grey.
        part: such as ``train``.
        labels: N of each level, finest first.
        show_progress: draw a bar.
    """
    for name in set(labels[0]):
        (folder / part / name).mkdir(parents=True)
    paths = [f"{part}/{name}/{number:05d}.png" for number, name in enumerate(labels[0])]
    for path, image in tracked(zip(paths, images, strict=True), f"Writing {part} images", len(paths), show_progress):
        Image.fromarray(np.ascontiguousarray(image)).save(folder / path)
    return pl.DataFrame({"path": paths} | {f"label_{level}": list(column) for level, column in enumerate(labels)})


def split_of(collection: str, label: str) -> str:
    """The split of a class, from a hash of its name: half the classes ``test``, a twentieth ``val``, the rest ``train``.

    A class keeps its split whatever else a later version of the collection adds.

    Example:
        >>> split_of("emoji", "grinning")
        'test'
    """
    place = int.from_bytes(hashlib.sha256(f"{collection}/{label}".encode()).digest()[:8], "big") / 2**64
    return "test" if place < 0.5 else "val" if place < 0.55 else "train"


def write_collection(
    folder: Path, record: Record, fill: Callable[[Path], tuple[pl.DataFrame, str]], record_name: str = RECORD
) -> Path:
    """Write images, ``SOURCES.md`` and ``manifest.csv``, whose path is returned; at once if all is there.

    The folder appears when it is complete: until then the work is in a hidden one beside it, which a failure removes.

    Args:
        folder: new, empty, or with this very collection; any other is refused and left as it is.
        record: what makes this collection this one: its name, the version of its code, its packages.
        fill: given an empty folder, writes the images and returns the manifest and the text of ``SOURCES.md``, if any.
        record_name: the file that the record goes to.
    """
    if not _is_finished(folder, record, record_name):
        try:
            with replaced_folder(folder) as draft:
                manifest, sources = fill(draft)
                manifest.write_csv(draft / MANIFEST)
                described = json.dumps(record | {"n_images": len(manifest)}, indent=2) + "\n"
                (draft / record_name).write_text(described, encoding="utf-8")
                if sources:
                    (draft / "SOURCES.md").write_text(sources, encoding="utf-8")
        except InputError:
            if not _is_finished(folder, record, record_name):  # another process may have been faster
                raise
    return folder / MANIFEST


def _is_finished(folder: Path, record: Record, record_name: str) -> bool:
    """Whether the folder holds the collection that the record describes."""
    with suppress(OSError, ValueError, AttributeError):  # no such file, not JSON, not a table
        return (folder / MANIFEST).is_file() and record.items() <= read_json(folder / record_name, folder).items()
    return False


def sources_page(
    title: str,
    levels: str,
    manifest: pl.DataFrame,
    sentences: Sequence[str],
    packages: Sequence[tuple[str, str, str, int]],
    counts: Mapping[str, int] | None = None,
) -> str:
    """The text of ``SOURCES.md``.

    Args:
        title: the collection's name.
        levels: what its label levels are, finest first.
        manifest: its table; images, classes and splits are counted.
        sentences: what else there is to say.
        packages: package, version, licence and images of each source.
        counts: what was found and left out.
    """
    labels = [name for name in label_columns(len(manifest.columns)) if name in manifest.columns]
    sizes = " < ".join(str(manifest[name].n_unique()) for name in labels)
    splits = manifest.group_by("split").agg(pl.len(), pl.col("label_0").n_unique()).sort("split")
    each = ", ".join(f"{split} {n_images} images of {n_classes} classes" for split, n_images, n_classes in splits.rows())
    counted = f"{len(manifest)} images, classes {sizes} ({levels})."
    return packages_page(title, [counted, f"Splits share no class: {each}.", *sentences], packages, counts)


def packages_page(
    title: str,
    sentences: Sequence[str],
    packages: Sequence[tuple[str, str, str, int]],
    counts: Mapping[str, int] | None = None,
) -> str:
    """The text of ``SOURCES.md`` of a collection without label levels; the arguments are those of :func:`sources_page`."""
    lines = [f"# {title}", "", *sentences]
    lines += ["", *(f"- {what}: {number}" for what, number in counts.items())] if counts else []
    lines += ["", "| package | version | licence | images |", "|---|---|---|---|"]
    lines += [f"| {' | '.join(map(str, package))} |" for package in packages]
    return "\n".join(lines) + "\n"
