"""Last step: a manifest with the new label levels, and a report of how large and how even they are."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

from sightline.data.manifest import Manifest, label_columns, write_table
from sightline.errors import InputError, choose, needs_extra, raise_faults
from sightline.hierarchy.collect import CLEAN, PLOT, REPORT, UNPLACED, read_step, write_step
from sightline.hierarchy.journal import GroupState
from sightline.labels.codes import normal_codes, tree_of_codes
from sightline.labels.tree import Tree

RULES = {"alone": True, "drop": False}
LARGEST = 7  # classes that the report names


def label_groups(folder: Path, state: GroupState) -> pl.DataFrame:
    """One row per label that has a place: ``label`` and its groups, finest first, as ``group_1`` ..."""
    kept = read_step(folder, CLEAN, ("label", "text")).select("label", "text")
    rows = [(label, *state.path(text)) for label, text in kept.iter_rows() if state.home.get(text) is not None]
    return _group_table(rows, state.n_levels)


def _group_table(rows: Sequence[Sequence[str]], n_groups: int) -> pl.DataFrame:
    columns = ["label", *(f"group_{level}" for level in range(1, n_groups + 1))]
    return pl.DataFrame(rows, dict.fromkeys(columns, pl.String), orient="row")


def attach_tree(manifest: Manifest, tree: Tree | None, unplaced: str = "drop") -> tuple[Manifest, list[str]]:
    """The manifest with the levels of a tree above its labels, and the labels that are not in the tree.

    A node that is not at the deepest level stands for itself at the levels below, so that images of it have a place.

    Args:
        manifest: with labels.
        tree: None for the tree of the labels themselves, which are dotted codes then: 26.01.15 and 26.1.15 are one class.
        unplaced: as :func:`with_groups` takes it.
    """
    if tree is None:
        labels = manifest.table["label_0"].unique(maintain_order=True).to_list()
        codes = normal_codes(labels, manifest.source)
        spelled = manifest.table.with_columns(pl.col("label_0").replace_strict(labels, codes))
        manifest, tree = replace(manifest, table=spelled), tree_of_codes(codes, manifest.source)
    paths = (tree.path(node) for node in range(len(tree)))
    rows = [[*[path[-1]] * (tree.n_levels - len(path)), *reversed(path)] for path in paths]
    return with_groups(manifest, _group_table(rows, tree.n_levels - 1), unplaced)


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
        raise InputError(f"{manifest.source}: the tree has one level, so its labels have no groups above them")
    columns = label_columns(n_groups + 1)
    named = groups.rename({"label": "label_0"} | {f"group_{n}": f"label_{n}" for n in range(1, n_groups + 1)})
    _check_one_place(manifest, named)
    plain = manifest.table.drop(label_columns(manifest.n_levels)[1:])
    table = plain.join(named, on="label_0", how="left", maintain_order="left")
    unplaced_labels = table.filter(pl.col(columns[1]).is_null())["label_0"].unique(maintain_order=True).to_list()
    if alone:
        # A group of the same name at the top is another one: nothing is guessed.
        taken = pl.col("label_0").is_in(named[columns[-1]].implode())
        itself = pl.when(taken).then(pl.col("label_0") + " (alone)").otherwise("label_0")
        table = table.with_columns(pl.col(name).fill_null(itself) for name in columns[1:])
    table = table.filter(pl.col(columns[1]).is_not_null())
    if not len(table):
        raise InputError(f"{manifest.source}: none of its labels is in the tree")
    first = ["id", "path", "split", *columns]
    return Manifest(manifest.source, manifest.root, table.select(*first, pl.exclude(first)), n_groups + 1), unplaced_labels


def class_sizes(manifest: Manifest) -> pl.DataFrame:
    """One row a class, finest level first: ``level``, ``name``, ``root`` (the class at the top above it), ``n_images``."""
    columns = label_columns(manifest.n_levels)
    return pl.concat(
        manifest.table.group_by(columns[level:])
        .agg(n_images=pl.len())
        .sort(reversed(columns[level:]))
        .select(pl.lit(name).alias("level"), name=name, root=columns[-1], n_images="n_images")
        for level, name in enumerate(columns)
    )


def report_text(sizes: pl.DataFrame) -> str:
    """How many classes each level has and how evenly they share the images, as lines for a terminal.

    ``imbalance`` is the largest class over the mean, ``effective`` as how many equally large classes they spread the
    images: the exponential of the entropy. The largest classes of each level are named, and those below the largest roots.

    Args:
        sizes: as :func:`class_sizes` gives them.
    """
    n, ordered = pl.col("n_images"), sizes.sort("n_images", descending=True, maintain_order=True)
    share = n / n.sum()
    levels = sizes.group_by("level", maintain_order=True).agg(
        classes=pl.len(),
        effective=(-share * share.log()).sum().exp(),
        smallest=n.min(),
        median=n.median(),
        largest=n.max(),
        imbalance=n.max() / n.mean(),
    )
    lines = [f"{'level':<9}{'classes':>8}{'effective':>11}{'smallest':>10}{'median':>8}{'largest':>9}{'imbalance':>11}"]
    lines += ["{:<9}{:>8}{:>11.1f}{:>10}{:>8g}{:>9}{:>11.1f}".format(*numbers) for numbers in levels.iter_rows()]
    *middle, top = levels["level"][1:]
    roots = ordered.filter(pl.col("level") == top)["name"].head(LARGEST)
    for level in (*middle, top):
        own = ordered.filter(pl.col("level") == level)
        lines.append(f"{level}: {_largest(own)}")
        lines += [f"{level} in {root}: {_largest(own.filter(pl.col('root') == root))}" for root in roots if level != top]
    return "\n".join(lines)


def _largest(ordered: pl.DataFrame) -> str:
    return ", ".join(f"{name} ({n})" for name, n in ordered.select("name", "n_images").head(LARGEST).iter_rows())


def apply_groups(
    folder: Path, state: GroupState, manifest: Manifest, out: Path, unplaced: str = "drop"
) -> tuple[Manifest, list[str]]:
    """Write the new manifest, ``report.csv`` and ``report.svg`` (how many images each class has) and ``unplaced.csv``."""
    found, unplaced_labels = with_groups(manifest, label_groups(folder, state), unplaced)
    write_manifest(found, out)
    sizes = class_sizes(found)
    write_step(folder, REPORT, sizes)
    _draw_sizes(sizes, folder)
    write_step(folder, UNPLACED, pl.DataFrame({"label": unplaced_labels}, schema={"label": pl.String}))
    return found, unplaced_labels


def write_manifest(manifest: Manifest, out: Path) -> Path:
    """Write a manifest as CSV or Parquet; outside its folder its paths become absolute."""
    table, root = manifest.table, manifest.root.resolve()
    if out.parent.resolve() != root:
        table = table.with_columns(path=pl.Series([str(root / path) for path in table["path"]], dtype=pl.String))
    return write_table(table, out)


def _check_one_place(manifest: Manifest, named: pl.DataFrame) -> None:
    """Refuse labels of the manifest that name several nodes of the tree."""
    paths = pl.concat_str(reversed(named.columns[1:]), separator=" > ").alias("paths")
    own = named.filter(pl.col("label_0").is_in(manifest.table["label_0"].implode()))
    several = own.group_by("label_0", maintain_order=True).agg(paths).filter(pl.col("paths").list.len() > 1)
    place = "{!r} has {} places in the tree: {}".format
    raise_faults(manifest.source, [place(label, len(found), "; ".join(found[:5])) for label, found in several.rows()])


def _draw_sizes(sizes: pl.DataFrame, folder: Path) -> None:
    """The classes of each level, the largest first, against their images: a level line is an even one."""
    with needs_extra("a picture of the sizes", "hierarchy"):
        from sightline.report.style import BLUE, INK, drawing, write_figure

    levels = sizes.partition_by("level", maintain_order=True)
    with drawing(4.2 * len(levels), ncols=len(levels), squeeze=False) as (figure, grid):
        for axes, level in zip(grid[0], levels, strict=True):
            n_images = -np.sort(-level["n_images"].to_numpy().astype(np.int64))
            marker = "o" if len(n_images) < 30 else None
            axes.step(np.arange(1, len(n_images) + 1), n_images, where="mid", color=BLUE, marker=marker)
            axes.axhline(n_images.mean(), color=INK, linestyle="--", linewidth=1, label="mean")
            title = f"{level['level'][0]}: {len(n_images)} classes"
            axes.set(title=title, xlabel="classes, the largest first", ylabel="images", yscale="log")
            axes.legend(loc="upper right")  # the largest classes are on the left
    write_figure(figure, folder, Path(PLOT).stem, ("svg",))
