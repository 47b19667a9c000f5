"""Draws from densities on the sphere."""

import torch
import torch.nn.functional as F
from torch import Tensor


def mixture_on_sphere(directions: Tensor, concentration: float, n: int, generator: torch.Generator) -> Tensor:
    """Draw from a mixture, in equal parts, of von Mises-Fisher densities ``exp(concentration * cos)`` (Wood, 1994).

    Args:
        directions: (C, D) unit vectors, the middle of each density; D at least 2.
        concentration: 0 for the whole sphere evenly.
        n: how many.
        generator: of the draws, on the CPU.

    Returns:
        (n, D) unit vectors of the directions' type.

    Example:
        >>> drawn = mixture_on_sphere(torch.eye(3)[:1], 1000.0, 500, torch.Generator().manual_seed(0))
        >>> bool((drawn[:, 0] > 0.97).all()), bool((drawn.norm(dim=1) - 1).abs().max() < 1e-5)
        (True, True)
    """
    middle = directions[torch.randint(len(directions), (n,), generator=generator).to(directions.device)]
    dim = directions.shape[1]
    cosine = _cosines(dim, concentration, n, generator).to(directions)
    noise = torch.randn(n, dim, generator=generator, dtype=torch.float64).to(directions)
    tangent = F.normalize(noise - (noise * middle).sum(1, keepdim=True) * middle, dim=1)
    return cosine[:, None] * middle + (1 - cosine**2).clamp(min=0).sqrt()[:, None] * tangent


def _cosines(dim: int, concentration: float, n: int, generator: torch.Generator) -> Tensor:
    """(n,) float64 cosines to the middle, by rejection; a draw is kept with a probability above one half."""
    m = dim - 1
    b = m / (2 * concentration + (4 * concentration**2 + m**2) ** 0.5)
    x = (1 - b) / (1 + b)
    c = concentration * x + m * torch.log(torch.tensor(1 - x**2, dtype=torch.float64))
    kept = torch.empty(0, dtype=torch.float64)
    while len(kept) < n:
        gammas = torch._standard_gamma(torch.full((2, 2 * n), m / 2, dtype=torch.float64), generator=generator)
        z = gammas[0] / gammas.sum(0)  # beta(m / 2, m / 2)
        w = (1 - (1 + b) * z) / (1 - (1 - b) * z)
        uniform = torch.rand(2 * n, generator=generator, dtype=torch.float64)
        accepted = concentration * w + m * torch.log(1 - x * w) - c >= torch.log(uniform)
        kept = torch.cat([kept, w[accepted]])
    return kept[:n]
