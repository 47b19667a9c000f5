"""Classification of labels by a linear layer on the embedding, trained beside it: an image may have several labels."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sightline.errors import InputError
from sightline.losses.base import LossBatch, on_batches
from sightline.losses.proxies import check_alone, check_classes, uniform_proxies
from sightline.ranking.pairs import GradedSets
from sightline.ranking.similarity import check_vectors, full_precision, unit


def binary_cross_entropy_loss(embeddings: Tensor, labels: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Binary cross-entropy of each label by itself: does the item have it, or not?

    The logits are those of a linear layer on the embedding scaled to length 1, the vector that is searched with. Equal to
    torch's ``BCEWithLogitsLoss`` of them.

    Formula:
        The mean over items x and labels c of ``softplus(z) - t * z``, ``z = w_c . x + b_c``, t = 1 where x has c, else 0

    Use:
        The baseline of images with several codes or labels: what classification alone gives a search.

    Cost:
        As norm_softmax.

    Defaults:
        The weights start uniform in ±1 / sqrt(D), each bias where its label is expected of one item in C.

    Limit:
        log 2 for weights and biases of 0.

    Args:
        embeddings: (B, D), of any length; only the direction counts.
        labels: (B, C) bool, sets of labels. Or (B,) or (B, L) integers, finest level first: column 0 numbers the labels.
        weight: (C, D).
        bias: (C,).

    Returns:
        () mean over items and labels; 0 of no items.

    Example:
        >>> weight = torch.tensor([[2.0, 0.0], [0.0, 1.0]])
        >>> binary_cross_entropy_loss(torch.tensor([[3.0, 0.0]]), torch.tensor([[True, False]]), weight, torch.zeros(2))
        tensor(0.4100)
    """
    check_vectors(embeddings=embeddings, weight=weight)
    if isinstance(labels, Tensor) and labels.dtype == torch.bool and labels.ndim == 2:
        if labels.shape != (len(embeddings), len(weight)):
            raise InputError(
                f"labels as sets must be ({len(embeddings)}, {len(weight)}), got torch.bool {tuple(labels.shape)}"
            )
        has = labels
    else:
        has = F.one_hot(check_classes(labels, len(embeddings), len(weight))[:, 0], len(weight))
    with torch.autocast(embeddings.device.type, enabled=False):
        rows = unit(embeddings)
        logits = F.linear(rows, full_precision(weight).to(rows), full_precision(bias).to(rows))
        return F.binary_cross_entropy_with_logits(logits, has.to(logits), reduction="sum") / max(logits.numel(), 1)


class BinaryCrossEntropyLoss(nn.Module):
    """:func:`binary_cross_entropy_loss` with its own linear layer, which is no part of the encoder.

    With labels in levels, only the finest counts; with several codes an item, those of ``codes.level``.

    Args:
        n_classes: labels to classify.
        embedding_dim: D.
        seed: random seed of the initial weights.

    Example:
        >>> loss = BinaryCrossEntropyLoss(n_classes=3, embedding_dim=2)
        >>> loss(torch.randn(4, 2), torch.tensor([0, 1, 1, 2])).shape
        torch.Size([])
    """

    takes_references = False

    def __init__(self, n_classes: int, embedding_dim: int, seed: int = 0) -> None:
        super().__init__()
        self.weight = uniform_proxies(n_classes, embedding_dim, seed)
        self.bias = nn.Parameter(torch.full((n_classes,), -math.log(max(n_classes - 1, 1))))

    @on_batches
    def forward(self, batch: LossBatch) -> Tensor:
        check_alone(batch)
        labels = batch.labels.own if isinstance(batch.labels, GradedSets) else batch.labels
        return binary_cross_entropy_loss(batch.embeddings, labels, self.weight, self.bias)
