"""Quality and speed of the tree builder: trees rebuilt from names and images, compared with the true ones.

``python benchmarks/hierarchy.py trees --emoji data/emoji/manifest.csv --out data/trees`` hides the categories of the emoji,
builds a tree from their names without review, does the same for glyphs from images, compares with the true trees, and
writes a manifest for each tree: training uses that tree, testing the true one. ``train --trees
data/trees --out data/tree-runs`` trains on them, as the suites ``benchmarks/trees/*.toml`` define; if stopped, it
resumes. ``scale`` takes 100,000 generated labels from collect to apply. Each prints a table; ``--page docs/hierarchy.md``
puts it there.
"""

import argparse
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
from measure import table, write_section

from sightline.data.manifest import Manifest, label_columns, read_manifest
from sightline.data.readers.glyphs import write_glyphs
from sightline.files import replaced
from sightline.hierarchy.apply import apply_groups, label_groups, with_groups
from sightline.hierarchy.cluster import ClusterOptions, cluster_terms
from sightline.hierarchy.collect import LABELS, CleanRules, clean_labels, labels_of_manifest, write_step
from sightline.hierarchy.journal import Review
from sightline.hierarchy.term_vectors import embed_terms
from sightline.models.embed import embed_manifest
from sightline.models.encoder import Encoder
from sightline.studies.cells import Outcome, read_finished, run_cells
from sightline.studies.findings import paired_effect
from sightline.studies.suite import cells_of, read_suite

from tree_agreement import tree_agreement  # isort: skip  (beside this file)

WAYS = {
    "k-means, 100 < 10": ClusterOptions("kmeans", (100, 10)),
    "agglomerative, 100 < 10": ClusterOptions("agglomerative", (100, 10)),
    "agglomerative, suggested": ClusterOptions("agglomerative", (), levels=2),
}
METRICS = ("h_ap", "map", "map_label_1", "map_label_2", "recall@1", "severity@1")
SUITES = Path(__file__).parent / "trees"
CHOSEN = "agglomerative, 100 < 10"
TREES = """
A tree built without review against the true one. `adjusted Rand` is 1 for the same groups and 0 for random ones; `LCA` is
the share of triplets of labels in which the two trees agree which pair is nearest, 33.3 by chance. The random tree is the
built one with its labels shuffled. Emoji: {emoji} names, their categories hidden. Glyphs: the means of the images of
{glyphs} training classes, seen by an ImageNet EfficientNet-Lite0 without training.

{table}

`python benchmarks/hierarchy.py trees --emoji data/emoji/manifest.csv --out data/trees --page docs/hierarchy.md`
"""
TRAINED = """
HAPPIER trained on four trees and measured on the true one, on classes never seen in training: mean and deviation of {seeds}
seeds, in percent, `severity@1` in levels. "fine" has no tree: every label stands alone. The last column is the difference
of H-AP to "fine", runs paired by seed, with its 95 % interval over seeds and classes.

{table}

`python benchmarks/hierarchy.py train --trees data/trees --out data/tree-runs --page docs/hierarchy.md`
"""
SCALE = """
{labels:,} generated names, each a label with one image, from `collect` to `apply` in one process with {threads} thread(s).
The memory is the most the process ever had, in MB, libraries included.

{table}

In all {seconds:.0f} s, of which the sentence model {embedding:.0f} s ({rate:,.0f} names a second); {cpu:.0f} s of processor
time. `python benchmarks/hierarchy.py scale --page docs/hierarchy.md`
"""


def built(
    manifest: Manifest, folder: Path, way: ClusterOptions, images: tuple[Manifest, np.ndarray] | None
) -> pl.DataFrame:
    """The groups of each label, by the steps that the commands run."""
    if not (folder / "vectors.safetensors").is_file():
        named = "name" if "name" in manifest.table.columns else None
        write_step(folder, LABELS, labels_of_manifest(manifest, description=named))
        clean_labels(folder, CleanRules(text="name" if named is None else "description", meta=()))
        embed_terms(folder, images, text_weight=1.0 if images is None else 0.0, show_progress=True)
    cluster_terms(folder, way)
    return label_groups(folder, Review(folder).state)


def columns_of(groups: pl.DataFrame) -> np.ndarray:
    """(N, L) numbers of each label's path, finest first."""
    return np.stack([np.unique(groups[name].to_numpy(), return_inverse=True)[1] for name in groups.columns], 1)


def shuffled(groups: pl.DataFrame, seed: int = 0) -> pl.DataFrame:
    """The same groups with other labels in them."""
    order = np.random.default_rng(seed).permutation(len(groups))
    return groups.select("label").hstack(groups.drop("label")[order])


def write_trees(manifest: Manifest, trees: dict[str, pl.DataFrame], out: Path) -> None:
    """A manifest for each tree: its labels for training and validation, the true ones for testing."""
    true = label_columns(manifest.n_levels)
    is_test = pl.col("split") == "test"
    root = manifest.root.resolve()
    paths = pl.Series("path", [str(root / path) for path in manifest.table["path"]], dtype=pl.String)
    for name, groups in trees.items():
        found = with_groups(manifest, groups, "alone")[0].table
        mixed = [pl.when(is_test).then(manifest.table[column]).otherwise(pl.col(column)).alias(column) for column in true]
        with replaced(out / f"{name}.csv") as scratch:
            found.with_columns(paths, *mixed).write_csv(scratch)


def compared(name: str, manifest: Manifest, out: Path, images: tuple[Manifest, np.ndarray] | None) -> list[list[str]]:
    """Rows of the table, and the manifests."""
    labelled = manifest if images is None else images[0]
    true = labelled.table.select(label_columns(labelled.n_levels)).unique("label_0", maintain_order=True)
    true = true.rename({f"label_{level}": "label" if level == 0 else f"group_{level}" for level in range(true.width)})
    rows, trees = [], {}
    for way, options in WAYS.items():
        groups = built(labelled, out / name, options, images)
        same_order = true.select("label").join(groups, on="label", how="left", maintain_order="left")
        trees[way] = same_order
        rows.append(row_of(name, way, true, same_order))
    written = {"built": trees[CHOSEN], "random": shuffled(trees[CHOSEN])}
    rows.append(row_of(name, "random", true, written["random"]))
    written["fine"] = true.select("label").with_columns(
        pl.col("label").alias(f"group_{level}") for level in range(1, true.width)
    )
    if images is not None:  # otherwise all labels have their true tree in the manifest itself
        written["true"] = true
    write_trees(manifest, {f"{name}-{tree}": groups for tree, groups in written.items()}, out)
    return rows


def row_of(name: str, way: str, true: pl.DataFrame, other: pl.DataFrame) -> list[str]:
    agreement = tree_agreement(columns_of(true), columns_of(other))
    sizes = " < ".join(str(other[column].n_unique()) for column in other.columns[1:])
    return [name, way, sizes, *(f"{value:.3f}" for value in agreement.adjusted_rand), f"{100 * agreement.lca:.1f}"]


def trees(options: argparse.Namespace) -> None:
    """Build, compare, write."""
    emoji = read_manifest(options.emoji)
    rows = compared("emoji", emoji, options.out, None)
    glyphs = read_manifest(write_glyphs(options.out / "glyph-images"))
    encoder = Encoder.create("tf_efficientnet_lite0", None, "avg", "bundled", 64, 64)
    seen = glyphs.split("train")
    rows += compared("glyphs", glyphs, options.out, (seen, embed_manifest(encoder, seen, n_workers=0).vectors))
    head = ["set", "built by", "groups", "adjusted Rand, fine", "coarse", "LCA"]
    print(table(head, rows))  # noqa: T201
    if options.page is not None:
        counts = emoji.table["label_0"].n_unique(), seen.table["label_0"].n_unique()
        text = TREES.format(emoji=counts[0], glyphs=counts[1], table=table(head, rows))
        write_section(options.page, "A tree from names, without review", text)


def train(options: argparse.Namespace) -> None:
    """Run what is missing of both suites and lay out the results, tree by tree."""
    head, rows, n_seeds = ["set", "tree", *METRICS, "H-AP against fine"], [], 0
    for file in sorted(SUITES.glob("*.toml")):
        suite = read_suite(file)
        given = {data.name: options.trees / f"{data.name}.csv" for data in suite.data}
        given |= {name: options.emoji for name in given if name == "emoji-true"}
        cells = cells_of(suite, given, options.out / file.stem / "data")
        run_cells(options.out / file.stem, cells, say=print)
        found: dict[str, list[Outcome]] = {}
        for cell, outcome in read_finished(options.out / file.stem, cells).items():
            found.setdefault(cell.data, []).append(outcome)
        n_seeds = len(suite.seeds)
        fine = found[f"{file.stem}-fine"]
        for name, outcomes in found.items():
            values = np.array([[outcome.means[metric] for metric in METRICS] for outcome in outcomes])
            shares = [1 if metric.startswith("severity") else 100 for metric in METRICS]
            cells_shown = [
                f"{m * f:.1f} ± {d * f:.1f}" if f > 1 else f"{m:.2f}"
                for m, d, f in zip(values.mean(0), values.std(0, ddof=1), shares, strict=True)
            ]
            rows.append([file.stem, name.split("-")[1], *cells_shown, difference(fine, outcomes)])
    print(table(head, rows))  # noqa: T201
    if options.page is not None:
        write_section(options.page, "Is it worth training on?", TRAINED.format(seeds=n_seeds, table=table(head, rows)))


def difference(fine: list[Outcome], other: list[Outcome]) -> str:
    """What H-AP gains over the runs without a tree, with its 95 % interval over seeds and classes."""
    gains = [100.0 * (one.class_means["h_ap"] - base.class_means["h_ap"]) for base, one in zip(fine, other, strict=True)]
    effect = paired_effect(np.array(gains, np.float64))
    return "" if fine is other else f"{effect.mean:+.1f} ({effect.interval[0]:+.1f} to {effect.interval[1]:+.1f})"


def generated_names(n_labels: int, seed: int = 0) -> list[str]:
    """Names of an adjective, a thing and a place, all different."""
    rng = np.random.default_rng(seed)
    kinds = [
        "church",
        "castle",
        "lake",
        "bridge",
        "museum",
        "tower",
        "forest",
        "temple",
        "harbour",
        "mill",
        "palace",
        "waterfall",
    ]
    words = ["old", "new", "great", "small", "upper", "lower", "saint", "royal", "white", "black", "north", "south"]
    syllables = ["bra", "ken", "mo", "ri", "sel", "ta", "vin", "dor", "lu", "ham", "ost", "pe", "gra", "wil", "no", "fa"]
    found: dict[str, None] = {}
    while len(found) < n_labels:
        place = "".join(rng.choice(syllables, 3))
        found[f"{rng.choice(words)} {rng.choice(kinds)} of {place}"] = None
    return list(found)


def scale(options: argparse.Namespace) -> None:
    """Time and memory of each step."""
    import torch

    names = generated_names(options.labels)
    columns = {"path": [f"{n}.jpg" for n in range(len(names))], "split": "train", "label": names}
    steps: dict[str, float] = {}
    processor: dict[str, float] = {}
    peaks: dict[str, float] = {}

    def timed(name: str, step: Callable[[], object]) -> None:
        since, worked = time.perf_counter(), time.process_time()
        step()
        steps[name], processor[name] = time.perf_counter() - since, time.process_time() - worked
        peaks[name] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
        print(f"{name}: {steps[name]:.1f} s, {peaks[name]:.0f} MB", flush=True)  # noqa: T201

    with tempfile.TemporaryDirectory() as work:
        folder, file = Path(work) / "work", Path(work) / "manifest.csv"
        pl.DataFrame(columns).write_csv(file)
        timed("collect", lambda: write_step(folder, LABELS, labels_of_manifest(read_manifest(file))))
        timed("clean", lambda: clean_labels(folder, CleanRules(text="name")))
        timed("embed", lambda: embed_terms(folder, show_progress=True))
        timed("cluster", lambda: cluster_terms(folder, ClusterOptions("agglomerative", (1000, 50))))
        timed("review", lambda: Review(folder).act({"action": "rename", "group": 0, "name": "the first group"}))
        timed("apply", lambda: apply_groups(folder, Review(folder).state, read_manifest(file), Path(work) / "new.csv"))
    head = ["step", "seconds", "processor seconds", "memory"]
    lines = table(head, [[name, f"{steps[name]:.1f}", f"{processor[name]:.1f}", f"{peaks[name]:.0f}"] for name in steps])
    embedding = steps["embed"]
    text = SCALE.format(
        labels=len(names),
        threads=torch.get_num_threads(),
        table=lines,
        seconds=sum(steps.values()),
        embedding=embedding,
        rate=len(names) / embedding,
        cpu=sum(processor.values()),
    )
    print(text)  # noqa: T201
    if options.page is not None:
        write_section(options.page, "Speed", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    one = parts.add_parser("trees")
    one.add_argument("--out", type=Path, required=True, help="folder of the steps' files and the manifests")
    one.set_defaults(run=trees)
    other = parts.add_parser("scale")
    other.add_argument("--labels", type=int, default=100_000)
    other.set_defaults(run=scale)
    runs = parts.add_parser("train")
    runs.add_argument("--trees", type=Path, required=True, help="folder that trees wrote")
    runs.add_argument("--out", type=Path, required=True, help="folder of the runs; what is finished there is kept")
    runs.set_defaults(run=train)
    for part in (one, runs):
        part.add_argument("--emoji", type=Path, default=Path("data/emoji/manifest.csv"))
    for part in (one, other, runs):
        part.add_argument("--page", type=Path, default=None, help="also replace the section of this Markdown file")
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
