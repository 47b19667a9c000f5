"""A rank loss and a decomposability term, weighed against each other."""

from torch import Tensor, nn

from sightline.errors import InputError
from sightline.losses.average_precision import sup_ap_loss
from sightline.losses.pairwise import calibration_loss
from sightline.ranking.relevance import batch_pairs


def roadmap_loss(
    scores: Tensor,
    relevance: Tensor,
    mask: Tensor | None = None,
    weight: float = 0.5,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float = 0.05,
    alpha: float = 0.9,
    beta: float = 0.6,
) -> Tensor:
    """``(1 - weight) * sup_ap_loss + weight * calibration_loss``: ROADMAP with the pair form of decomposability.

    Args:
        scores: (Q, G) similarity of each query to each item.
        relevance: (Q, G) bool, or numbers: above 0 is relevant.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        weight: share of the calibration term, in [0, 1].
        tau: as in :func:`~sightline.losses.sup_ap_loss`, like ``rho`` and ``delta``.
        rho: slope for far mistakes.
        delta: where that slope starts.
        alpha: as in :func:`~sightline.losses.calibration_loss`, like ``beta``.
        beta: what irrelevant scores should stay under.

    Returns:
        () the weighted sum of the two means.

    Example:
        >>> import torch
        >>> scores = torch.tensor([[0.50, 0.51, 0.64]])
        >>> roadmap_loss(scores, torch.tensor([[True, True, False]]))
        tensor(0.6537)
    """
    if not 0 <= weight <= 1:
        raise InputError(f"weight is {weight}; a number from 0 to 1 is needed")
    rank_term = sup_ap_loss(scores, relevance, mask, tau, rho, delta)
    return (1 - weight) * rank_term + weight * calibration_loss(scores, relevance, mask, alpha, beta)


class RoadmapLoss(nn.Module):
    """:func:`roadmap_loss` over a batch in which each item queries all the others, or a reference set.

    Of labels in levels the finest counts.
    """

    def __init__(
        self,
        weight: float = 0.5,
        tau: float = 0.01,
        rho: float = 100.0,
        delta: float = 0.05,
        alpha: float = 0.9,
        beta: float = 0.6,
    ) -> None:
        super().__init__()
        self.weight, self.tau, self.rho, self.delta, self.alpha, self.beta = weight, tau, rho, delta, alpha, beta

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        pairs = batch_pairs(embeddings, labels, ref_emb, ref_labels)
        options = (self.weight, self.tau, self.rho, self.delta, self.alpha, self.beta)
        return roadmap_loss(pairs.scores, pairs.relevant, pairs.mask, *options)
