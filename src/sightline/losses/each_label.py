"""Items with several labels: one minus average precision for each label of the query, with the rank made smooth."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sightline.errors import InputError
from sightline.losses.average_precision import flat_rank_loss, sup_ap_objective
from sightline.losses.core import batch_pairs
from sightline.ranking.levels import flat_levels
from sightline.ranking.profile import RankProfile
from sightline.ranking.ranks import SupStep, check_pairs
from sightline.ranking.relevance import check_sets


def each_label_ap_loss(
    scores: Tensor,
    labels: Tensor,
    ref_labels: Tensor,
    mask: Tensor | None = None,
    tau: float = 0.01,
    rho: float = 100.0,
    delta: float | None = 0.05,
    label_weights: Sequence[float] | Tensor | None = None,
) -> Tensor:
    """:func:`~sightline.losses.sup_ap_loss` once for each label of the query, its carriers relevant, and their mean.

    One ranking serves all labels of a query: what carries two of them counts in both. A label that no item of the query's
    list carries is left out, and so is a query all of whose labels are.

    Formula:
        The mean over the query's labels c of sup_ap, k running over the items with c and n over those without

    Use:
        Flat sets of labels, each of which is to be found; where sharing any one is enough, sup_ap. How near two labels
        are it does not know.

    Cost:
        That of the core with one row for each label of each query, and as many rows of scores held.

    Defaults:
        Those of sup_ap; every label of a query weighs the same.

    Limit:
        Never below one minus the ``map`` of :func:`~sightline.evaluate_each_label` with ties by counting; sup_ap where each
        item has one label.

    Args:
        scores: (Q, G) similarity of each query to each item.
        labels: (Q, C) bool, the labels of each query.
        ref_labels: (G, C) bool, those of each item.
        mask: (Q, G) bool, True where the item is in the query's list; None for everywhere.
        tau: as in :func:`~sightline.losses.sup_ap_loss`, like ``rho`` and ``delta``.
        rho: slope for an item without the label more than ``delta`` above one with it.
        delta: where that slope starts; None for where the sigmoid comes to 0.99.
        label_weights: what each of the C labels weighs in the mean of a query, such as one over its frequency; 0 leaves it
            out. None for equal weights.

    Returns:
        () mean over the queries that share a label with an item of their list; 0 where none does.

    Example:
        >>> scores = torch.tensor([[0.9, 0.8, 0.7]])
        >>> query, items = torch.tensor([[True, True]]), torch.tensor([[True, False], [False, True], [True, True]])
        >>> each_label_ap_loss(scores, query, items, tau=0.001, rho=1.0)
        tensor(0.3741)
    """
    step, weights = SupStep(tau, rho, delta), _check_weights(label_weights)
    scores, mask = check_pairs(scores, scores, mask)  # relevance comes from the labels
    check_sets(labels, ref_labels, *scores.shape)
    return _of_sets(scores, labels, ref_labels, mask, step, weights)


def _check_weights(weights: Sequence[float] | Tensor | None) -> list[float] | None:
    if weights is None:
        return None
    try:
        table = torch.as_tensor(weights, dtype=torch.float64, device="cpu")
    except (TypeError, ValueError):
        table = torch.zeros(0)
    if table.ndim != 1 or not (table >= 0).all() or not table.isfinite().all() or not table.any():
        raise InputError(f"label_weights are {weights!r}; finite numbers of 0 or more are needed, not all of them 0")
    numbers: list[float] = table.tolist()
    return numbers


def _of_sets(
    scores: Tensor, labels: Tensor, ref_labels: Tensor, mask: Tensor, step: SupStep, weights: list[float] | None
) -> Tensor:
    """The loss of what is known to belong together: one row of the core for each label of each query."""
    if weights is not None and len(weights) != labels.shape[1]:
        raise InputError(f"label_weights: {labels.shape[1]} are needed, one a label, found {len(weights)}")
    of_labels = scores.new_ones(labels.shape[1]) if weights is None else scores.new_tensor(weights) / max(weights)
    n_carriers = mask.to(scores) @ ref_labels.to(scores)
    weight = (labels & (n_carriers > 0)) * of_labels  # (Q, C)
    total = weight.sum(1, keepdim=True)
    query, label = weight.nonzero(as_tuple=True)
    # What a row weighs in the whole, times their number: the core divides by it.
    share = (weight / total)[query, label] * len(query) / (total > 0).sum()

    def weighted(profile: RankProfile) -> tuple[Tensor, Tensor]:
        losses, slopes = sup_ap_objective(profile)
        own = share[profile.rows]
        return losses * own, slopes * own[:, None, None]

    levels = flat_levels(ref_labels.T[label], mask[query])
    return flat_rank_loss(scores.index_select(0, query), levels, step, weighted)


class EachLabelAPLoss(nn.Module):
    """:func:`each_label_ap_loss` over a batch in which each item queries all the others, or a reference set.

    Labels are sets, (B, C) bool. With classes, levels of a tree or a relevance matrix, one label an item, it is
    :class:`~sightline.losses.SupAPLoss`, and takes no ``label_weights``.

    Example:
        >>> embeddings = torch.eye(3)[[0, 0, 1, 1]]
        >>> EachLabelAPLoss()(embeddings, torch.tensor([[1, 0], [1, 1], [0, 1], [0, 1]]).bool())
        tensor(0.2058)
    """

    def __init__(
        self,
        tau: float = 0.01,
        rho: float = 100.0,
        delta: float | None = 0.05,
        label_weights: Sequence[float] | Tensor | None = None,
    ) -> None:
        super().__init__()
        self.step, self.label_weights = SupStep(tau, rho, delta), _check_weights(label_weights)

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        pairs = batch_pairs(embeddings, labels, ref_emb, ref_labels)
        if labels.dtype == torch.bool:
            sets = labels if ref_labels is None else ref_labels
            return _of_sets(pairs.scores, labels, sets, pairs.mask, self.step, self.label_weights)
        if self.label_weights is not None:
            raise InputError(f"label_weights: they weigh sets of labels, (B, C) bool; found {labels.dtype}")
        return flat_rank_loss(pairs.scores, pairs.flat, self.step, sup_ap_objective)
