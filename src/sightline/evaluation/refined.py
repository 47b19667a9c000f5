"""Lists as they are after whitening, database augmentation, query expansion and re-ranking."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from sightline.errors import InputError
from sightline.evaluation.statistics import Counts
from sightline.evaluation.streaming import Vectors
from sightline.models.heads import Whitening
from sightline.ranking.refine import NOTHING, RERANKERS, Refinement, augment_gallery, expand_queries

CANDIDATE_ELEMENTS = 1 << 24  # numbers of candidates' vectors held at once
ABOVE = 4.0  # added to scores of the re-ranking: more than any cosine; float64 holds the sum without a loss

Rescore = Callable[[Counts, Tensor], Tensor]


@dataclass(frozen=True)
class Steps:
    """What is done to the vectors of an evaluation and to the rankings they give, in this order; by default nothing.

    Attributes:
        whitening: of queries and gallery.
        augment: neighbours that each gallery item is augmented by, with the refinement's ``alpha``. They may be queries.
        refinement: of each query. If it is in the gallery itself, that item does not expand it.
    """

    whitening: Whitening | None = None
    augment: int = 0
    refinement: Refinement = NOTHING

    def __post_init__(self) -> None:
        if self.augment < 0:
            raise InputError(f"augment is {self.augment}; at least 0 is needed")

    def one_by_one(self) -> dict[str, "Steps"]:
        """No step, then each added to those before it; by a name for each."""
        refinement = replace(self.refinement, expand=0, rerank=None)
        found = {"no step": Steps(refinement=refinement)}
        if self.whitening is not None:
            found["+ whitening"] = Steps(self.whitening, refinement=refinement)
        if self.augment:
            found[f"+ augmentation by {self.augment}"] = replace(self, refinement=refinement)
        if self.refinement.expand:
            expanded = replace(self.refinement, rerank=None)
            found[f"+ expansion by {expanded.expand}"] = replace(self, refinement=expanded)
        if self.refinement.rerank is not None:
            found[f"+ re-ranking {self.refinement.rerank}"] = self
        return found


def refined(queries: Vectors, gallery: Vectors, own: Counts, steps: Steps) -> tuple[Vectors, Vectors, Rescore | None]:
    """The vectors that are ranked after the steps, and what re-ranks the scores they give.

    Args:
        queries: Q of them.
        gallery: G items.
        own: (Q,) the place of each query in the gallery, in none of its lists; -1 for none.
        steps: what to do.

    Returns:
        Queries, gallery, and a function of some queries' numbers and their (B, G) scores, the gallery in its own order,
        that gives their scores after re-ranking; None where there is none.
    """
    itself, refinement = torch.from_numpy(own), steps.refinement
    dtype = torch.promote_types(queries.dtype, gallery.dtype)
    rows, items = (side.take(np.arange(len(side)), dtype) for side in (queries, gallery))
    if steps.whitening is not None:
        rows, items = steps.whitening(rows), steps.whitening(items)
    if steps.augment:
        items = augment_gallery(items, steps.augment, refinement.alpha)
    if refinement.expand:
        rows = expand_queries(rows, items, refinement.expand, refinement.alpha, itself)
    sides = Vectors(rows, "queries"), Vectors(items, "gallery")
    if refinement.rerank is None:
        return *sides, None
    rerank = RERANKERS[refinement.rerank]

    def rescored(numbers: Counts, scores: Tensor) -> Tensor:
        hidden = scores.masked_fill(torch.arange(len(items)) == itself[numbers, None], -torch.inf)
        places = hidden.sort(dim=1, descending=True, stable=True).indices
        found = scores.double()
        lengths = np.minimum(refinement.depth, len(items) - (own[numbers] >= 0))
        for length in np.unique(lengths[lengths > 0]).tolist():
            n_rows = max(1, CANDIDATE_ELEMENTS // (length * items.shape[1]))
            for some in torch.from_numpy(np.flatnonzero(lengths == length)).split(n_rows):
                near = places[some, :length]
                reranked = rerank(rows[numbers[some.numpy()]], items[near], refinement.reciprocal)
                found[some[:, None], near] = ABOVE + reranked.double()
        return found

    return *sides, rescored
