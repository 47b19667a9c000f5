"""How well each scorer tells emoji from other images, from one frozen encoder: the tables and pictures of docs/ood.md.

`python benchmarks/ood_receipts.py --sets sets --work work` computes the cells that are missing in the work folder and
can be stopped and restarted; with `--out docs` it then writes the tables. `--parts` and `--seeds` restrict it. `sets`
holds the output of `sightline data prepare emoji|logos|openclipart|fashion-mnist|glyphs --out sets/...`.

The encoder is EfficientNet-Lite0 with its bundled ImageNet weights at 64 pixels and an untrained projection to 512. For
each seed a fifth of the emoji (all drawings of each) is held out for testing, and the scorers are fitted on the rest,
with the 99
subcategories as classes.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import polars as pl
from measure import table, write_section

from sightline import ood
from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import read_manifest
from sightline.evaluation.detection import DetectionResult
from sightline.models.embed import embed_manifest
from sightline.models.encoder import Encoder

INSIDE, LEVEL = "emoji", 1
OUTSIDE = {"logos": None, "openclipart": 3000, "glyphs": 3000, "fashion-mnist": 3000}  # images drawn, None for all
HOW_FAR = {"logos": "near", "openclipart": "mid", "glyphs": "mid", "fashion-mnist": "far"}
PLAIN: dict[str, dict[str, object]] = {
    "msp": {},
    "maxlogit": {},
    "energy": {},
    "kl_matching": {},
    "react": {},
    "dice": {},
    "mahalanobis": {},
    "knn": {},
    "soft_knn": {},
    "vim": {},
    "gmm": {},
    "gmm + energy": {"scorers": ["gmm", "energy"]},
}
# Members of a composition are trained as they are alone: one fit gives three rows.
BOTH, MEMBERS = "heat-gmm + heat-energy", ("heat-gmm", "heat-energy")
HEAT: dict[str, tuple[dict[str, object], tuple[str, ...]]] = {
    BOTH: ({"priors": ["gmm", "energy"]}, MEMBERS),
    "heat-gmm, sgld": ({"priors": ["gmm"], "trainer": "sgld"}, ()),
}
PRIORS = {MEMBERS[0]: "gmm", MEMBERS[1]: "energy", BOTH: "gmm + energy"}
NAMES = {"gmm + energy": "composition"}
FRACTIONS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0)
BOUNDS = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0)
BETAS = (-10.0, -1.0, -0.1, 0.0, 0.1, 1.0, 10.0)
PARTS = ("plain", "heat", "low_data", "bound", "beta")


def embedded(sets: Path, work: Path, name: str, limit: int | None) -> EmbeddingTable:
    """The table of a set; made once."""
    file = work / f"{name}.parquet"
    if not file.is_file():
        if not (work / "encoder").exists():
            Encoder.create("tf_efficientnet_lite0", 512, weights="bundled", image_size=64).save_pretrained(work / "encoder")
        manifest = read_manifest(sets / name / "manifest.csv", labelled=False)
        if limit is not None and len(manifest) > limit:
            kept = np.zeros(len(manifest), bool)
            kept[np.random.default_rng(0).choice(len(manifest), limit, replace=False)] = True
            manifest = manifest.where(pl.lit(pl.Series(kept)))
        embed_manifest(Encoder.from_pretrained(work / "encoder"), manifest, show_progress=True).write(file)
    return EmbeddingTable.read(file)


class Cells:
    """Results on disk, one file a cell; one that is there is not computed again."""

    def __init__(self, sets: Path, work: Path) -> None:
        self.folder = work / "cells"
        self.folder.mkdir(parents=True, exist_ok=True)
        self.inside = embedded(sets, work, INSIDE, None)
        self.outside = {name: embedded(sets, work, name, limit) for name, limit in OUTSIDE.items()}
        self.labels = self.inside.manifest.labels()

    def parts(self, seed: int, fraction: float) -> tuple[np.ndarray, np.ndarray]:
        """Rows to fit on and rows to test on; no emoji is in both. A fraction is drawn within each class, one at least."""
        rng = np.random.default_rng(seed)
        n_classes = self.labels[:, 0].max() + 1
        tested = np.isin(self.labels[:, 0], rng.permutation(n_classes)[: n_classes // 5])
        fitted = rng.permutation(np.flatnonzero(~tested))
        if fraction < 1:
            n_items = round(fraction * len(fitted))
            place = np.zeros(len(fitted))  # of each row within its class, as a share of the class
            for label in np.unique(self.labels[fitted, LEVEL]):
                own = np.flatnonzero(self.labels[fitted, LEVEL] == label)
                place[own] = (np.arange(len(own)) + rng.random()) / len(own)
            fitted = fitted[np.argsort(place, kind="stable")[:n_items]]
        return fitted, np.flatnonzero(tested)

    def file(self, key: str, seed: int | str) -> Path:
        return self.folder / f"{key.replace(' ', '')}-{seed}.json"

    def cell(
        self,
        key: str,
        name: str,
        options: dict[str, object],
        seed: int,
        fraction: float = 1.0,
        members: tuple[str, ...] = (),
    ) -> None:
        """Metrics of each set and their means; likewise of each member of a composition, under its own key."""
        if not all(self.file(one, seed).is_file() for one in (key, *members)):
            fitted, tested = self.parts(seed, fraction)
            labels = self.labels[fitted, LEVEL]
            seeded = {"seed": seed} if "seed" in ood.scorer_options(name) else {}
            if "k" in ood.scorer_options(name) and name == "knn":
                seeded["k"] = min(50, len(fitted))
            since = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # fewer items than dimensions, which is the point of low_data
                scorer = ood.create(name, **seeded | options).fit(self.inside.vectors[fitted], labels)
            seconds = time.process_time() - since
            for one, part in zip((key, *members), (scorer, *getattr(scorer, "members", ())), strict=False):
                self.measure(one, part, seed, tested, seconds)

    def measure(self, key: str, scorer: ood.Scorer, seed: int, tested: np.ndarray, seconds: float) -> None:
        energies = {other: scorer.score(part.vectors) for other, part in self.outside.items()}
        result = DetectionResult(scorer.score(self.inside.vectors[tested]), energies)
        found = {**result.per_set, "mean": result.means, "cpu": {"seconds": seconds}}
        self.file(key, seed).write_text(json.dumps(found) + "\n")
        print(f"{key} seed {seed}: {100 * result.means['auroc']:.1f} ({seconds:.0f} s of CPU)", flush=True)  # noqa: T201

    def seeds(self, key: str) -> list[dict[str, dict]]:
        """All seeds of a cell that are there."""
        return [json.loads(file.read_text()) for file in sorted(self.folder.glob(self.file(key, "[0-9]").name))]


def compute(cells: Cells, parts: list[str], seeds: range, only: str | None) -> None:
    for seed in seeds:
        if "plain" in parts:
            for key, options in PLAIN.items():
                cells.cell(key, NAMES.get(key, key), options, seed)
        if "heat" in parts:
            for key, (options, members) in HEAT.items():
                if only in (None, key):
                    cells.cell(key, "heat", options, seed, members=members)
        if "beta" in parts:
            for beta in BETAS:
                options = {"scorers": ["gmm", "energy", "soft_knn"], "beta": beta}
                cells.cell(f"beta {beta:g}", "composition", options, seed)
        if "bound" in parts:
            for bound in BOUNDS:
                if bound_key(bound) not in MEMBERS:
                    cells.cell(bound_key(bound), "heat", {"bound": bound}, seed)
        if "low_data" in parts:
            for fraction in FRACTIONS:
                cells.cell(f"gmm at {fraction:g}", "gmm", {}, seed, fraction)
                cells.cell(f"gmm auto at {fraction:g}", "gmm", {"shrinkage": "auto"}, seed, fraction)
                cells.cell(f"knn at {fraction:g}", "knn", {}, seed, fraction)
                if heat_key(fraction) not in MEMBERS:
                    cells.cell(heat_key(fraction), "heat", {}, seed, fraction)


def bound_key(bound: float) -> str:
    """The default's cell is a row of the main table."""
    return MEMBERS[0] if bound == 10 else f"bound {bound:g}"


def heat_key(fraction: float) -> str:
    return MEMBERS[0] if fraction == 1 else f"heat at {fraction:g}"


def shown(found: list[dict[str, dict]], name: str, metric: str) -> str:
    values = 100 * np.array([one[name][metric] for one in found])
    return f"{values.mean():.1f}" + (f" ± {values.std(ddof=1):.1f}" if len(values) > 1 else "")


def main_table(cells: Cells) -> str:
    rows = []
    for key in [*PLAIN, *MEMBERS, *HEAT]:
        if found := cells.seeds(key):
            own = [f"{shown(found, name, 'auroc')} / {shown(found, name, 'fpr95')}" for name in [*OUTSIDE, "mean"]]
            rows.append([f"`{key}`", *own, str(len(found))])
    return table(["scorer", *(f"{name} ({HOW_FAR[name]})" for name in OUTSIDE), "mean", "seeds"], rows)


def gains_table(pairs: dict[str, str], seeds: Callable[[str], list[dict[str, dict]]], sets: list[str]) -> str:
    """What each scorer has over another, in points of AUROC, seed by seed."""
    rows = []
    for key, other in pairs.items():
        after, before = seeds(key), seeds(other)
        if after and len(after) == len(before):
            both = list(zip(after, before, strict=True))
            gains = [100 * np.array([a[name]["auroc"] - b[name]["auroc"] for a, b in both]) for name in [*sets, "mean"]]
            own = [f"{v.mean():+.1f}" + (f" ± {v.std(ddof=1):.1f}" if len(v) > 1 else "") for v in gains]
            rows.append([f"`{key}` less `{other}`", *own, str(len(both))])
    return table(["AUROC", *sets, "mean", "seeds"], rows) if rows else "What residuals add: not measured yet."


def curve_table(cells: Cells, heads: list[str], keys: list[list[str]], points: list[str]) -> str:
    rows = []
    for point, line in zip(points, keys, strict=True):
        found = [cells.seeds(key) for key in line]
        if any(found):
            rows.append([point, *(shown(one, "mean", "auroc") if one else "" for one in found)])
    return table(heads, rows) if rows else f"{heads[-1]} by {heads[0]}: not measured yet."


def write(cells: Cells, out: Path) -> None:
    file = out / "ood.md"
    sizes = ", ".join(f"{len(part):,} of {name}" for name, part in cells.outside.items())
    intro = (
        f"AUROC / FPR95 in percent, mean and deviation over seeds: {len(cells.inside):,} emoji against {sizes}. "
        "`python benchmarks/ood_receipts.py --sets sets --work work --out docs --parts plain heat`\n\n"
    )
    text = f"{intro}{main_table(cells)}\n\n{gains_table(PRIORS, cells.seeds, list(OUTSIDE))}"
    write_section(file, "Emoji against other images", text)
    low = curve_table(
        cells,
        ["share of the fit set", "`gmm`", "`gmm`, shrinkage auto", "`knn`", "`heat`"],
        [[f"gmm at {f:g}", f"gmm auto at {f:g}", f"knn at {f:g}", heat_key(f)] for f in FRACTIONS],
        [f"{100 * f:g} %" for f in FRACTIONS],
    )
    write_section(file, "With less data", f"Mean AUROC over the four sets. `... --parts low_data`\n\n{low}")
    bounds = curve_table(cells, ["bound", "`heat`"], [[bound_key(b)] for b in BOUNDS], [f"{b:g}" for b in BOUNDS])
    betas = curve_table(
        cells, ["beta", "`gmm`, `energy`, `soft_knn`"], [[f"beta {b:g}"] for b in BETAS], [f"{b:g}" for b in BETAS]
    )
    text = f"Mean AUROC over the four sets. `... --parts bound beta`\n\n{bounds}\n\n{betas}"
    write_section(file, "Lambda and beta", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sets", type=Path, required=True)
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=None, help="folder of ood.md")
    parser.add_argument("--parts", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--only", choices=list(HEAT), default=None, help="of the part heat, this one alone")
    options = parser.parse_args()
    cells = Cells(options.sets, options.work)
    compute(cells, options.parts, range(options.seeds), options.only)
    if options.out is not None:
        write(cells, options.out)


if __name__ == "__main__":
    main()
