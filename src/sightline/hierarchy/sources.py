"""Label trees from what people have: label columns, folders, ``child,parent`` tables, taxonomies, dotted codes."""

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import polars as pl

from sightline.data.manifest import Manifest, label_columns, read_manifest
from sightline.errors import InputError, choose, names, raise_faults
from sightline.hierarchy.tree import Tree

RANKS = ("kingdom", "phylum", "class", "order", "family", "genus", "species")
EDGE_HEADERS = {"child": "parent", "hyponym": "hypernym", "synset": "hypernym", "id": "parent_id"}
SEVERAL_PARENTS = {"fault": False, "first": True}
CODE = re.compile(r"\d+(\.\d+)*")


def tree_of_manifest(manifest: Manifest, unique: bool = True) -> Tree:
    """The tree of a manifest's label columns; a folder of folders is read as a manifest first.

    Args:
        manifest: with at least one label level.
        unique: refuse names below two parents or at two levels; False makes each path a node, as losses and metrics do.
    """
    if not manifest.n_levels:
        raise InputError(f"{manifest.source}: its images have no labels to make a tree of")
    table = manifest.table.select(reversed(label_columns(manifest.n_levels))).unique(maintain_order=True)
    return Tree.from_paths(table.iter_rows(), manifest.source, unique)


def tree_of_folders(root: Path, unique: bool = True) -> Tree:
    """The tree of a folder of images: the deepest folder is the leaf."""
    return tree_of_manifest(read_manifest(Path(root)), unique)


def read_edges(file: Path, several_parents: str = "fault") -> Tree:
    """The tree of a table of ``child,parent`` rows (or ``hyponym,hypernym``); an empty parent is a root.

    Args:
        file: ``.csv``, or ``.tsv`` / ``.txt`` with tabs. Without a known header the first two columns are child and parent.
        several_parents: ``fault``; or ``first``: the first parent of a child counts, as for WordNet's second hypernyms.
    """
    file = Path(file)
    keep_first = choose(SEVERAL_PARENTS, several_parents, "rule for several parents")
    table = _read_table(file)
    columns = next(
        ((child, EDGE_HEADERS[child]) for child in EDGE_HEADERS if {child, EDGE_HEADERS[child]} <= {*table.columns}), None
    )
    if columns is None:
        table = _read_table(file, has_header=False)
        if len(table.columns) < 2:
            raise InputError(f"{file}: columns 'child' and 'parent' are needed, found one column")
        columns = table.columns[0], table.columns[1]
    pairs = [(_trim(child), _trim(parent)) for child, parent in table.select(columns).iter_rows()]
    if keep_first:
        first: dict[str, str] = {}
        for child, parent in pairs:
            first.setdefault(child, parent)
        pairs = list(first.items())
    return Tree.from_edges(pairs, file)


def read_taxonomy(file: Path, ranks: Sequence[str] = RANKS, fill: bool = False) -> Tree:
    """The tree of a table with one column a rank, such as kingdom to species; ranks the table lacks are left out.

    Names recur across branches (one genus in two kingdoms), so a path is a node.

    Args:
        file: a ``.csv``, a ``.tsv`` / ``.txt`` with tabs, or ``.json``: a list of records, or iNaturalist's ``categories``.
        ranks: from the coarsest on.
        fill: where a rank is empty, stand in ``<parent> (no <rank>)``; False lists these rows as faults.
    """
    file = Path(file)
    table = _read_json(file) if file.suffix.lower() == ".json" else _read_table(file)
    if "species" in ranks and "species" not in table.columns and "name" in table.columns:
        table = table.rename({"name": "species"})
    there = [rank for rank in ranks if rank in table.columns]
    if not there:
        raise InputError(f"{file}: no column {names(ranks)}; the header has {names(table.columns)}")
    paths, faults = [], []
    for row, values in enumerate(table.select(there).iter_rows(), start=1):
        path = [_trim(value) for value in values]
        for place, rank in enumerate(there):
            if path[place]:
                continue
            if not fill or not place:
                faults.append(f"row {row}: {rank} is empty ({' > '.join(value for value in path if value)})")
            else:
                path[place] = f"{path[place - 1]} (no {rank})"
        paths.append(path)
    raise_faults(file, faults)
    return Tree.from_paths(paths, file, unique=False)


def read_tree(file: Path, kind: str = "auto", several_parents: str = "fault", fill: bool = False) -> Tree:
    """The tree of a file.

    Args:
        file: a table.
        kind: ``edges`` or ``taxonomy``; ``auto`` takes it for a taxonomy if it is JSON or has columns of two ranks.
        several_parents: of edges, as :func:`read_edges` takes it.
        fill: of a taxonomy, as :func:`read_taxonomy` takes it.
    """
    file = Path(file)
    is_taxonomy = _is_taxonomy(file) if kind == "auto" else choose({"edges": False, "taxonomy": True}, kind, "kind of tree")
    if fill and not is_taxonomy:
        raise InputError(f"{file}: only a taxonomy has ranks to fill; it is read as edges")
    if several_parents != "fault" and is_taxonomy:
        raise InputError(f"{file}: only edges have several parents; it is read as a taxonomy")
    return read_taxonomy(file, fill=fill) if is_taxonomy else read_edges(file, several_parents)


def normal_code(code: str) -> str:
    """A dotted code without spaces and leading zeros.

    Example:
        >>> normal_code(" 26.01.15 ")
        '26.1.15'
    """
    text = code.strip().rstrip(".")
    if not CODE.fullmatch(text):
        raise InputError(f"{code!r} is no dotted code such as 26.1.15")
    return ".".join(str(int(part)) for part in text.split("."))


def normal_codes(codes: Iterable[str], source: object = "codes") -> list[str]:
    """Each code as :func:`normal_code` gives it; all that are none are listed at once."""
    found, faults = [], []
    for code in codes:
        try:
            found.append(normal_code(code))
        except InputError as error:
            faults.append(str(error))
    raise_faults(source, faults)
    return found


def tree_of_codes(codes: Iterable[str], source: object = "codes") -> Tree:
    """The tree of dotted codes such as the Vienna classification's; each beginning of a code is a node above it.

    Example:
        >>> tree_of_codes(["26.1.15", "26.01.03", "3.9"]).level_sizes()
        [2, 2, 2]
    """
    edges: dict[str, str] = {}
    for code in normal_codes(codes, source):
        parts = code.split(".")
        for depth in range(len(parts), 0, -1):
            edges[".".join(parts[:depth])] = ".".join(parts[: depth - 1])
    return Tree.from_edges(edges.items(), source)


def _is_taxonomy(file: Path) -> bool:
    if file.suffix.lower() == ".json":
        return True
    return len({*_read_table(file).columns} & {*RANKS}) > 1


def _trim(value: str | None) -> str:
    return "" if value is None else value.strip()


def _read_table(file: Path, has_header: bool = True) -> pl.DataFrame:
    """The table as text: with commas if it is called .csv, else with tabs."""
    if not file.is_file():
        raise InputError(f"{file}: no such file")
    separator = "," if file.suffix.lower() == ".csv" else "\t"
    try:
        table = pl.read_csv(file, separator=separator, has_header=has_header, infer_schema=False)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{file}: cannot be read as a table: {str(error).splitlines()[0]}") from error
    plain = [name.strip().lower() for name in table.columns]  # Kingdom is kingdom
    return table.rename(dict(zip(table.columns, plain, strict=True))) if len({*plain}) == len(plain) else table


def _read_json(file: Path) -> pl.DataFrame:
    import json

    if not file.is_file():
        raise InputError(f"{file}: no such file")
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{file}: not JSON: {error}") from error
    records = found.get("categories") if isinstance(found, dict) else found
    if not isinstance(records, list) or not records or not all(isinstance(record, dict) for record in records):
        raise InputError(f"{file}: a list of records, or one under 'categories', is needed")
    rows = [{key: None if value is None else str(value) for key, value in one.items()} for one in records]
    return pl.DataFrame(rows, infer_schema_length=None)  # a rank that only the last record has is a column too
