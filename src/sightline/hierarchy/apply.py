"""Last step: a manifest with the new label levels, and a report of how large and how even they are."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sightline.data.manifest import Manifest, label_columns
from sightline.errors import InputError, choose, raise_faults
from sightline.files import replaced
from sightline.hierarchy.collect import CLEAN, PLOT, REPORT, UNPLACED, read_step, write_step
from sightline.hierarchy.review import GroupState
from sightline.labels.codes import normal_codes
from sightline.labels.tree import Tree

RULES = {"alone": True, "drop": False}
LARGEST = 7  # classes that the report names


@dataclass(frozen=True)
class LevelReport:
    """One level of the new tree.

    Attributes:
        level: the column, ``label_{level}``.
        n_classes: how many there are.
        smallest: images of the smallest class.
        median: images of the median class.
        largest: images of the largest class.
        imbalance: the largest class over the mean.
        effective: as how many equally large classes they spread the images: the exponential of the entropy.
        names: the largest classes with their images, largest first.
        by_root: the same within each of the largest roots; none of the roots themselves.
    """

    level: int
    n_classes: int
    smallest: int
    median: float
    largest: int
    imbalance: float
    effective: float
    names: list[tuple[str, int]]
    by_root: dict[str, list[tuple[str, int]]]


def label_groups(folder: Path, state: GroupState) -> pl.DataFrame:
    """One row a label that was placed: ``label`` and its groups, finest first, as ``group_1`` ..."""
    kept = read_step(folder, CLEAN, ("label", "text"))
    paths = [state.path(text) if text in state.home else [] for text in kept["text"]]
    placed = kept.select("label").filter(pl.Series([bool(path) for path in paths], dtype=pl.Boolean))
    whole = [path for path in paths if path]
    columns = {f"group_{n + 1}": pl.Series([path[n] for path in whole], dtype=pl.String) for n in range(state.n_levels)}
    return placed.with_columns(**columns)


def tree_groups(tree: Tree) -> pl.DataFrame:
    """One row a node of a tree: ``label`` and what is above it, as :func:`label_groups` gives it.

    A node that is not at the deepest level stands for itself at the levels below, so that images of it have a place.
    """
    paths = [tree.path(node) for node in range(len(tree))]
    whole = [[*path, *[path[-1]] * (tree.n_levels - len(path))] for path in paths]
    called = ["label", *(f"group_{level}" for level in range(1, tree.n_levels))]
    return pl.DataFrame({name: [path[-1 - level] for path in whole] for level, name in enumerate(called)})


def with_normal_codes(manifest: Manifest) -> Manifest:
    """The manifest with labels that are dotted codes in one spelling: 26.01.15 and 26.1.15 are one class."""
    labels = manifest.table["label_0"].unique(maintain_order=True).to_list()
    codes = pl.col("label_0").replace_strict(labels, normal_codes(labels, manifest.source))
    return Manifest(manifest.source, manifest.root, manifest.table.with_columns(codes), manifest.n_levels)


def with_groups(manifest: Manifest, groups: pl.DataFrame, unplaced: str = "drop") -> tuple[Manifest, list[str]]:
    """The manifest with ``label_0`` as it was and the groups as its coarser levels, and the labels that have none.

    Args:
        manifest: its coarser levels, if it has some, are replaced.
        groups: as :func:`label_groups` gives them.
        unplaced: ``drop`` the images of labels without a group, or let each such label stand ``alone``: a group of its own
            at every level. Nothing is guessed.
    """
    alone = choose(RULES, unplaced, "rule for labels without a group")
    if not manifest.n_levels:
        raise InputError(f"{manifest.source}: its images have no labels")
    n_groups = len(groups.columns) - 1
    if not n_groups:
        raise InputError(f"{manifest.source}: the tree has one level: its labels have no group above them")
    columns = label_columns(n_groups + 1)
    named = groups.rename({"label": "label_0"} | {f"group_{n}": f"label_{n}" for n in range(1, n_groups + 1)})
    own = manifest.table["label_0"].unique(maintain_order=True)
    _check_one_place(manifest, named.filter(pl.col("label_0").is_in(own.implode())))
    plain = manifest.table.drop(label_columns(manifest.n_levels)[1:])
    table = plain.join(named, on="label_0", how="left", maintain_order="left")
    homeless = table.filter(pl.col(columns[1]).is_null())["label_0"].unique(maintain_order=True).to_list()
    if alone:
        # A group of the same name at the top is another one: nothing is guessed.
        taken = pl.col("label_0").is_in(named[columns[-1]].implode())
        itself = pl.when(taken).then(pl.col("label_0") + " (alone)").otherwise("label_0")
        table = table.with_columns(pl.col(name).fill_null(itself) for name in columns[1:])
    else:
        table = table.filter(pl.col(columns[1]).is_not_null())
    if not len(table):
        raise InputError(f"{manifest.source}: none of its labels has a group: it has other labels than the tree")
    first = ["id", "path", "split", *columns]
    table = table.select(*first, *(name for name in table.columns if name not in first))
    return Manifest(manifest.source, manifest.root, table, n_groups + 1), homeless


def level_reports(manifest: Manifest) -> list[LevelReport]:
    """How many classes each level has, and how evenly they share the images."""
    found = []
    labels, root_names = manifest.labels(), manifest.class_names(manifest.n_levels - 1)
    for level, column in enumerate(labels.T):
        sizes = np.bincount(column)
        order = (-sizes).argsort(kind="stable")
        called = manifest.class_names(level)
        largest = [(called[place], int(sizes[place])) for place in order[:LARGEST].tolist()]
        root_of = np.zeros(len(sizes), np.int64)
        root_of[column] = labels[:, -1]
        roots = (-np.bincount(labels[:, -1])).argsort(kind="stable")[:LARGEST].tolist() if level < len(labels.T) - 1 else []
        by_root = {
            root_names[root]: [
                (called[place], int(sizes[place])) for place in order[root_of[order] == root][:LARGEST].tolist()
            ]
            for root in roots
        }
        found.append(
            LevelReport(
                level,
                len(sizes),
                int(sizes.min()),
                float(np.median(sizes)),
                int(sizes.max()),
                float(sizes.max() / sizes.mean()),
                _effective(sizes),
                largest,
                by_root,
            )
        )
    return found


def report_text(reports: list[LevelReport]) -> str:
    """The report as lines for a terminal."""
    lines = [f"{'level':<9}{'classes':>8}{'effective':>11}{'smallest':>10}{'median':>8}{'largest':>9}{'imbalance':>11}"]
    for one in reports:
        spread = f"{one.smallest:>10}{one.median:>8g}{one.largest:>9}{one.imbalance:>11.1f}"
        lines.append(f"{f'label_{one.level}':<9}{one.n_classes:>8}{one.effective:>11.1f}{spread}")
    for one in reports[1:]:
        lines.append(f"label_{one.level}: {_listed(one.names)}")
        lines += [f"label_{one.level} in {root}: {_listed(largest)}" for root, largest in one.by_root.items()]
    return "\n".join(lines)


def apply_groups(
    folder: Path, state: GroupState, manifest: Manifest, out: Path, unplaced: str = "drop"
) -> tuple[Manifest, list[str]]:
    """Write the new manifest, ``report.csv`` and ``report.svg`` (how many images each class has) and ``unplaced.csv``."""
    found, homeless = with_groups(manifest, label_groups(folder, state), unplaced)
    write_manifest(found, out)
    labels, sizes = found.labels(), []
    for level, column in enumerate(labels.T):
        called, counts = found.class_names(level), np.bincount(column).tolist()
        root = dict(zip(column.tolist(), found.table[f"label_{found.n_levels - 1}"], strict=True))
        roots = [root[place] for place in range(len(called))]
        sizes.append(pl.DataFrame({"level": f"label_{level}", "name": called, "root": roots, "n_images": counts}))
    write_step(folder, REPORT, pl.concat(sizes))
    _draw_sizes([np.bincount(column) for column in labels.T], Path(folder) / PLOT)
    write_step(folder, UNPLACED, pl.DataFrame({"label": homeless}, schema={"label": pl.String}))
    return found, homeless


def write_manifest(manifest: Manifest, out: Path) -> Path:
    """Write a manifest as CSV or Parquet; outside its folder its paths become absolute."""
    out, table = Path(out), manifest.table
    if out.suffix.lower() not in (".csv", ".parquet"):
        raise InputError(f"{out}: a .csv or .parquet file is needed")
    if out.parent.resolve() != manifest.root.resolve():
        root = manifest.root.resolve()
        table = table.with_columns(path=pl.Series([str(root / path) for path in table["path"]], dtype=pl.String))
    with replaced(out) as scratch:
        if out.suffix.lower() == ".csv":
            table.write_csv(scratch)
        else:
            table.write_parquet(scratch)
    return out


def _check_one_place(manifest: Manifest, placed: pl.DataFrame) -> None:
    """Refuse labels of the manifest that name several nodes of the tree."""
    paths = pl.concat_str(reversed(placed.columns[1:]), separator=" > ").alias("paths")
    several = placed.group_by("label_0", maintain_order=True).agg(paths).filter(pl.col("paths").list.len() > 1)
    told = [f"{label!r} has {len(found)} places in the tree: {'; '.join(found[:5])}" for label, found in several.rows()]
    raise_faults(manifest.source, told)


def _listed(largest: list[tuple[str, int]]) -> str:
    return ", ".join(f"{name} ({n})" for name, n in largest)


def _draw_sizes(levels: list[NDArray[np.int64]], file: Path) -> None:
    """The classes of each level, the largest first, against their images: a level line is an even one."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.2 * len(levels), 3.2), layout="constrained")
    for level, (axes, sizes) in enumerate(zip(figure.subplots(1, len(levels), squeeze=False)[0], levels, strict=True)):
        place = np.arange(1, len(sizes) + 1)
        axes.step(place, -np.sort(-sizes), where="mid", color="#0072b2", marker="o" if len(sizes) < 30 else None)
        axes.axhline(sizes.mean(), color="#6b7280", linestyle="--", linewidth=1, label="if all were alike")
        axes.set(title=f"label_{level}: {len(sizes)} classes", xlabel="classes, the largest first", ylabel="images")
        axes.set_yscale("log")
        axes.grid(alpha=0.25)
        axes.legend(frameon=False, loc="upper right")  # the largest classes are on the left
    with replaced(file) as scratch, rc_context({"svg.fonttype": "none", "svg.hashsalt": "sightline"}):
        figure.savefig(scratch, format="svg", metadata={"Date": None})


def _effective(sizes: NDArray[np.int64]) -> float:
    shares = sizes / sizes.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))
