"""The effect of the residual in two dimensions: a round cloud with a bent arm, and one Gaussian as prior.

`python benchmarks/ood_toy.py --out docs` draws `ood_toy.png` and prints the held-out log-density ratio of hybrid to prior.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from sightline import ood
from sightline.ood.heat import ResidualEnergy

# With T = 1 and chains that sample the hybrid itself, exp(-energy) is a density: its ratio to the prior's can be measured.
SETTINGS: dict[str, object] = {
    "priors": [{"name": "gmm", "normalise": False}],
    "temperature": 1.0,
    "weight": 0.1,
    "coupled": True,
    "step": (0.05, 0.05),
    "negatives": "chain",
    "hidden": 64,
    "lr": 1e-3,
}


def cloud_with_arm(n: int, seed: int) -> np.ndarray:
    """(n, 2) two thirds of them in a round cloud, the others on a bent arm."""
    rng = np.random.default_rng(seed)
    angle = rng.uniform(0, 0.9 * np.pi, n)
    arm = np.stack([2.6 * np.cos(angle) + 2.6, 2.6 * np.sin(angle)], 1) + 0.12 * rng.normal(size=(n, 2))
    cloud = 0.5 * rng.normal(size=(n, 2))
    return np.where(rng.random(n)[:, None] < 2 / 3, cloud, arm)


def log_density_ratio(member: ResidualEnergy, held_out: np.ndarray, n_samples: int = 100_000) -> float:
    """Mean of ``log p_hybrid - log p_prior`` over held-out points, in nats; its normaliser from samples of the prior."""
    with torch.no_grad():
        samples = member.prior.sample(n_samples, torch.Generator().manual_seed(0))
        if samples is None:
            raise ValueError("the prior has no samples to draw")
        normaliser = (-member.residual(samples)).logsumexp(0) - np.log(n_samples)
        return float(-member.residual(torch.from_numpy(held_out)).mean() - normaliser)


def draw(heat: ood.Heat, file: Path) -> None:
    member = heat.members[0]
    horizontal, vertical = np.meshgrid(np.linspace(-3, 7, 240), np.linspace(-3, 5, 200))
    grid = torch.from_numpy(np.stack([horizontal.ravel(), vertical.ravel()], 1))
    with torch.no_grad():
        prior, residual = member.prior.energy(grid).numpy(), member.residual(grid).numpy()
    figure = Figure(figsize=(12, 3.9), layout="constrained")
    data = cloud_with_arm(600, 5)
    panels = {"prior: one Gaussian": prior, "residual": residual, "prior + residual": prior + residual}
    for axes, (title, energy) in zip(figure.subplots(1, 3), panels.items(), strict=True):
        shown = energy.reshape(horizontal.shape)
        low, high = np.quantile(shown, [0, 0.8])
        axes.contourf(horizontal, vertical, shown.clip(low, high), 20, cmap="viridis_r")
        axes.scatter(*data.T, s=2, color="black", alpha=0.5)
        axes.set_title(title)
    figure.suptitle("Energy, from low (yellow: belongs) to high (dark); dots are data", fontsize=10)
    figure.savefig(file, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None, help="folder of the picture")
    parser.add_argument("--epochs", type=int, default=40)
    options = parser.parse_args()
    torch.set_num_threads(1)
    heat = ood.create("heat", epochs=options.epochs, **SETTINGS).fit(cloud_with_arm(3000, 0))
    print(f"held-out log-density ratio: {log_density_ratio(heat.members[0], cloud_with_arm(3000, 1)):+.3f} nats")  # noqa: T201
    if options.out is not None:
        draw(heat, options.out / "ood_toy.png")


if __name__ == "__main__":
    main()
