"""Last step: a manifest with the new label levels, and a report of how large and how even they are."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray

from sightline.data.manifest import Manifest, label_columns
from sightline.errors import InputError, choose
from sightline.files import replaced
from sightline.hierarchy.review import State
from sightline.hierarchy.sources import normal_codes, tree_of_codes
from sightline.hierarchy.steps import CLEAN, REPORT, UNPLACED, read_step, write_step
from sightline.hierarchy.tree import Tree

RULES = {"alone": True, "drop": False}


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
    """

    level: int
    n_classes: int
    smallest: int
    median: float
    largest: int
    imbalance: float
    effective: float
    names: list[tuple[str, int]]


def label_groups(folder: Path, state: State) -> pl.DataFrame:
    """One row a label that was placed: ``label`` and its groups, finest first, as ``group_1`` ..."""
    kept = read_step(folder, CLEAN, ("label", "text"))
    paths = [state.path(text) if text in state.home else [] for text in kept["text"]]
    placed = kept.select("label").filter(pl.Series([bool(path) for path in paths], dtype=pl.Boolean))
    whole = [path for path in paths if path]
    columns = {f"group_{n + 1}": pl.Series([path[n] for path in whole], dtype=pl.String) for n in range(state.n_levels)}
    return placed.with_columns(**columns)


def tree_groups(tree: Tree) -> pl.DataFrame:
    """One row a leaf of a tree: ``label`` and what is above it, as :func:`label_groups` gives it; short branches repeat."""
    columns = tree.levelled().columns()
    return columns.rename({name: "label" if level == 0 else f"group_{level}" for level, name in enumerate(columns.columns)})


def code_groups(labels: list[str], source: object = "labels") -> pl.DataFrame:
    """The same for labels that are dotted codes: their beginnings are their groups."""
    codes = normal_codes(labels, source)
    groups = tree_groups(tree_of_codes(codes, source)).rename({"label": "code"})
    written = pl.DataFrame({"label": labels, "code": codes})
    return written.join(groups, on="code", how="left", maintain_order="left").drop("code")


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
    plain = manifest.table.drop(label_columns(manifest.n_levels)[1:])
    table = plain.join(groups, left_on="label_0", right_on="label", how="left", maintain_order="left")
    homeless = table.filter(pl.col("group_1").is_null())["label_0"].unique(maintain_order=True).to_list()
    if alone:
        table = table.with_columns(pl.col(f"group_{n}").fill_null(pl.col("label_0")) for n in range(1, n_groups + 1))
    else:
        table = table.filter(pl.col("group_1").is_not_null())
    if not len(table):
        raise InputError(f"{manifest.source}: none of its labels has a group: it has other labels than the tree")
    table = table.rename({f"group_{n}": f"label_{n}" for n in range(1, n_groups + 1)})
    first = ["id", "path", "split", *label_columns(n_groups + 1)]
    table = table.select(*first, *(name for name in table.columns if name not in first))
    return Manifest(manifest.source, manifest.root, table, n_groups + 1), homeless


def level_reports(manifest: Manifest) -> list[LevelReport]:
    """How many classes each level has, and how evenly they share the images."""
    found = []
    for level, column in enumerate(manifest.labels().T):
        sizes = np.bincount(column)
        order = (-sizes).argsort(kind="stable")[:7]
        called = manifest.class_names(level)
        largest = [(called[place], int(sizes[place])) for place in order.tolist()]
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
            )
        )
    return found


def report_text(reports: list[LevelReport]) -> str:
    """The report as lines for a terminal."""
    lines = [f"{'level':<9}{'classes':>8}{'effective':>11}{'smallest':>10}{'median':>8}{'largest':>9}{'imbalance':>11}"]
    for one in reports:
        spread = f"{one.smallest:>10}{one.median:>8g}{one.largest:>9}{one.imbalance:>11.1f}"
        lines.append(f"{f'label_{one.level}':<9}{one.n_classes:>8}{one.effective:>11.1f}{spread}")
    lines += [f"label_{one.level}: " + ", ".join(f"{name} ({n})" for name, n in one.names) for one in reports[1:]]
    return "\n".join(lines)


def apply_groups(
    folder: Path, state: State, manifest: Manifest, out: Path, unplaced: str = "drop"
) -> tuple[Manifest, list[str]]:
    """Write the new manifest, ``report.csv`` (classes of each level with their images) and ``unplaced.csv``."""
    found, homeless = with_groups(manifest, label_groups(folder, state), unplaced)
    write_manifest(found, out)
    sizes = []
    for level, column in enumerate(found.labels().T):
        called, counts = found.class_names(level), np.bincount(column).tolist()
        sizes.append(pl.DataFrame({"level": f"label_{level}", "name": called, "n_images": counts}))
    write_step(folder, REPORT, pl.concat(sizes))
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


def _effective(sizes: NDArray[np.int64]) -> float:
    shares = sizes / sizes.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))
