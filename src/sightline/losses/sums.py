"""Sums of losses: any losses with weights, and one loss on every level of the labels.

A sum keeps in ``terms`` what each term was at the last call, by name, for the log of a run: not weighted, without a graph.
That is no state: no ``state_dict`` has it, and it is empty before the first call.
"""

from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor, nn

from sightline.errors import InputError
from sightline.losses.base import check_counts
from sightline.losses.pairs import TripletLoss
from sightline.losses.proxies import NormSoftmaxLoss, ProxyNCAPPLoss, refuse_references
from sightline.ranking.pairs import check_labels
from sightline.ranking.similarity import both_in_full_precision, check_vectors


def terms_of(loss: object) -> dict[str, Tensor]:
    """The terms of a loss's last call; nothing where it adds up no others."""
    terms: dict[str, Tensor] = getattr(loss, "terms", {})
    return terms


def named_terms(name: str, loss: object, value: Tensor) -> dict[str, Tensor]:
    """The terms of one that was just computed: its value, or where it is a sum itself those of its own terms.

    Example:
        >>> named_terms("sup_ap", None, torch.tensor(0.25))
        {'sup_ap': tensor(0.2500)}
    """
    return {f"{name}/{part}": one for part, one in terms_of(loss).items()} or {name: value.detach()}


def takes_references(loss: nn.Module) -> bool:
    """Whether the loss can be called with a reference set: those with proxies alone cannot."""
    return bool(getattr(loss, "takes_references", True))


class WeightedSum(nn.Module):
    """The sum of losses, each times its weight; losses with proxies see the batch alone where there is a reference set.

    Args:
        losses: what is added up.
        weights: of each.
        names: of each, in ``terms``; None for their places, from 1.

    Attributes:
        terms: what each was at the last call, by name; see :mod:`sightline.losses.sums`.

    Example:
        >>> loss = WeightedSum([TripletLoss(), TripletLoss(mining="hard")], [0.5, 0.5])
        >>> loss(torch.eye(4)[[0, 0, 1, 1]], torch.tensor([5, 5, 9, 9]))
        tensor(0.)
    """

    def __init__(self, losses: Sequence[nn.Module], weights: Sequence[float], names: Sequence[str] | None = None) -> None:
        super().__init__()
        self.losses, self.weights = nn.ModuleList(losses), tuple(weights)
        self.names = tuple(str(place) for place in range(1, len(losses) + 1)) if names is None else tuple(names)
        self.terms: dict[str, Tensor] = {}
        self.takes_references = any(map(takes_references, losses))

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        check_vectors(embeddings, "embeddings")
        embeddings, ref_emb = both_in_full_precision(embeddings, ref_emb)
        references, values = (ref_emb, ref_labels), []
        self.terms = {}
        for name, loss in zip(self.names, self.losses, strict=True):
            value = loss(embeddings, labels, *(references if takes_references(loss) else ()))
            values.append(value)
            self.terms |= named_terms(name, loss, value)
        return torch.stack([weight * value for weight, value in zip(self.weights, values, strict=True)]).sum()


def sum_over_levels(
    losses: Callable[..., Tensor] | Sequence[Callable[..., Tensor]],
    embeddings: Tensor,
    labels: Tensor,
    ref_emb: Tensor | None = None,
    ref_labels: Tensor | None = None,
) -> Tensor:
    """The mean of one loss a level, each on the labels from its level up to the coarsest.

    A loss thus sees its level as the finest, and a name that recurs below two parents as two classes.

    Args:
        losses: one loss without proxies for all levels, or L losses, finest level first; each is called as
            ``loss(embeddings, labels, ref_emb, ref_labels)``.
        embeddings: (B, D).
        labels: (B, L) integers, finest level first; (B,) for one level.
        ref_emb: (G, D) items to compare with instead of the batch.
        ref_labels: (G, L) or (G,), given exactly when ``ref_emb`` is.

    Returns:
        () the sum of the losses, each with weight 1 / L.

    Example:
        >>> loss, embeddings = TripletLoss(mining="hard"), torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.6, 0.8]])
        >>> labels = torch.tensor([[0, 0], [0, 0], [1, 0]])
        >>> sum_over_levels(loss, embeddings, labels)  # all three are alike on the coarse level
        tensor(0.1050)
    """
    check_vectors(embeddings, "embeddings")
    if callable(losses):
        if isinstance(losses, nn.Module) and any(True for _ in losses.parameters()):
            raise InputError("losses: a loss with proxies needs a table for each level: make it with SumOverLevels")
        losses = [losses] * check_labels(labels, len(embeddings), "labels").shape[1]
    check_counts(n_levels=len(losses))
    return _mean(_of_levels(losses, embeddings, labels, ref_emb, ref_labels))


def _mean(of_levels: list[Tensor]) -> Tensor:
    return torch.stack(of_levels).sum() / len(of_levels)


def _of_levels(
    losses: Sequence[Callable[..., Tensor]],
    embeddings: Tensor,
    labels: Tensor,
    ref_emb: Tensor | None,
    ref_labels: Tensor | None,
) -> list[Tensor]:
    """The loss of each level, finest first."""
    check_vectors(embeddings, "embeddings")
    # The gradients of all levels meet before they are rounded.
    embeddings, ref_emb = both_in_full_precision(embeddings, ref_emb)
    if (ref_emb is None) != (ref_labels is None):
        raise InputError("ref_emb and ref_labels go together: one was given without the other")
    labels = _check_levels(labels, len(embeddings), len(losses), "labels")
    if ref_emb is not None and ref_labels is not None:
        check_vectors(ref_emb, "ref_emb")
        ref_labels = _check_levels(ref_labels, len(ref_emb), len(losses), "ref_labels")
    return [
        loss(embeddings, labels[:, level:], ref_emb, None if ref_labels is None else ref_labels[:, level:])
        for level, loss in enumerate(losses)
    ]


def _check_levels(labels: Tensor, n_items: int, n_levels: int, name: str) -> Tensor:
    labels = check_labels(labels, n_items, name)
    if labels.shape[1] != n_levels:
        raise InputError(f"{name}: {n_levels} levels are needed, found {labels.shape[1]}")
    return labels


class PathNumbers(nn.Module):
    """Numbers the paths of one level from 0 in the order in which they are met, and remembers them.

    New paths of one call are numbered in sorted order, whatever the order of the batch. In evaluation mode nothing is kept.

    Args:
        n_classes: how many different paths there may be.
        n_columns: label columns from this level up to the coarsest.

    Example:
        >>> numbers = PathNumbers(n_classes=3, n_columns=2)
        >>> numbers(torch.tensor([[7, 1], [7, 0], [7, 1]]))  # name 7 recurs below 0 and 1
        tensor([1, 0, 1])
    """

    paths: Tensor
    n_known: Tensor

    def __init__(self, n_classes: int, n_columns: int) -> None:
        super().__init__()
        check_counts(n_classes=n_classes, n_columns=n_columns)
        self.register_buffer("paths", torch.full((n_classes, n_columns), -1))
        self.register_buffer("n_known", torch.zeros((), dtype=torch.int64))

    def forward(self, labels: Tensor) -> Tensor:
        """(B,) int64 numbers of the (B, n_columns) paths."""
        met, which = labels.unique(dim=0, return_inverse=True)
        known = self.paths[: int(self.n_known)]
        same = (met[:, None, :] == known).all(2)  # (met, known)
        is_new = ~same.any(1)
        table = torch.cat([known, met[is_new]])
        if len(table) > len(self.paths):
            raise InputError(
                f"labels: there are places for {len(self.paths)} classes; {table[len(self.paths)].tolist()} is one too many"
            )
        if self.training:
            self.paths[: len(table)] = table
            self.n_known.fill_(len(table))
        # The place of the one that is the same; new ones follow the known in order.
        numbers: Tensor = (same * torch.arange(len(known), device=labels.device)).sum(1)
        numbers[is_new] = torch.arange(len(known), len(table), device=labels.device)
        return numbers[which]


class SumOverLevels(nn.Module):
    """:func:`sum_over_levels` of one loss made for every level, each with a proxy table of its own if it has one.

    A loss that numbers its proxies by label is known by ``n_classes``: it gets one number for each path from the
    coarsest level down to its own, so names that recur below two parents have two proxies. Paths are numbered as they are
    met in training, and kept in buffers; give ``paths`` to fix the numbers beforehand, as several processes need.

    Args:
        loss_factory: called with each level, 0 the finest, to make its loss.
        n_levels: L.
        n_classes: classes of each level, finest first, for losses with proxies; None for those without.
        paths: (N, L) label paths to number beforehand, with ``n_classes`` alone; repeated ones count once.

    Attributes:
        terms: ``level_0``, ``level_1``, ... of the last call; see :mod:`sightline.losses.sums`.

    Example:
        >>> counts = [3, 2]
        >>> loss = SumOverLevels(lambda level: NormSoftmaxLoss(counts[level], 4), n_levels=2, n_classes=counts)
        >>> [tuple(table.shape) for table in loss.parameters()]
        [(3, 4), (2, 4)]
    """

    def __init__(
        self,
        loss_factory: Callable[[int], nn.Module],
        n_levels: int,
        n_classes: Sequence[int] | None = None,
        paths: Tensor | None = None,
    ) -> None:
        super().__init__()
        check_counts(n_levels=n_levels)
        if n_classes is not None and (isinstance(n_classes, int) or len(n_classes) != n_levels):
            raise InputError(f"n_classes is {n_classes}; {n_levels} counts are needed, one a level, finest first")
        if paths is not None and n_classes is None:
            raise InputError("paths: only losses with proxies, for which n_classes is given, number their classes")
        self.losses = nn.ModuleList(loss_factory(level) for level in range(n_levels))
        self.takes_references = n_classes is None
        self.terms: dict[str, Tensor] = {}
        counts = [] if n_classes is None else n_classes
        self.numbers = nn.ModuleList(PathNumbers(count, n_levels - level) for level, count in enumerate(counts))
        if paths is not None:
            paths = _check_levels(paths, len(paths), n_levels, "paths")
            for level, numbers in enumerate(self.numbers):
                numbers(paths[:, level:])

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        called: Sequence[Callable[..., Tensor]] = list(self.losses)
        if self.numbers:
            refuse_references(ref_emb, ref_labels)
            called = [partial(_by_number, *both) for both in zip(self.losses, self.numbers, strict=True)]
        values = _of_levels(called, embeddings, labels, ref_emb, ref_labels)
        self.terms = {}
        for level, (loss, value) in enumerate(zip(self.losses, values, strict=True)):
            self.terms |= named_terms(f"level_{level}", loss, value)
        return _mean(values)


def _by_number(loss: nn.Module, numbers: nn.Module, embeddings: Tensor, labels: Tensor, *_: None) -> Tensor:
    """A loss called with the numbers of the paths for labels."""
    value: Tensor = loss(embeddings, numbers(labels))
    return value


def triplet_over_levels(n_levels: int, margin: float = 0.05, mining: str = "semi-hard") -> SumOverLevels:
    """:class:`~sightline.losses.TripletLoss` on every level: ΣTL_SH.

    Formula:
        The mean over levels of triplet, each on its own labels.

    Use:
        Label trees, as a baseline.

    Cost:
        triplet's, once a level.

    Defaults:
        As triplet; equal weights.

    Limit:
        triplet where labels have one level.

    Args:
        n_levels: L.
        margin: as in :func:`~sightline.losses.triplet_loss`, like ``mining``.
        mining: which triplets are taken.

    Example:
        >>> len(triplet_over_levels(3).losses)
        3
    """
    return SumOverLevels(lambda _: TripletLoss(margin, mining), n_levels)


def norm_softmax_over_levels(
    class_counts: Sequence[int], embedding_dim: int, temperature: float = 0.05, seed: int = 0, paths: Tensor | None = None
) -> SumOverLevels:
    """:class:`~sightline.losses.NormSoftmaxLoss` on every level, one proxy table each: ΣNSM.

    Formula:
        The mean over levels of norm_softmax.

    Use:
        Label trees with few items a class.

    Cost:
        norm_softmax's, once a level.

    Defaults:
        As norm_softmax; equal weights.

    Limit:
        norm_softmax where labels have one level.

    Args:
        class_counts: classes of each level, finest first.
        embedding_dim: D.
        temperature: what cosines are divided by.
        seed: of the finest level's first proxies; each coarser level takes the next number.
        paths: as in :class:`SumOverLevels`.

    Example:
        >>> [tuple(table.shape) for table in norm_softmax_over_levels([3, 2], 4).parameters()]
        [(3, 4), (2, 4)]
    """
    return SumOverLevels(
        lambda level: NormSoftmaxLoss(class_counts[level], embedding_dim, temperature, seed + level),
        len(class_counts),
        class_counts,
        paths,
    )


def proxy_nca_pp_over_levels(
    class_counts: Sequence[int], embedding_dim: int, temperature: float = 1 / 18, seed: int = 0, paths: Tensor | None = None
) -> SumOverLevels:
    """:class:`~sightline.losses.ProxyNCAPPLoss` on every level, one proxy table each: ΣNCA++.

    Formula:
        The mean over levels of proxy_nca_pp.

    Use:
        To compare with ΣNCA++.

    Cost:
        proxy_nca_pp's, once a level.

    Defaults:
        As proxy_nca_pp; equal weights.

    Limit:
        proxy_nca_pp where labels have one level.

    Args:
        class_counts: classes of each level, finest first.
        embedding_dim: D.
        temperature: what cosines are divided by.
        seed: of the finest level's first proxies; each coarser level takes the next number.
        paths: as in :class:`SumOverLevels`.

    Example:
        >>> [tuple(table.shape) for table in proxy_nca_pp_over_levels([3, 2], 4).parameters()]
        [(3, 4), (2, 4)]
    """
    return SumOverLevels(
        lambda level: ProxyNCAPPLoss(class_counts[level], embedding_dim, temperature, seed + level),
        len(class_counts),
        class_counts,
        paths,
    )
