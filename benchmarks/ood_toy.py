"""Does HEAT's residual learn where a Gaussian mixture is wrong, and leave it alone where it is right?

`python benchmarks/ood_toy.py` prints AUROC and processor time of `gmm`, `knn` and `heat` on five draws of three sets of 16
dimensions and 5 classes: parabolas and rings with heavy tails, whose outliers lie off the curve, and Gaussians, where there
is nothing to correct; with `--trainers nce sgld` also of the papers' trainer. `--out docs` also draws `ood_toy.png`.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from measure import table
from sklearn.metrics import roc_auc_score

from sightline import ood

DIM, N_CLASSES, N_FIT, N_TEST = 16, 5, 5000, 2000
PLAIN: dict[str, object] = {"name": "gmm", "normalise": False}
Curve = Callable[[np.random.Generator, int, bool], np.ndarray]


def parabola(rng: np.random.Generator, n: int, outside: bool) -> np.ndarray:
    """(n, 2) on a parabola; outliers on the one that opens the other way."""
    along = rng.normal(size=n)
    return np.stack([2 * along, (along**2 - 1) * (-1 if outside else 1)], 1)


def ring(rng: np.random.Generator, n: int, outside: bool) -> np.ndarray:
    """(n, 2) on a circle; outliers are normal, with the same covariance."""
    angle = rng.uniform(0, 2 * np.pi, n)
    return 2.5 * rng.normal(size=(n, 2)) if outside else 2.5 * np.sqrt(2) * np.stack([np.cos(angle), np.sin(angle)], 1)


def gaussian(rng: np.random.Generator, n: int, outside: bool) -> np.ndarray:
    """(n, 2) normal; outliers are wider."""
    return rng.normal(size=(n, 2)) * (2 if outside else 1)


def drawn(curve: Curve, n: int, seed: int, outside: bool = False, heavy: bool = True) -> tuple[np.ndarray, np.ndarray]:
    """(n, 16) vectors, the curve in a plane of its own for each class, and (n,) classes."""
    world, rng = np.random.default_rng(7), np.random.default_rng(seed)
    centres = 1.5 * world.normal(size=(N_CLASSES, DIM))
    planes = np.stack([np.linalg.qr(world.normal(size=(DIM, 2)))[0].T for _ in range(N_CLASSES)])  # (C, 2, D)
    labels = np.arange(n) % N_CLASSES
    noise = 0.3 * (rng.standard_t(3, (n, DIM)) if heavy else rng.normal(size=(n, DIM)))
    return centres[labels] + np.einsum("np,npd->nd", curve(rng, n, outside), planes[labels]) + noise, labels


SETS: dict[str, tuple[Curve, bool]] = {"parabolas": (parabola, True), "rings": (ring, True), "Gaussians": (gaussian, False)}


def measured(name: str, trainer: str, seed: int, steps: int | None) -> tuple[dict[str, float], list[str]]:
    """AUROC in percent by scorer, seconds of HEAT's fit, and its notes."""
    curve, heavy = SETS[name]
    fitted, labels = drawn(curve, N_FIT, 10 * seed, heavy=heavy)
    tested = [drawn(curve, N_TEST, 10 * seed + 1 + far, bool(far), heavy)[0] for far in (0, 1)]
    truth = np.repeat([0, 1], N_TEST)

    def auroc(scorer: ood.Scorer) -> float:
        return 100 * float(roc_auc_score(truth, np.concatenate([scorer.score(part) for part in tested])))

    given = {} if steps is None else {"train_steps": steps}
    heat = ood.create("heat", priors=[PLAIN], trainer=trainer, seed=seed, **given)
    since = time.process_time()
    heat.fit(fitted, labels)
    seconds = time.process_time() - since
    plain = {other: ood.create(other, **options) for other, options in (("gmm", {"normalise": False}), ("knn", {}))}
    found = {other: auroc(scorer.fit(fitted, labels)) for other, scorer in plain.items()}
    return {**found, "heat": auroc(heat), "seconds": seconds}, heat.notes


def cloud_with_arm(n: int, seed: int) -> np.ndarray:
    """(n, 2) two thirds of them in a round cloud, the others on a bent arm."""
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, 0.9 * np.pi, n)
    arm = np.stack([2.6 * np.cos(angle) + 2.6, 2.6 * np.sin(angle)], 1) + 0.12 * rng.normal(size=(n, 2))
    cloud = 0.5 * rng.normal(size=(n, 2))
    return np.where(rng.random(n)[:, None] < 2 / 3, cloud, arm)


def draw(file: Path) -> None:
    """The picture of the docs: one Gaussian, the residual, and both."""
    heat = ood.create("heat", priors=[PLAIN]).fit(cloud_with_arm(3000, 0))
    print(*heat.notes)  # noqa: T201
    member = heat.members[0]
    horizontal, vertical = np.meshgrid(np.linspace(-3, 7, 240), np.linspace(-3, 5, 200))
    grid = torch.from_numpy(np.stack([horizontal.ravel(), vertical.ravel()], 1))
    with torch.no_grad():
        prior, both = member.prior.energy(grid).numpy(), member.energy(grid).numpy()
    figure = Figure(figsize=(12, 3.9), layout="constrained")
    data = cloud_with_arm(600, 5)
    panels = {"prior: one Gaussian": prior, "residual": both - prior, "prior + residual": both}
    for axes, (title, energy) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        shown = energy.reshape(horizontal.shape)
        low, high = np.quantile(shown, [0, 0.8])
        axes.contourf(horizontal, vertical, shown.clip(low, high), 20, cmap="viridis_r")
        axes.scatter(*data.T, s=2, color="black", alpha=0.5)
        axes.set_title(title)
    figure.suptitle("Energy, from low (yellow: belongs) to high (dark); dots are data", fontsize=10)
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", choices=[*SETS], default=[*SETS])
    parser.add_argument("--trainers", nargs="+", default=["nce"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=None)
    parser.add_argument("--out", type=Path, default=None, help="folder of the picture")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for name in options.sets:
        for trainer in options.trainers:
            found = []
            for seed in range(options.seeds):
                one, notes = measured(name, trainer, seed, options.steps)
                print(name, trainer, seed, {key: round(value, 1) for key, value in one.items()}, *notes, flush=True)  # noqa: T201
                found.append([*one.values()])
            mean, spread = np.mean(found, 0), np.std(found, 0)
            rows.append([name, trainer, *(f"{m:.1f} ± {s:.1f}" for m, s in zip(mean, spread, strict=True))])
    print(table(["set", "trainer", "`gmm`", "`knn`", "`heat`", "fit, s of one core"], rows))  # noqa: T201
    if options.out is not None:
        draw(options.out / "ood_toy.png")


if __name__ == "__main__":
    main()
