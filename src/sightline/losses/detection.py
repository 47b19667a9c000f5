"""Classes as queries: average precision of each class over the items, for multi-label classifiers and detectors."""

import torch
from torch import Tensor, nn

from sightline.errors import InputError
from sightline.losses.blackbox import blackbox_ap_loss
from sightline.losses.checks import check_margin
from sightline.losses.recent import RecentBatches
from sightline.ranking.ranks import check_pairs, check_positive


def class_map_loss(
    logits: Tensor, targets: Tensor, mask: Tensor | None = None, strength: float = 0.5, margin: float = 0.15
) -> Tensor:
    """:func:`blackbox_ap_loss` with each class as a query, and the rows as its list: one minus mAP over classes.

    Formula:
        The mean over classes of blackbox_ap along a column.

    Use:
        Multi-label classifiers, and the classification head of a detector.

    Cost:
        A few sorts of each column.

    Defaults:
        strength and margin of the detection runs of Rolínek et al.

    Limit:
        One minus mAP over the rows at margin 0.

    Args:
        logits: (N, C) score of each row for each class.
        targets: (N, C) bool, or numbers: above 0 where the row is of the class.
        mask: (N, C) bool, True where the row is in the class's list; None for everywhere.
        strength: as in :func:`blackbox_ap_loss`, like ``margin``.
        margin: how far a relevant score must be above an irrelevant one.

    Returns:
        () mean over the classes that have a relevant row; 0 where none has.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[0.9, 0.2], [0.3, 0.7], [0.4, 0.8]])
        >>> class_map_loss(logits, torch.tensor([[True, False], [False, True], [False, False]]))
        tensor(0.2500)
    """
    logits, mask = check_pairs(logits, targets, mask)
    return blackbox_ap_loss(logits.T, targets.T, mask.T, strength, margin)


def all_classes_ap_loss(
    logits: Tensor, targets: Tensor, mask: Tensor | None = None, strength: float = 0.5, margin: float = 0.15
) -> Tensor:
    """:func:`blackbox_ap_loss` on one list of all rows for all classes: scores must compare from class to class.

    Arguments are those of :func:`class_map_loss`.

    Formula:
        blackbox_ap of the N x C scores as one list.

    Use:
        Beside class_map_loss, where one threshold serves all classes.

    Cost:
        A few sorts of N x C scores.

    Defaults:
        As class_map_loss.

    Limit:
        Equal to class_map_loss for a single class.

    Returns:
        () the loss of the one list; 0 where nothing is relevant.
    """
    logits, mask = check_pairs(logits, targets, mask)
    return blackbox_ap_loss(logits.reshape(1, -1), targets.reshape(1, -1), mask.reshape(1, -1), strength, margin)


class DetectionAPLoss(nn.Module):
    """``(1 - share) * class_map_loss + share * all_classes_ap_loss``, called on class scores instead of embeddings.

    ``strength`` is that of the whole sum, as in RaMBO: each term has its part of it. Evaluation mode is without margin and
    memory.

    Args:
        strength: as in :func:`class_map_loss`, like ``margin``.
        margin: how far a relevant score must be above an irrelevant one.
        share: of the list of all classes, in (0, 1).
        memory: how many earlier batches lengthen each class's list; :meth:`reset` forgets them. The list of all classes is
            of the batch alone.

    Example:
        >>> import torch
        >>> DetectionAPLoss()(torch.tensor([[0.9, 0.2], [0.3, 0.7]]), torch.eye(2).bool())
        tensor(0.)
    """

    def __init__(self, strength: float = 0.5, margin: float = 0.15, share: float = 1 / 3, memory: int = 7) -> None:
        super().__init__()
        check_positive(strength=strength)
        check_margin(margin)
        if not 0 < share < 1:
            raise InputError(f"share is {share}; a number between 0 and 1 is needed")
        self.strength, self.margin, self.share = strength, margin, share
        self.recent = RecentBatches(memory)

    def reset(self) -> None:
        """Empty the memory."""
        self.recent.reset()

    def forward(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss of (N, C) scores and targets; those of a batch are kept after its loss is computed."""
        check_pairs(logits, targets, None)
        targets = targets > 0
        margin = self.margin if self.training else 0.0
        kept_logits, kept_targets = self.recent.before(logits, targets)
        longer = torch.cat([logits, kept_logits]), torch.cat([targets, kept_targets])
        # The gradient of c times a loss, at strength s, is c times that of the loss at strength c s.
        by_class = class_map_loss(*longer, None, self.strength * (1 - self.share), margin)
        across = all_classes_ap_loss(logits, targets, None, self.strength * self.share, margin)
        self.recent.push(logits, targets)
        return (1 - self.share) * by_class + self.share * across
