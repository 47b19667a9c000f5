"""Losses against one learned vector a class, its proxy: a batch may hold a single item of a class."""

import math
from collections.abc import Callable, Sequence
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.errors import InputError
from sightline.losses.base import LossBatch, on_batches, shared_levels
from sightline.ranking.pairs import GradedSets, check_labels
from sightline.ranking.ranks import check_counts, check_range
from sightline.ranking.similarity import check_vectors, cosine_scores


def check_alone(batch: LossBatch) -> None:
    """Refuse a reference set and chosen pairs: a proxy loss compares with its proxies alone."""
    batch.refuse(LossBatch._fields, "a proxy loss compares each item with its proxies, not with other items")


def check_classes(labels: object, n_items: int, n_classes: int) -> Tensor:
    """The labels as an int64 (B, L) table; refused where column 0, which numbers the proxies, is not in [0, C)."""
    labels = check_labels(labels, n_items, "labels")
    outside = (labels[:, 0] < 0) | (labels[:, 0] >= n_classes)
    if not torch.compiler.is_compiling() and outside.any():
        found = labels[:, 0][outside].unique().tolist()
        raise InputError(f"labels must be one of the {n_classes} proxies, 0 to {n_classes - 1}, got {found[:10]}")
    return labels


def proxy_scores(embeddings: Tensor, labels: object, proxies: Tensor) -> tuple[Tensor, Tensor]:
    """The cosine of every item with every proxy, and which proxy is its own.

    Args:
        embeddings: (B, D), of any length.
        labels: (B,) or (B, L) integers; the finest level, column 0, numbers the proxies.
        proxies: (C, D), of any length.

    Returns:
        (B, C) scores in float32 at least, inside autocast too; and the (B, L) int64 labels.
    """
    check_vectors(embeddings=embeddings, proxies=proxies)
    labels = check_classes(labels, len(embeddings), len(proxies))
    return cosine_scores(embeddings, proxies), labels


def mean_cross_entropy(logits: Tensor, classes: Tensor) -> Tensor:
    """() mean of ``-log softmax`` at each row's class; 0, still differentiable, of no rows."""
    return F.cross_entropy(logits, classes, reduction="sum") / max(len(logits), 1)


def uniform_proxies(n_classes: int, embedding_dim: int, seed: int) -> nn.Parameter:
    """(C, D) proxies drawn uniformly from ±1 / sqrt(D)."""
    check_counts(n_classes=n_classes, embedding_dim=embedding_dim)
    drawn = torch.rand(n_classes, embedding_dim, generator=torch.Generator().manual_seed(seed))
    return nn.Parameter((2 * drawn - 1) / math.sqrt(embedding_dim))


class ProxyLoss(nn.Module):
    """A function on embeddings, labels and proxies as a module with its own proxies.

    Args:
        n_classes: proxies to learn; labels of the finest level run from 0 to one less.
        embedding_dim: D.
        seed: random seed of the initial proxies.
        options: of the function, by name; it checks them when the loss is made.
    """

    takes_references = False
    takes_sets: ClassVar[bool] = False  # the function takes (B, C) bool labels too
    formula: ClassVar[Callable[..., Tensor]]

    def __init__(self, n_classes: int, embedding_dim: int, seed: int, **options: float) -> None:
        super().__init__()
        self.options = options
        self.proxies = uniform_proxies(n_classes, embedding_dim, seed)
        with torch.no_grad():  # refuses an option that does not fit
            self.formula(self.proxies[:0], torch.zeros(0, dtype=torch.int64), self.proxies, **options)

    @on_batches
    def forward(self, batch: LossBatch) -> Tensor:
        check_alone(batch)
        labels = batch.labels.own if isinstance(batch.labels, GradedSets) and self.takes_sets else batch.labels
        return self.formula(batch.embeddings, labels, self.proxies, **self.options)


def norm_softmax_loss(embeddings: Tensor, labels: Tensor, proxies: Tensor, temperature: float = 0.05) -> Tensor:
    """Cross-entropy of the cosines with one proxy a class: the proxy form of decomposability, NormSoftmax.

    A proxy is the same point in every batch, so scores are comparable across batches. With sets of labels an item's loss is
    the mean over its labels, each of which competes with all proxies: a softmax with even targets. Equal to
    pytorch-metric-learning's ``NormalizedSoftmaxLoss``, which computes in half precision under autocast and casts its
    parameter to the type of the batch.

    Formula:
        ``-log softmax over classes c of cos(x, p_c) / temperature``, at the item's class, or the mean over its labels

    Use:
        Many classes, few items of each in a batch; the proxy term of roadmap and happier.

    Cost:
        A product with C vectors, and C numbers an item.

    Defaults:
        temperature of the released code; the papers give none. Proxies start uniform in ±1 / sqrt(D).

    Limit:
        Times temperature, it tends to the highest cosine less the item's own as temperature tends to 0.

    Args:
        embeddings: (B, D), of any length; only the direction counts.
        labels: (B,) or (B, L) integers, finest level first: column 0 numbers the proxies. Or (B, C) bool, sets of labels.
        proxies: (C, D), of any length.
        temperature: what cosines are divided by.

    Returns:
        () mean over the batch, or over its items with a label; 0 of none.

    Example:
        >>> proxies = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        >>> norm_softmax_loss(torch.tensor([[0.6, 0.8]]), torch.tensor([0]), proxies)
        tensor(4.0181)
    """
    check_range("(0, inf)", temperature=temperature)
    if isinstance(labels, Tensor) and labels.dtype == torch.bool and labels.ndim == 2:
        check_vectors(embeddings=embeddings, proxies=proxies)
        if labels.shape != (len(embeddings), len(proxies)):
            raise InputError(
                f"labels as sets must be ({len(embeddings)}, {len(proxies)}), got torch.bool {tuple(labels.shape)}"
            )
        logits, n_labels = cosine_scores(embeddings, proxies) / temperature, labels.sum(1)
        of_items = -(logits.log_softmax(1) * labels).sum(1) / n_labels.clamp(min=1)
        return of_items.sum() / (n_labels > 0).sum().clamp(min=1)
    scores, labels = proxy_scores(embeddings, labels, proxies)
    return mean_cross_entropy(scores / temperature, labels[:, 0])


class NormSoftmaxLoss(ProxyLoss):
    """:func:`norm_softmax_loss` with its own proxies, drawn uniformly from ±1 / sqrt(D).

    With labels in levels, only the finest counts.

    Args:
        n_classes: proxies to learn; labels run from 0 to one less.
        embedding_dim: D.
        temperature: what cosines are divided by.
        seed: random seed of the initial proxies.

    Example:
        >>> loss = NormSoftmaxLoss(n_classes=3, embedding_dim=2)
        >>> loss(torch.randn(4, 2), torch.tensor([0, 1, 1, 2])).shape
        torch.Size([])
    """

    takes_sets = True
    formula = staticmethod(norm_softmax_loss)

    def __init__(self, n_classes: int, embedding_dim: int, temperature: float = 0.05, seed: int = 0) -> None:
        super().__init__(n_classes, embedding_dim, seed, temperature=temperature)


def proxy_nca_pp_loss(embeddings: Tensor, labels: Tensor, proxies: Tensor, temperature: float = 1 / 18) -> Tensor:
    """ProxyNCA++: cross-entropy of minus the squared distances between items and proxies, both scaled to length 3.

    pytorch-metric-learning's ``ProxyNCALoss(softmax_scale=9)`` has the same value, but leaves out items whose softmax
    underflows to 0.

    Formula:
        ``-log softmax over classes c of -|3 x - 3 p_c|^2`` for unit x and p_c

    Use:
        To compare with ProxyNCA++.

    Cost:
        As norm_softmax.

    Defaults:
        Length 3, proxies of deviation 1/8 (Teh et al., ECCV 2020).

    Limit:
        Equal to norm_softmax at temperature 1/18, and computed so: ``-|3x - 3p|^2 = 18 cos - 18``.

    Args:
        embeddings: (B, D), of any length; only the direction counts.
        labels: (B,) or (B, L) integers, finest level first: column 0 numbers the proxies.
        proxies: (C, D), of any length.
        temperature: what cosines are divided by; ``1 / (2 r^2)`` for vectors scaled to length r.

    Returns:
        () mean over the batch; 0 of an empty one.

    Example:
        >>> proxies = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        >>> proxy_nca_pp_loss(torch.tensor([[0.6, 0.8]]), torch.tensor([0]), proxies)
        tensor(3.6270)
    """
    return norm_softmax_loss(embeddings, labels, proxies, temperature)


class ProxyNCAPPLoss(ProxyLoss):
    """:func:`proxy_nca_pp_loss` with its own proxies, drawn from a normal distribution of deviation 1/8.

    With labels in levels, only the finest counts.

    Args:
        n_classes: proxies to learn; labels run from 0 to one less.
        embedding_dim: D.
        temperature: what cosines are divided by.
        seed: random seed of the initial proxies.

    Example:
        >>> loss = ProxyNCAPPLoss(n_classes=3, embedding_dim=2)
        >>> loss(torch.randn(4, 2), torch.tensor([0, 1, 1, 2])).shape
        torch.Size([])
    """

    takes_sets = True
    formula = staticmethod(proxy_nca_pp_loss)

    def __init__(self, n_classes: int, embedding_dim: int, temperature: float = 1 / 18, seed: int = 0) -> None:
        super().__init__(n_classes, embedding_dim, seed, temperature=temperature)
        drawn = torch.randn(n_classes, embedding_dim, generator=torch.Generator().manual_seed(seed))
        self.proxies = nn.Parameter(drawn / 8)


def arcface_loss(embeddings: Tensor, labels: Tensor, proxies: Tensor, margin: float = 0.5, scale: float = 30.0) -> Tensor:
    """ArcFace: cross-entropy of the cosines, the angle to the item's own proxy first widened by a margin.

    Where the widened angle would pass pi, the cosine less ``margin * sin(margin)`` takes its place, so that the loss never
    falls as the angle grows. Its value is that of
    pytorch-metric-learning's ``ArcFaceLoss``, whose margin is in degrees, and whose gradient is NaN where an item lies
    exactly on its proxy or opposite to it; here the target's pull is 0 there.

    Formula:
        ``-log softmax`` of ``scale * cos``, the item's own angle widened to ``angle + margin``

    Use:
        Faces and landmarks, closed sets of many classes.

    Cost:
        As norm_softmax.

    Defaults:
        margin of Deng et al. (CVPR 2019), scale of the SupRank code, which takes a margin of 0.3 on SOP and landmarks.

    Limit:
        norm_softmax at temperature ``1 / scale`` where margin is 0.

    Args:
        embeddings: (B, D), of any length; only the direction counts.
        labels: (B,) or (B, L) integers, finest level first: column 0 numbers the proxies.
        proxies: (C, D), of any length.
        margin: in radians, from 0 to pi.
        scale: what cosines are multiplied by.

    Returns:
        () mean over the batch; 0 of an empty one.

    Example:
        >>> proxies = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        >>> arcface_loss(torch.tensor([[0.6, 0.8]]), torch.tensor([1]), proxies)
        tensor(5.5715)
    """
    check_range("(0, inf)", scale=scale)
    check_range(f"[0, {math.pi}]", margin=margin)
    scores, labels = proxy_scores(embeddings, labels, proxies)
    own = scores.gather(1, labels[:, :1])  # (B, 1)
    # The slope of the angle is infinite at cosines of 1 and -1: those stay out of acos, not only out of its result.
    inside = own.abs() < 1
    angle = torch.where(inside, own, 0.0).acos()
    widened = torch.where(angle <= math.pi - margin, (angle + margin).cos(), own - margin * math.sin(margin))
    at_the_ends = torch.where(own > 0, math.cos(margin), -1 - margin * math.sin(margin)).to(own)
    return mean_cross_entropy(
        scale * scores.scatter(1, labels[:, :1], torch.where(inside, widened, at_the_ends)), labels[:, 0]
    )


class ArcFaceLoss(ProxyLoss):
    """:func:`arcface_loss` with its own proxies, drawn uniformly from ±1 / sqrt(D).

    With labels in levels, only the finest counts.

    Args:
        n_classes: proxies to learn; labels run from 0 to one less.
        embedding_dim: D.
        margin: in radians, from 0 to pi.
        scale: what cosines are multiplied by.
        seed: random seed of the initial proxies.

    Example:
        >>> loss = ArcFaceLoss(n_classes=3, embedding_dim=2)
        >>> loss(torch.randn(4, 2), torch.tensor([0, 1, 1, 2])).shape
        torch.Size([])
    """

    formula = staticmethod(arcface_loss)

    def __init__(self, n_classes: int, embedding_dim: int, margin: float = 0.5, scale: float = 30.0, seed: int = 0) -> None:
        super().__init__(n_classes, embedding_dim, seed, margin=margin, scale=scale)


def csl_margins(n_levels: int) -> list[float]:
    """The margins of :func:`csl_loss`, finest level first.

    Those published for 2, 3 and 7 levels; for any other number, even steps from 0.25 to 0.45 as for 2 and 3.

    Example:
        >>> csl_margins(3)
        [0.25, 0.35, 0.45]
    """
    if n_levels == 7:
        return [0.15, 0.25, 0.35, 0.45, 0.55, 0.65, 0.75]
    return [round(0.25 + 0.2 * level / max(n_levels - 1, 1), 6) for level in range(n_levels)]


def check_csl(gamma: float, margins: Sequence[float] | None, n_levels: int) -> Sequence[float]:
    """The margins, :func:`csl_margins` where None is given; refuses those that do not fit the levels."""
    check_range("(0, inf)", gamma=gamma)
    margins = csl_margins(n_levels) if margins is None else margins
    if len(margins) != n_levels or not all(map(math.isfinite, margins)):
        raise InputError(f"margins must be {n_levels} finite numbers, one for each level, got {list(margins)}")
    return margins


def csl_loss(
    embeddings: Tensor,
    labels: Tensor,
    proxies: Tensor,
    paths: Tensor,
    gamma: float = 32.0,
    margins: Sequence[float] | None = None,
) -> Tensor:
    """CSL: at each level, proxies outside the item's class of that level stay a margin less similar than its own proxy.

    A level that contains every known class adds 0. Classes of a level are compared with everything above them, as in
    :func:`~sightline.ranking.pairs.shared_levels`.

    Formula:
        ``sum over levels of softplus(logsumexp of gamma * s(n) - gamma * s(p) + gamma * margin)``, n the proxies outside
        the class of the level, p that of the item's finest class

    Use:
        Label trees without ranking; the baseline of DyML.

    Cost:
        As norm_softmax, once a level.

    Defaults:
        gamma and margins published for 2, 3 and 7 levels (Sun et al., CVPR 2021).

    Limit:
        Divided by gamma, it tends to the sum of ``max(0, max s(n) - s(p) + margin)`` as gamma grows.

    Args:
        embeddings: (B, D), of any length; only the direction counts.
        labels: (B,) or (B, L) integers, finest level first: column 0 numbers the proxies.
        proxies: (C, D), of any length.
        paths: (C, L) int64, the label path of each proxy; -1 in column 0 where it is not known: that proxy does not count.
        gamma: what cosines are multiplied by.
        margins: L numbers, finest level first; None for :func:`csl_margins`.

    Returns:
        () mean over the batch; 0 of an empty one.

    Example:
        >>> angle = torch.tensor([0.6, 0.8, -0.6]).acos()
        >>> proxies, paths = torch.stack([angle.cos(), angle.sin()], 1), torch.tensor([[0, 0], [1, 0], [2, 1]])
        >>> csl_loss(torch.tensor([[1.0, 0.0]]), torch.tensor([[0, 0]]), proxies, paths)
        tensor(14.4000)
    """
    return _csl(*proxy_scores(embeddings, labels, proxies), paths, gamma, margins)


def _csl(scores: Tensor, labels: Tensor, paths: Tensor, gamma: float, margins: Sequence[float] | None) -> Tensor:
    """:func:`csl_loss` of checked scores and labels."""
    n_proxies, n_levels = scores.shape[1], labels.shape[1]
    if paths.dtype != torch.int64 or paths.shape != (n_proxies, n_levels):
        raise InputError(
            f"paths must be int64 {(n_proxies, n_levels)}, "
            f"got {str(paths.dtype).removeprefix('torch.')} {tuple(paths.shape)}"
        )
    margins = check_csl(gamma, margins, n_levels)
    check_paths(paths, labels)
    shared = shared_levels(labels, paths)
    known = paths[:, 0] >= 0
    own = scores.gather(1, labels[:, :1])[:, 0]
    absent = torch.finfo(scores.dtype).min / 4  # finite: the gradient of a logsumexp of nothing is NaN
    total = scores.new_zeros(len(scores))
    for level, margin in enumerate(margins):
        outside = (shared < n_levels - level) & known
        others = (gamma * scores).masked_fill(~outside, absent).logsumexp(1)
        total = total + F.softplus(others - gamma * own + gamma * margin)
    return total.sum() / max(len(scores), 1)


def check_paths(paths: Tensor, labels: Tensor) -> None:
    """Refuse (B, L) labels whose path is not the one the (C, L) table has for their finest class."""
    differ = (paths[labels[:, 0]] != labels).any(1)
    if not torch.compiler.is_compiling() and differ.any():
        label = labels[differ][0].tolist()
        raise InputError(
            f"labels of one class must have one path; {int(differ.sum())} of {len(labels)} do not: "
            f"class {label[0]} has {label} and, elsewhere, {paths[label[0]].tolist()}"
        )


class CSLLoss(nn.Module):
    """:func:`csl_loss` with its own proxies, drawn uniformly from ±1 / sqrt(D).

    It reads the path of each class from the labels it is trained on, and keeps them in the buffer ``paths``; the proxy
    of a class not seen yet does not count. A class with two paths is refused. Evaluation mode stores nothing.

    Args:
        n_classes: proxies to learn; labels of the finest level run from 0 to one less.
        embedding_dim: D.
        n_levels: L, columns of the labels.
        gamma: what cosines are multiplied by.
        margins: L numbers, finest level first; None for :func:`csl_margins`.
        seed: random seed of the initial proxies.

    Example:
        >>> loss = CSLLoss(n_classes=3, embedding_dim=2, n_levels=2)
        >>> _ = loss(torch.randn(2, 2), torch.tensor([[0, 0], [2, 1]]))
        >>> loss.paths
        tensor([[ 0,  0],
                [-1, -1],
                [ 2,  1]])
    """

    takes_references = False

    def __init__(
        self,
        n_classes: int,
        embedding_dim: int,
        n_levels: int,
        gamma: float = 32.0,
        margins: Sequence[float] | None = None,
        seed: int = 0,
    ) -> None:
        super().__init__()
        check_counts(n_levels=n_levels)
        self.gamma, self.margins = gamma, check_csl(gamma, margins, n_levels)
        self.proxies = uniform_proxies(n_classes, embedding_dim, seed)
        self.paths = nn.Buffer(torch.full((n_classes, n_levels), -1))

    @on_batches
    def forward(self, batch: LossBatch) -> Tensor:
        check_alone(batch)
        scores, labels = proxy_scores(batch.embeddings, batch.labels, self.proxies)
        if labels.shape[1] != self.paths.shape[1]:
            raise InputError(f"labels must have {self.paths.shape[1]} levels, got {labels.shape[1]}")
        known = self.paths[labels[:, 0]]
        paths = self.paths.clone()
        paths[labels[:, 0]] = labels.where(known[:, :1] < 0, known)
        loss = _csl(scores, labels, paths, self.gamma, self.margins)
        if self.training:  # after the checks of the loss: labels it refuses leave no trace
            self.paths.copy_(paths)
        return loss
