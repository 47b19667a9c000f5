"""Losses of this package inside pytorch-metric-learning's wrappers, which accept classes of its own alone.

Every loss is called as pytorch-metric-learning's are, so its miners and plain loops need nothing from here. Not part of
``sightline.losses``: importing pytorch-metric-learning takes a second.
"""

from collections.abc import Sequence

from pytorch_metric_learning.losses import BaseMetricLossFunction, CrossBatchMemory
from torch import Tensor, nn


class MetricLearningLoss(BaseMetricLossFunction):  # type: ignore[misc]
    """A loss as pytorch-metric-learning's ``DistributedLossWrapper``, ``MultipleLosses`` and trainers ask for it.

    Labels are classes, (B,): pytorch-metric-learning refuses others.

    Args:
        loss: a loss of :func:`~sightline.losses.create_loss`.

    Example:
        >>> import torch
        >>> from sightline.losses import create_loss
        >>> MetricLearningLoss(create_loss("roadmap"))(torch.eye(4)[[0, 0, 1, 1]], torch.tensor([5, 5, 9, 9]))
        tensor(0.)
    """

    def __init__(self, loss: nn.Module) -> None:
        super().__init__()
        self.loss = loss

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: Sequence[Tensor] | None,
        ref_emb: Tensor,
        ref_labels: Tensor,
    ) -> dict[str, dict[str, object]]:
        """The loss, reduced already; without a reference set pytorch-metric-learning gives the batch for one."""
        references = () if ref_emb is embeddings else (ref_emb, ref_labels)
        value = self.loss(embeddings, labels, indices_tuple, *references)
        return {"loss": {"losses": value, "indices": None, "reduction_type": "already_reduced"}}


class MetricLearningMemory(CrossBatchMemory):  # type: ignore[misc]
    """pytorch-metric-learning's ``CrossBatchMemory`` around a :class:`MetricLearningLoss`: its own knows 14 losses by name.

    It ranks, for each item of the batch, all items of the memory but the item itself.

    Example:
        >>> import torch
        >>> from sightline.losses import create_loss
        >>> memory = MetricLearningMemory(MetricLearningLoss(create_loss("sup_ap")), embedding_size=4, memory_size=100)
        >>> memory(torch.eye(4)[[0, 0, 1, 1]], torch.tensor([5, 5, 9, 9]))
        tensor(0.)
    """

    @staticmethod
    def supported_losses() -> list[str]:
        """The names of classes that it wraps."""
        return [MetricLearningLoss.__name__, *CrossBatchMemory.supported_losses()]
