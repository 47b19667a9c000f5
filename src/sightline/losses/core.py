"""The ranking core as losses call it: ``torch.compile`` leaves it as it is, with a break in its graph."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from sightline.ranking import levels, profile, relevance

P = ParamSpec("P")
T = TypeVar("T")


def uncompiled(function: Callable[P, T]) -> Callable[P, T]:
    """The function, run as it is inside ``torch.compile``: tracing it would reach into numba."""

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        # Not a decorator once and for all: that loads the compiler, which takes a second.
        chosen = torch.compiler.disable(function) if torch.compiler.is_compiling() else function
        return chosen(*args, **options)

    return call


batch_pairs = uncompiled(relevance.batch_pairs)
level_counts = uncompiled(levels.level_counts)
rank_loss = uncompiled(profile.rank_loss)
shared_levels = uncompiled(levels.shared_levels)
