"""Losses against one learned vector a class, its proxy: they need no other item of the class in the batch."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.errors import InputError
from sightline.losses.checks import check_counts
from sightline.ranking.ranks import check_positive
from sightline.ranking.relevance import check_labels
from sightline.ranking.similarity import check_vectors, cosine_scores


def refuse_references(ref_emb: Tensor | None, ref_labels: Tensor | None) -> None:
    """Refuse a reference set: a proxy loss compares with its proxies alone."""
    if ref_emb is not None or ref_labels is not None:
        raise InputError("ref_emb, ref_labels: a proxy loss compares each item with its proxies, not with other items")


def uniform_proxies(n_classes: int, embedding_dim: int, seed: int) -> nn.Parameter:
    """(C, D) proxies drawn uniformly from ±1 / sqrt(D)."""
    check_counts(n_classes=n_classes, embedding_dim=embedding_dim)
    drawn = torch.rand(n_classes, embedding_dim, generator=torch.Generator().manual_seed(seed))
    return nn.Parameter((2 * drawn - 1) / math.sqrt(embedding_dim))


def check_classes(labels: Tensor, n_items: int, n_classes: int) -> Tensor:
    """The labels as an int64 (B, L) table; refused where column 0, which numbers the proxies, is not in [0, C)."""
    labels = check_labels(labels, n_items, "labels")
    outside = (labels[:, 0] < 0) | (labels[:, 0] >= n_classes)
    if outside.any():
        found = labels[:, 0][outside].unique().tolist()
        shown = ", ".join(map(str, found[:10])) + (", ..." if len(found) > 10 else "")
        raise InputError(f"labels: there are {n_classes} proxies, for classes 0 to {n_classes - 1}; found {shown}")
    return labels


def proxy_scores(embeddings: Tensor, labels: Tensor, proxies: Tensor) -> tuple[Tensor, Tensor]:
    """The cosine of every item with every proxy, and which proxy is its own.

    Args:
        embeddings: (B, D), of any length.
        labels: (B,) or (B, L) integers; the finest level, column 0, numbers the proxies.
        proxies: (C, D), of any length.

    Returns:
        (B, C) scores in float32 at least, inside autocast too; and the (B, L) int64 labels.
    """
    check_vectors(embeddings, "embeddings")
    check_vectors(proxies, "proxies")
    labels = check_classes(labels, len(embeddings), len(proxies))
    return cosine_scores(embeddings, proxies), labels


def mean_cross_entropy(logits: Tensor, classes: Tensor) -> Tensor:
    """() mean of ``-log softmax`` at each row's class; 0, still differentiable, of no rows."""
    return F.cross_entropy(logits, classes, reduction="sum") / max(len(logits), 1)


def norm_softmax_loss(embeddings: Tensor, labels: Tensor, proxies: Tensor, temperature: float = 0.05) -> Tensor:
    """Cross-entropy of the cosines with one proxy a class: the proxy form of decomposability, NormSoftmax.

    A proxy is the same point in every batch, so scores mean the same in all of them. Equal to pytorch-metric-learning's
    ``NormalizedSoftmaxLoss``, which computes in half precision under autocast and casts its parameter to the type of the
    batch.

    Formula:
        ``-log softmax over classes c of cos(x, p_c) / temperature``, at the item's class

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
        labels: (B,) or (B, L) integers, finest level first: column 0 numbers the proxies.
        proxies: (C, D), of any length.
        temperature: what cosines are divided by.

    Returns:
        () mean over the batch; 0 of an empty one.

    Example:
        >>> proxies = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
        >>> norm_softmax_loss(torch.tensor([[0.6, 0.8]]), torch.tensor([0]), proxies)
        tensor(4.0181)
    """
    check_positive(temperature=temperature)
    scores, labels = proxy_scores(embeddings, labels, proxies)
    return mean_cross_entropy(scores / temperature, labels[:, 0])


class NormSoftmaxLoss(nn.Module):
    """:func:`norm_softmax_loss` with proxies of its own, drawn uniformly from ±1 / sqrt(D).

    Of labels in levels the finest counts.

    Args:
        n_classes: proxies to learn; labels run from 0 to one less.
        embedding_dim: D.
        temperature: what cosines are divided by.
        seed: of the first proxies.

    Example:
        >>> loss = NormSoftmaxLoss(n_classes=3, embedding_dim=2)
        >>> loss(torch.randn(4, 2), torch.tensor([0, 1, 1, 2])).shape
        torch.Size([])
    """

    def __init__(self, n_classes: int, embedding_dim: int, temperature: float = 0.05, seed: int = 0) -> None:
        super().__init__()
        check_positive(temperature=temperature)
        self.temperature = temperature
        self.proxies = uniform_proxies(n_classes, embedding_dim, seed)

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        refuse_references(ref_emb, ref_labels)
        return norm_softmax_loss(embeddings, labels, self.proxies, self.temperature)


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


class ProxyNCAPPLoss(nn.Module):
    """:func:`proxy_nca_pp_loss` with proxies of its own, drawn from a normal distribution of deviation 1/8.

    Of labels in levels the finest counts.

    Args:
        n_classes: proxies to learn; labels run from 0 to one less.
        embedding_dim: D.
        temperature: what cosines are divided by.
        seed: of the first proxies.

    Example:
        >>> loss = ProxyNCAPPLoss(n_classes=3, embedding_dim=2)
        >>> loss(torch.randn(4, 2), torch.tensor([0, 1, 1, 2])).shape
        torch.Size([])
    """

    def __init__(self, n_classes: int, embedding_dim: int, temperature: float = 1 / 18, seed: int = 0) -> None:
        super().__init__()
        check_counts(n_classes=n_classes, embedding_dim=embedding_dim)
        check_positive(temperature=temperature)
        self.temperature = temperature
        drawn = torch.randn(n_classes, embedding_dim, generator=torch.Generator().manual_seed(seed))
        self.proxies = nn.Parameter(drawn / 8)

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        refuse_references(ref_emb, ref_labels)
        return proxy_nca_pp_loss(embeddings, labels, self.proxies, self.temperature)


def check_angle(margin: float, scale: float) -> None:
    """Refuse a margin that is no angle, and a scale that is not above 0."""
    check_positive(scale=scale)
    if not 0 <= margin <= math.pi:
        raise InputError(f"margin is {margin}; an angle in radians from 0 to pi is needed")


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
    check_angle(margin, scale)
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


class ArcFaceLoss(nn.Module):
    """:func:`arcface_loss` with proxies of its own, drawn uniformly from ±1 / sqrt(D).

    Of labels in levels the finest counts.

    Args:
        n_classes: proxies to learn; labels run from 0 to one less.
        embedding_dim: D.
        margin: in radians, from 0 to pi.
        scale: what cosines are multiplied by.
        seed: of the first proxies.

    Example:
        >>> loss = ArcFaceLoss(n_classes=3, embedding_dim=2)
        >>> loss(torch.randn(4, 2), torch.tensor([0, 1, 1, 2])).shape
        torch.Size([])
    """

    def __init__(self, n_classes: int, embedding_dim: int, margin: float = 0.5, scale: float = 30.0, seed: int = 0) -> None:
        super().__init__()
        check_angle(margin, scale)
        self.margin, self.scale = margin, scale
        self.proxies = uniform_proxies(n_classes, embedding_dim, seed)

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        refuse_references(ref_emb, ref_labels)
        return arcface_loss(embeddings, labels, self.proxies, self.margin, self.scale)
