"""Scorers on pairs of sets: the cells in `benchmarks/evidence/ood`, of which `ood_tables.py` makes tables of docs/ood.md.

`python benchmarks/ood_cells.py --work work` computes the missing cells, from the files of `ood_inputs.py`; it can be
stopped and started again. A cell is a scorer on an in-distribution set, against all outlier sets of its setting; its file
holds every seed. `--only`, `--parts` and `--seeds` restrict it.

A seed draws which classes (of a classifier: which images) are tested, and is that of the scorer. Vectors of more than 256
dimensions are reduced to the 256 first principal components of the images fitted. Options are defaults unless a row says
otherwise: nothing was chosen on outliers.
"""

import argparse
import json
import time
import warnings
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import polars as pl
import torch
from ood_inputs import MOST_FITTED, SETTINGS, SIZE, Setting

from sightline import ood
from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import Manifest
from sightline.evaluation.detection import DetectionResult

EVIDENCE = Path(__file__).parent / "evidence" / "ood"
MOST_DIMENSIONS, MOST_TESTED, TESTED = 256, 1000, 0.2
Options = dict[str, object]
LIBRARY = (
    "ash", "dice", "fdbd", "gen", "kl_matching", "lts", "mahalanobis", "maxlogit", "msp", "nci", "nnguide", "pnml", "react",
    "rmd", "scale", "she", "vim",
)  # fmt: skip
PLAIN: dict[str, tuple[str, Options]] = {
    **{name: (name, {}) for name in LIBRARY},
    "energy": ("energy", {}),
    "gmm": ("gmm", {}),
    "gmm, shrinkage=auto": ("gmm", {"shrinkage": "auto"}),
    "gmm, normalise=False": ("gmm", {"normalise": False}),
    "knn, k=5": ("knn", {"k": 5}),
    "knn, k=50": ("knn", {"k": 50}),
    "soft_knn": ("soft_knn", {}),
    "gmm_std": ("gmm_std", {}),
    "gmm + gmm_std + energy": ("composition", {"scorers": ["gmm", "gmm_std", "energy"]}),
}
OF_MAPS = ("gmm_std", "gmm + gmm_std + energy")
ALL_THREE = ("heat-gmm", "heat-gmm_std", "heat-energy")  # members of a composition are trained as they are alone
PRIORS = {"heat-gmm": "gmm", "heat-gmm_std": "gmm_std", "heat-energy": "energy", "heat": "gmm + gmm_std + energy"}
NO_PRIOR: Options = {"priors": [{"name": "gmm", "components": "one"}], "keep": "always"}
HEAT: dict[str, tuple[Options, tuple[str, ...]]] = {
    "heat-gmm": ({"priors": ["gmm"]}, ()),
    "heat": ({"priors": ["gmm", "gmm_std", "energy"]}, ALL_THREE),
    "heat-energy": ({"priors": ["energy"]}, ()),
    "energy model without a prior": (NO_PRIOR, ()),
    "heat-gmm, sgld": ({"priors": ["gmm"], "trainer": "sgld"}, ()),
}
RECOMMENDED = "recommended"
PARTS = ("plain", "heat", "recommend", "energy", "ebm", "sgld")
OF_PART = {"energy": "heat-energy", "ebm": "energy model without a prior", "sgld": "heat-gmm, sgld"}


class Inputs:
    """What a seed fits on and tests, of one setting."""

    def __init__(self, folder: Path, setting: Setting, seed: int) -> None:
        rng = np.random.default_rng(seed)
        inside = dict(np.load(folder / f"{setting.inside}.npz"))
        self.is_network, self.classifier = setting.image_size == SIZE, None
        if self.is_network:  # of a classifier, classes are what it knows
            head = np.load(folder / "head.npz")
            self.classifier = ood.Classifier(torch.from_numpy(head["vectors"]), torch.from_numpy(head["bias"]))
            pool = dict(np.load(folder / "train.npz"))
            fitted, tested = (rng.permutation(len(part["labels"])) for part in (pool, inside))
        else:
            pool, finest = inside, inside["labels"][:, 0]
            classes = rng.permutation(np.unique(finest))
            is_tested = np.isin(finest, classes[: round(TESTED * len(classes))])
            fitted, tested = (rng.permutation(np.flatnonzero(rows)) for rows in (~is_tested, is_tested))
        fitted, tested = fitted[:MOST_FITTED], tested[:MOST_TESTED]
        self.finest, self.labels = pool["labels"][fitted].T
        self.fitted, self.tested = _rows(pool, fitted), _rows(inside, tested)
        self.outside = {name: _rows(dict(np.load(folder / f"{name}.npz"))) for name in setting.outside}
        if self.fitted["vectors"].shape[1] > MOST_DIMENSIONS:
            axes = np.linalg.eigh(np.cov(self.fitted["vectors"], rowvar=False))[1][:, : -MOST_DIMENSIONS - 1 : -1]
            for one in (self.fitted, self.tested, *self.outside.values()):
                one["vectors"] = (one["vectors"] @ axes).astype(np.float32)

    def table(self) -> EmbeddingTable:
        """The images fitted, for `recommend`."""
        rows = [str(row) for row in range(len(self.labels))]
        levels = {"label_0": self.finest.astype(str), "label_1": self.labels.astype(str)}
        images = pl.DataFrame({"id": rows, "path": rows, "split": "train", **levels})
        return EmbeddingTable(Manifest(Path("receipts"), Path(), images, 2), self.fitted["vectors"], "receipts")


def _rows(arrays: dict[str, np.ndarray], rows: np.ndarray | slice = slice(None)) -> dict[str, np.ndarray]:
    return {kind: arrays[kind][rows] for kind in ("vectors", "feature maps") if kind in arrays}


class Cells:
    """Files of results; one seed that is there is not computed again."""

    def __init__(self, evidence: Path, key: str) -> None:
        self.folder, self.key, self.setting = evidence, key, SETTINGS[key]

    def file(self, scorer: str) -> Path:
        name = scorer.replace(", ", "-").replace(" + ", "+").replace(" ", "-").replace("=", "")
        return self.folder / f"{self.key}-{name}.json"

    def read(self, scorer: str) -> dict[str, dict]:
        """By seed."""
        return json.loads(self.file(scorer).read_text())["seeds"] if self.file(scorer).is_file() else {}

    def add(self, scorer: str, seed: int, found: dict[str, object]) -> None:
        setting = self.setting
        described = {"scorer": scorer, "inside": setting.inside, "outside": setting.outside, "encoder": setting.encoder}
        described |= {"training": setting.training, "image_size": setting.image_size}
        seeds = dict(sorted((self.read(scorer) | {str(seed): found}).items()))
        self.folder.mkdir(parents=True, exist_ok=True)
        scratch = self.file(scorer).with_suffix(".part")
        scratch.write_text(json.dumps({**described, "seeds": seeds}, indent=1) + "\n")
        scratch.replace(self.file(scorer))

    def measure(
        self, inputs: Inputs, key: str, name: str, options: Options, seed: int, members: tuple[str, ...] = ()
    ) -> None:
        """Fit and test a scorer; the members of a composition under their own keys, from the same fit."""
        if all(str(seed) in self.read(one) for one in (key, *members)):
            return
        seeded = {"seed": seed} if "seed" in ood.scorer_options(name) else {}
        since = time.process_time()
        scorer = ood.create(name, **seeded, **options)
        classifier = None if name in ("gmm", "knn", "soft_knn", "gmm_std") else inputs.classifier
        scorer.fit(_given(scorer, inputs.fitted), inputs.labels, classifier)
        seconds = time.process_time() - since
        for one, part in zip((key, *members), (scorer, *getattr(scorer, "members", ())), strict=False):
            energies = {other: part.score(_given(part, rows)) for other, rows in inputs.outside.items()}
            result = DetectionResult(part.score(_given(part, inputs.tested)), energies)
            figures = {
                other: {"auroc": 100 * values["auroc"], "fpr95": 100 * values["fpr95"], "tested": len(energies[other])}
                for other, values in result.per_set.items()
            }
            self.add(
                one,
                seed,
                {
                    "fitted": len(inputs.labels),
                    "tested": len(inputs.tested["vectors"]),
                    "dimensions": inputs.fitted["vectors"].shape[1],
                    "seconds": round(seconds if one == key else 0.0, 2),
                    "notes": part.notes,
                    "sets": {other: {k: round(v, 3) for k, v in values.items()} for other, values in figures.items()},
                },
            )
            print(self.key, one, seed, f"{np.mean([v['auroc'] for v in figures.values()]):.2f}", *part.notes, flush=True)  # noqa: T201

    def recommend(self, inputs: Inputs, seed: int) -> None:
        """What is recommended, and how it does; again for a seed of which an earlier version noted only what."""
        if str(seed) not in self.read(RECOMMENDED):
            since = time.process_time()
            advice = ood.recommend(inputs.table(), seed, level=1)
            found = {"name": advice.name, "options": advice.options, "auroc": advice.auroc}
            self.add("recommend", seed, {**found, "seconds": round(time.process_time() - since, 2)})
            print(self.key, "recommend", seed, advice.reason, flush=True)  # noqa: T201
            self.measure(inputs, RECOMMENDED, advice.name, advice.options, seed)


def _given(scorer: ood.Scorer, rows: dict[str, np.ndarray]) -> np.ndarray | dict[str, np.ndarray]:
    return rows if len(scorer.needs) > 1 else rows[scorer.needs[0]]


def compute(cells: Cells, folder: Path, seed: int, parts: Iterable[str]) -> None:
    inputs = Inputs(folder, cells.setting, seed)
    for part in parts:
        if part == "plain":
            for key, (name, options) in PLAIN.items():
                if inputs.is_network or key not in OF_MAPS:
                    cells.measure(inputs, key, name, options, seed)
        elif part == "recommend":
            cells.recommend(inputs, seed)
        else:
            key = OF_PART.get(part, "heat" if inputs.is_network else "heat-gmm")
            options, members = HEAT[key]
            cells.measure(inputs, key, "heat", options, seed, members)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of ood_inputs.py")
    parser.add_argument("--only", nargs="+", choices=[*SETTINGS], default=[*SETTINGS])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS[:3]))
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", UserWarning)
    for part in options.parts:
        for seed in range(options.seeds):
            for key in options.only:
                folder = options.work / "inputs" / key
                if (folder / f"{list(SETTINGS[key].outside)[-1]}.npz").is_file():
                    compute(Cells(EVIDENCE, key), folder, seed, [part])


if __name__ == "__main__":
    main()
