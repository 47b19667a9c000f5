"""One proxy a class of every level, held apart by margins that grow with the level (CSL)."""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.errors import InputError
from sightline.losses.checks import check_counts
from sightline.losses.core import shared_levels
from sightline.losses.proxies import check_classes, proxy_scores, refuse_references, uniform_proxies
from sightline.ranking.ranks import check_positive
from sightline.ranking.similarity import check_vectors


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
    check_positive(gamma=gamma)
    margins = csl_margins(n_levels) if margins is None else margins
    if len(margins) != n_levels or not all(map(math.isfinite, margins)):
        raise InputError(f"margins are {list(margins)}; {n_levels} finite numbers are needed, one a level")
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

    A level outside which no known class lies adds 0. Classes of a level are compared with everything above them, as in
    :func:`~sightline.ranking.levels.shared_levels`.

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
    scores, labels = proxy_scores(embeddings, labels, proxies)
    n_levels = labels.shape[1]
    if paths.dtype != torch.int64 or paths.shape != (len(proxies), n_levels):
        needed = f"int64 {(len(proxies), n_levels)}"
        raise InputError(f"paths: {needed} is needed, found {str(paths.dtype).removeprefix('torch.')} {tuple(paths.shape)}")
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
    if differ.any():
        label = labels[differ][0].tolist()
        there = paths[label[0]].tolist()
        found = f"class {label[0]} has {label} and, elsewhere, {there}"
        raise InputError(f"labels: {int(differ.sum())} of {len(labels)} do not have the path of their class: {found}")


class CSLLoss(nn.Module):
    """:func:`csl_loss` with proxies of its own, drawn uniformly from ±1 / sqrt(D).

    It learns which path each class has from the labels it is trained on, and keeps them in the buffer ``paths``; the proxy
    of a class not seen yet does not count. A class that shows up with two paths is refused. In evaluation mode nothing is
    kept.

    Args:
        n_classes: proxies to learn; labels of the finest level run from 0 to one less.
        embedding_dim: D.
        n_levels: L, columns of the labels.
        gamma: what cosines are multiplied by.
        margins: L numbers, finest level first; None for :func:`csl_margins`.
        seed: of the first proxies.

    Example:
        >>> loss = CSLLoss(n_classes=3, embedding_dim=2, n_levels=2)
        >>> _ = loss(torch.randn(2, 2), torch.tensor([[0, 0], [2, 1]]))
        >>> loss.paths
        tensor([[ 0,  0],
                [-1, -1],
                [ 2,  1]])
    """

    paths: Tensor

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
        check_counts(n_classes=n_classes, embedding_dim=embedding_dim, n_levels=n_levels)
        self.gamma, self.margins = gamma, check_csl(gamma, margins, n_levels)
        self.proxies = uniform_proxies(n_classes, embedding_dim, seed)
        self.register_buffer("paths", torch.full((n_classes, n_levels), -1))

    def forward(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor | None = None, ref_labels: Tensor | None = None
    ) -> Tensor:
        refuse_references(ref_emb, ref_labels)
        check_vectors(embeddings, "embeddings")
        labels = check_classes(labels, len(embeddings), len(self.proxies))
        if labels.shape[1] != self.paths.shape[1]:
            raise InputError(f"labels: {self.paths.shape[1]} levels are needed, found {labels.shape[1]}")
        new = self.paths[labels[:, 0], 0] < 0
        paths = self.paths.clone()
        paths[labels[new, 0]] = labels[new]
        loss = csl_loss(embeddings, labels, self.proxies, paths, self.gamma, self.margins)
        if self.training:  # after the checks of the loss: labels it refuses leave no trace
            self.paths.copy_(paths)
        return loss
