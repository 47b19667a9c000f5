"""A loss over a batch whose table of scores does not fit in memory: some queries at a time, with the exact gradient."""

import torch
from torch import Tensor, nn

from sightline.errors import InputError
from sightline.losses.average_precision import SmoothAPLoss, SupAPLoss
from sightline.losses.contrastive import CalibrationLoss
from sightline.losses.graded import SmoothHAPLoss, SmoothNDCGLoss, SupHAPLoss, SupNDCGLoss
from sightline.losses.histogram import FastAPLoss, SoftBinAPLoss
from sightline.losses.proxies import NormSoftmaxLoss
from sightline.losses.recall import SmoothRecallLoss, SupRecallLoss
from sightline.losses.sums import Decomposed, terms_of
from sightline.ranking.profile import with_gradient

MEANS = (  # over queries, each of which is worth the same whatever the others are
    SupAPLoss,
    SmoothAPLoss,
    FastAPLoss,
    SoftBinAPLoss,
    SupRecallLoss,
    SmoothRecallLoss,
    SupHAPLoss,
    SmoothHAPLoss,
    SupNDCGLoss,
    SmoothNDCGLoss,
    CalibrationLoss,
)
NOT_MEANS = {"class_balanced": True, "mixup": True, "reduction": "nonzero"}  # options with which they are no such mean


def check_blocks(loss: nn.Module) -> None:
    """Raise InputError for a loss that is not the mean over queries of a loss of each, or a sum of such."""
    for part in [loss.rank, loss.term] if isinstance(loss, Decomposed) else [loss]:
        options = vars(part) | getattr(part, "options", {})
        wrong = [f"{key}={value}" for key, value in NOT_MEANS.items() if options.get(key) == value]
        if wrong or not isinstance(part, MEANS if part is loss else (*MEANS, NormSoftmaxLoss)):
            found = f"{type(part).__name__}{' with '.join(['', *wrong])}"
            raise InputError(f"queries_at_once: {found} is no mean over queries; use a rank loss such as sup_ap or roadmap")


def loss_in_blocks(
    loss: nn.Module, embeddings: Tensor, labels: Tensor, queries_at_once: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of a batch from the scores of some queries at a time: the same value and the same gradient.

    Args:
        loss: a mean over queries; :func:`check_blocks` refuses others.
        embeddings: (B, D).
        labels: (B,) or (B, L) classes; each item shares its finest with another one.
        queries_at_once: rows of scores held in memory.

    Returns:
        () the loss, and its terms by name.

    Example:
        >>> found, _ = loss_in_blocks(SupAPLoss(), torch.eye(4)[[0, 0, 1, 1]], torch.tensor([5, 5, 9, 9]), 2)
        >>> found
        tensor(0.)
    """
    finest = labels if labels.ndim == 1 else labels.unique(dim=0, return_inverse=True)[1]
    alone = int((finest.unique(return_counts=True)[1] < 2).sum())
    if alone:
        raise InputError(
            f"queries_at_once: {alone} classes of the batch have one image; set sampler.per_class to 2 or more"
        )
    learns = torch.is_grad_enabled()
    leaf = embeddings.detach().requires_grad_(learns)
    weights = [weight for weight in loss.parameters() if weight.requires_grad]
    slopes = [torch.zeros_like(tensor) for tensor in (leaf, *weights)]
    total, terms = embeddings.new_zeros(()), dict[str, Tensor]()
    for start in range(0, len(leaf), queries_at_once):
        rows = slice(start, start + queries_at_once)
        items = {"ref_emb": leaf.roll(-start, 0), "ref_labels": labels.roll(-start, 0)}  # first the queries themselves
        value = loss(leaf[rows], labels[rows], **items) if queries_at_once < len(leaf) else loss(leaf, labels)
        share = len(leaf[rows]) / len(leaf)
        found = torch.autograd.grad(value, (leaf, *weights), allow_unused=True) if learns else ()
        for slope, part in zip(slopes, found, strict=False):
            if part is not None:
                slope.add_(part, alpha=share)
        total = total + share * value.detach()
        terms = {name: terms.get(name, 0) + share * term.detach() for name, term in terms_of(loss).items()}
    for given, slope in zip((embeddings, *weights), slopes, strict=True):
        if learns and given.requires_grad:
            total = total + with_gradient(given, torch.zeros_like(total), slope)
    return total, terms
