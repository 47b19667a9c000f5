"""Random draws of a loss that a resumed run repeats."""

import numpy as np
import torch
from torch import nn

from sightline.errors import InputError


class SeededDraws(nn.Module):
    """A new generator for each call, by the seed and how many were made: the count is in the loss's state.

    Example:
        >>> draws = SeededDraws(seed=1)
        >>> first, second = draws.next(), draws.next()
        >>> bool(torch.rand(1, generator=first) == torch.rand(1, generator=second))
        False
    """

    n_drawn: torch.Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        if seed < 0:
            raise InputError(f"seed is {seed}; a whole number of 0 or more is needed")
        self.seed = seed
        self.register_buffer("n_drawn", torch.zeros((), dtype=torch.int64))

    def next(self) -> torch.Generator:
        """A generator on the CPU."""
        state = np.random.SeedSequence([self.seed, int(self.n_drawn)]).generate_state(1, np.uint64)
        self.n_drawn = self.n_drawn + 1
        return torch.Generator().manual_seed(int(state[0]))
