"""The pictures that explain the method, drawn by the losses themselves: ``python docs/make_concepts.py``."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from sightline.losses import blackbox_ap_loss, fast_ap_loss, smooth_ap_loss, softbin_ap_loss, sup_ap_loss
from sightline.losses.average_precision import one_minus_ap
from sightline.losses.blackbox import blackbox_ranks
from sightline.ranking.ranks import SigmoidStep, Step, SupStep, exact_counts, smooth_counts
from sightline.report.style import BLUE, GREEN, INK, ORANGE, PURPLE, VERMILLION, drawing, write_figure

Loss = Callable[[Tensor, Tensor], Tensor]

TOY_SCORES, TOY_RELEVANT = (0.50, 0.51, 0.64), (True, True, False)
N_SCORES, N_RELEVANT = 20, 6  # of the landscapes
SIDE, ARROWS = 161, 13  # points along an axis of a landscape, and arrows
ARROW = {"arrowstyle": "->", "color": INK}
REACH = 0.25  # how far the section goes from its centre, in scores


class Section(NamedTuple):
    """A plane through the space of scores: a centre and two unit directions at right angles."""

    centre: Tensor
    across: Tensor
    up: Tensor

    def at(self, x: Tensor, y: Tensor) -> Tensor:
        """(N, 20) the scores at points of the plane."""
        return self.centre + x.reshape(-1, 1) * self.across + y.reshape(-1, 1) * self.up


def write_concepts(folder: Path) -> list[Path]:
    """Write every picture to the folder as PNG and SVG."""
    drawn = {
        "rank-surrogates": surrogates_figure(),
        "toy-gradients": toy_figure(),
        "loss-landscapes": landscapes_figure(),
        "rank-landscapes": rank_landscapes_figure(),
    }
    return [path for name, figure in drawn.items() for path in write_figure(figure, Path(folder), name, dpi=90)]


def surrogates_figure() -> Figure:
    """The step H that ranks count with, the sigmoid and H-, and their slopes."""
    gap = torch.cat([torch.linspace(-0.06, -1e-6, 400), torch.linspace(0, 0.08, 600)]).double()
    steps: dict[str, tuple[Step, str, str]] = {
        "sigmoid (SmoothAP)": (SigmoidStep(), ORANGE, "--"),
        "H⁻ (SupAP)": (SupStep(), BLUE, "-"),
    }
    with drawing(9.2, 3.4, ncols=2) as (figure, (left, right)):
        left.plot(gap, (gap >= 0).double(), ":", color=INK, linewidth=2, label="H, the true step")
        for name, (step, colour, line) in steps.items():
            left.plot(gap, step.value(gap), line, color=colour, linewidth=2, label=name)
            right.plot(gap, step.slope(gap), line, color=colour, linewidth=2, zorder=2 + (line == "--"), label=name)
        left.set(
            title="What a pair adds to the rank",
            xlabel="score of the irrelevant item minus the relevant one",
            ylabel="value",
        )
        right.set(title="What it pushes with", xlabel="score of the irrelevant item minus the relevant one", ylabel="slope")
        left.legend(fontsize=9, loc="upper left")
        right.axhline(0, color=INK, linestyle=":", linewidth=2)
        right.annotate(
            "the sigmoid lets go\nof gross mistakes", (0.07, 3), (-0.058, 60), fontsize=9, color=INK, arrowprops=ARROW
        )
        for axes in (left, right):
            axes.set_xticks([-0.05, 0, 0.05])
    return figure


def _half_sup(scores: Tensor, relevance: Tensor) -> Tensor:
    """Average precision with the exact rank among relevant items, and a sigmoid for the others."""
    among = exact_counts(scores, scores, relevance).to(scores)
    rank = among + smooth_counts(scores, scores, ~relevance, SigmoidStep())
    return one_minus_ap(among, rank, relevance)


def toy_losses() -> dict[str, Loss]:
    """From SmoothAP to SupAP in two steps."""
    return {"smooth_ap": smooth_ap_loss, "exact rank⁺, sigmoid": _half_sup, "sup_ap": sup_ap_loss}


def toy_gradients() -> dict[str, list[float]]:
    """The slope of each loss on the papers' toy example: two relevant scores below one irrelevant one."""
    found = {}
    for name, loss in toy_losses().items():
        scores = torch.tensor([TOY_SCORES], dtype=torch.float64, requires_grad=True)
        (slopes,) = torch.autograd.grad(loss(scores, torch.tensor([TOY_RELEVANT])), scores)
        found[name] = slopes[0].tolist()
    return found


def toy_figure() -> Figure:
    """The toy example: where each loss pushes the three scores, and where they go when it is followed."""
    colours, names = (GREEN, PURPLE, VERMILLION), ("x₁ relevant", "x₂ relevant", "x₃ irrelevant")
    gradients = toy_gradients()
    with drawing(9.2, 5.6, nrows=2, ncols=3) as (figure, grid):
        for axes, (name, slopes) in zip(grid[0], gradients.items(), strict=True):
            push = -np.array(slopes)
            bars = axes.bar(names, push, color=colours, hatch=None)
            for bar, mark in zip(bars, ("", "//", ".."), strict=True):
                bar.set_hatch(mark)
                bar.set_edgecolor("white")
            axes.bar_label(bars, [f"{value:+.2g}" for value in push], padding=3, fontsize=8, color=INK)
            axes.axhline(0, color=INK, linewidth=0.8)
            axes.set_ylim(-1.4, 1.1)
            axes.set(title=name, ylabel="push on the score" if name == "smooth_ap" else "")
            axes.tick_params(axis="x", labelsize=8)
        for axes, (name, loss) in zip(grid[1], toy_losses().items(), strict=True):
            track = followed(loss, 200)
            for row, colour, line, called in zip(track.T, colours, ("-", "--", ":"), names, strict=True):
                axes.plot(row, line, color=colour, linewidth=2, label=called)
            axes.set(xlabel="steps of gradient descent", ylabel="score" if name == "smooth_ap" else "")
            axes.set_ylim(0.44, 0.68)
        grid[1][0].legend(fontsize=8, loc="center right")
    return figure


def followed(loss: Loss, n_steps: int, rate: float = 1e-3) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """(n_steps + 1, 3) the toy scores when the gradient of a loss is followed."""
    scores = torch.tensor([TOY_SCORES], dtype=torch.float64)
    track = [scores]
    for _ in range(n_steps):
        leaf = scores.clone().requires_grad_()
        (slope,) = torch.autograd.grad(loss(leaf, torch.tensor([TOY_RELEVANT])), leaf)
        scores = scores - rate * slope
        track.append(scores)
    return torch.cat(track).numpy()


def landscape_section(seed: int = 4) -> tuple[Section, Tensor]:
    """A random plane through 20 scores, and which of them are relevant."""
    draws = torch.Generator().manual_seed(seed)
    centre = 0.5 + 0.1 * torch.randn(N_SCORES, generator=draws, dtype=torch.float64)
    directions = torch.linalg.qr(torch.randn(N_SCORES, 2, generator=draws, dtype=torch.float64)).Q
    relevant = torch.zeros(N_SCORES, dtype=torch.bool)
    relevant[torch.randperm(N_SCORES, generator=draws)[:N_RELEVANT]] = True
    return Section(centre, directions[:, 0], directions[:, 1]), relevant


def _each(loss: Loss, scores: Tensor, relevant: Tensor) -> tuple[Tensor, Tensor]:
    """(N,) the loss of each row as a list of its own, and (N, G) its slopes."""
    values, slopes = [], []
    for row in scores:
        leaf = row[None].clone().requires_grad_()
        value = loss(leaf, relevant[None])
        (slope,) = torch.autograd.grad(value, leaf)
        values.append(value.detach())
        slopes.append(slope[0])
    return torch.stack(values), torch.stack(slopes)


def _exact(scores: Tensor, relevant: Tensor) -> Tensor:
    """(N,) one minus average precision of each row."""
    relevance = relevant.expand_as(scores)
    rank = exact_counts(scores, scores, torch.ones_like(relevance))
    among = exact_counts(scores, scores, relevance)
    return 1 - (among / rank * relevance).sum(1) / relevance.sum(1)


def landscapes_figure() -> Figure:
    """One minus average precision over a plane through 20 scores, its surrogates, and the way down that each one shows."""
    section, relevant = landscape_section()
    losses: dict[str, Loss] = {
        "smooth_ap: sigmoid, τ 0.01": smooth_ap_loss,
        "sup_ap: H⁻ (its logarithm)": sup_ap_loss,
        "softbin_ap: 20 bins": softbin_ap_loss,
        "fast_ap: 10 bins": fast_ap_loss,
        "blackbox_ap: λ 4": lambda scores, relevance: blackbox_ap_loss(scores, relevance, strength=4.0, margin=0.0),
    }
    fine = torch.linspace(-REACH, REACH, SIDE, dtype=torch.float64)
    y, x = torch.meshgrid(fine, fine, indexing="ij")
    coarse = torch.linspace(-0.9 * REACH, 0.9 * REACH, ARROWS, dtype=torch.float64)
    arrow_y, arrow_x = torch.meshgrid(coarse, coarse, indexing="ij")
    exact = _exact(section.at(x, y), relevant).reshape(SIDE, SIDE)
    with drawing(9.6, 6.4, nrows=2, ncols=3, sharex=True, sharey=True) as (figure, grid):
        _name_axes(figure)
        _surface(grid[0][0], exact, "1 − AP: flat steps, no way down")
        for axes, (name, loss) in zip(grid.flat[1:], losses.items(), strict=True):
            if name.startswith("blackbox"):
                values = exact  # its value is the metric; only its slope is another's
            else:
                values = _grid_values(loss, section.at(x[::2, ::2], y[::2, ::2]), relevant).reshape(SIDE // 2 + 1, -1)
            _surface(axes, values.log() if name.startswith("sup_ap") else values, name)
            slopes = -_each(loss, section.at(arrow_x, arrow_y), relevant)[1]
            along = torch.stack([slopes @ section.across, slopes @ section.up], 1)
            length = along.norm(dim=1, keepdim=True)
            along = along / length.clamp(min=1e-12) * (length > 1e-6)  # directions: lengths differ by orders of magnitude
            # White with a black edge: seen on the dark end of the colours and on the light one.
            axes.quiver(arrow_x, arrow_y, *along.T, color="white", edgecolor="black", linewidth=0.5, scale=22, width=0.007)
    return figure


def _grid_values(loss: Loss, scores: Tensor, relevant: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.stack([loss(row[None], relevant[None]) for row in scores])


def rank_landscapes_figure() -> Figure:
    """As in RaMBO's appendix: a linear combination of 20 ranks over a plane, and the ranks' surrogates in their place."""
    section, _ = landscape_section()
    weights = torch.randn(N_SCORES, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    fine = torch.linspace(-REACH, REACH, SIDE, dtype=torch.float64)
    y, x = torch.meshgrid(fine, fine, indexing="ij")
    scores = section.at(x, y)
    surfaces = {"exact ranks": _ranks(scores) @ weights}
    for strength in (0.02, 0.05, 0.2):
        surfaces[f"blackbox, λ {strength:g}"] = interpolation(scores, weights, strength)
    counted = torch.ones_like(scores, dtype=torch.bool)
    for tau in (0.01, 0.05):
        smooth = 0.5 + smooth_counts(scores, scores, counted, SigmoidStep(tau))
        surfaces[f"sigmoid, τ {tau:g}"] = smooth @ weights
    with drawing(9.6, 6.4, nrows=2, ncols=3, sharex=True, sharey=True) as (figure, grid):
        _name_axes(figure)
        for axes, (name, surface) in zip(grid.flat, surfaces.items(), strict=True):
            _surface(axes, surface.reshape(SIDE, SIDE), name)
    return figure


def _ranks(scores: Tensor) -> Tensor:
    """(N, G) exact ranks from 1."""
    return blackbox_ranks(scores, torch.zeros_like(scores, dtype=torch.bool)) * scores.shape[1]


def interpolation(scores: Tensor, weights: Tensor, strength: float) -> Tensor:
    """(N,) the piecewise linear function whose slope is the blackbox gradient of ``ranks @ weights``.

    Args:
        scores: (N, G).
        weights: (G,) of the ranks.
        strength: lambda, on ranks from 1 to G.
    """
    moved = scores + strength * weights
    return ((moved * _ranks(moved)).sum(1) - (scores * _ranks(scores)).sum(1)) / strength


def _name_axes(figure: Figure) -> None:
    figure.supxlabel("distance from the centre along the first direction (scores)", fontsize=10)
    figure.supylabel("along the second (scores)", fontsize=10)


def _surface(axes: Axes, values: Tensor, title: str) -> None:
    side = np.linspace(-REACH, REACH, values.shape[0])
    shading: Literal["gouraud", "nearest"] = "gouraud" if len(values) < SIDE else "nearest"
    # As one image inside the drawing: thousands of tiles would make a file that no reader opens.
    axes.pcolormesh(side, side, values, cmap="cividis", shading=shading, rasterized=True)
    axes.set(title=title)
    axes.grid(visible=False)
    axes.set_xticks([-0.2, 0, 0.2])
    axes.set_yticks([-0.2, 0, 0.2])


if __name__ == "__main__":
    write_concepts(Path(__file__).parent / "figures")
