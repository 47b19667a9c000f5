"""Earlier embeddings as a larger gallery; all its state in buffers."""

import torch
from torch import Tensor, nn

from sightline.errors import InputError
from sightline.losses.memory import fit_buffers, identify_batch
from sightline.losses.sums import named_terms, terms_of


class CrossBatchMemory(nn.Module):
    """The last embeddings that training made, with their labels and which images they are of.

    A list of fixed length that the newest items enter at the expense of the oldest (XBM). An image is in it once: what is
    pushed replaces its older copy. :meth:`references` leaves out the images of a batch, so that no item meets its own older
    copy; those of the batch meet each other in the loss of the batch itself.

    Args:
        size: items it holds at most.
        dim: length of an embedding.
        n_levels: label levels.

    Example:
        >>> memory = CrossBatchMemory(size=3, dim=2, n_levels=1)
        >>> memory.push(torch.eye(2), torch.tensor([[5], [6]]), torch.tensor([10, 11]))
        >>> memory.push(torch.ones(2, 2), torch.tensor([[5], [7]]), torch.tensor([10, 12]))
        >>> memory.references(torch.tensor([12]))[1].flatten().tolist()
        [6, 5]
    """

    rows: Tensor
    labels: Tensor
    ids: Tensor

    def __init__(self, size: int, dim: int, n_levels: int) -> None:
        super().__init__()
        if size < 1:
            raise InputError(f"memory.size is {size}; at least 1 is needed")
        self.size = size
        self.register_buffer("rows", torch.zeros(0, dim))
        self.register_buffer("labels", torch.zeros(0, n_levels, dtype=torch.int64))
        self.register_buffer("ids", torch.zeros(0, dtype=torch.int64))
        self.register_load_state_dict_pre_hook(fit_buffers)  # type: ignore[no-untyped-call]

    def __len__(self) -> int:
        return len(self.ids)

    def push(self, embeddings: Tensor, labels: Tensor, ids: Tensor) -> None:
        """Let the items in, newest last, and the oldest out."""
        older, newest = ~torch.isin(self.ids, ids), _last_of_each(ids)
        table = labels if labels.ndim == 2 else labels[:, None]
        self.rows = torch.cat([self.rows[older], embeddings.detach().to(self.rows)[newest]])[-self.size :].clone()
        self.labels = torch.cat([self.labels[older], table[newest]])[-self.size :].clone()
        self.ids = torch.cat([self.ids[older], ids[newest]])[-self.size :].clone()

    def references(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Embeddings and labels of what it holds, without the images of these ids."""
        others = ~torch.isin(self.ids, ids)
        return self.rows[others], self.labels[others]

    def reset(self) -> None:
        """Forget everything."""
        self.rows, self.labels, self.ids = self.rows[:0], self.labels[:0], self.ids[:0]


def _last_of_each(ids: Tensor) -> Tensor:
    """Where each id stands last, in order.

    Example:
        >>> _last_of_each(torch.tensor([7, 5, 7, 9]))
        tensor([1, 2, 3])
    """
    unique, inverse = ids.unique(return_inverse=True)
    places = torch.arange(len(ids), device=ids.device)
    return torch.zeros_like(unique).scatter_reduce(0, inverse, places, "amax").sort().values


class BatchLoss(nn.Module):
    """A loss as the loop calls it, on (embeddings, labels, ids) of the whole batch; a memory goes by the ids.

    With a memory it is, from some step on, a loss on the batch and one against the memory, which fills from the
    first step on.

    Args:
        loss: takes a reference set, where there is a memory.
        memory: what is kept; None for none.
        start: the step from which the memory counts.
        share: of the loss against the memory, in [0, 1].

    Attributes:
        terms: what the loss tells of its last call; with a memory ``batch`` and, once it counts, ``memory``: see
            :mod:`sightline.losses.sums`.
    """

    n_steps: Tensor

    def __init__(self, loss: nn.Module, memory: CrossBatchMemory | None = None, start: int = 0, share: float = 0.5) -> None:
        super().__init__()
        if not 0 <= share <= 1:
            raise InputError(f"memory.share is {share}; a number from 0 to 1 is needed")
        self.loss, self.memory, self.start, self.share = loss, memory, start, share
        self.register_buffer("n_steps", torch.zeros((), dtype=torch.int64), persistent=memory is not None)
        self.terms: dict[str, Tensor] = {}

    def forward(self, embeddings: Tensor, labels: Tensor, ids: Tensor) -> Tensor:
        identify_batch(self.loss, ids)
        value: Tensor = self.loss(embeddings, labels)
        if self.memory is None:
            self.terms = terms_of(self.loss)
            return value
        self.terms = named_terms("batch", self.loss, value)
        references, ref_labels = self.memory.references(ids)
        if int(self.n_steps) >= self.start and len(references):
            of_references = ref_labels if labels.ndim == 2 else ref_labels[:, 0]
            against: Tensor = self.loss(embeddings, labels, references.to(embeddings), of_references)
            self.terms |= named_terms("memory", self.loss, against)
            value = (1 - self.share) * value + self.share * against
        if self.training:
            self.memory.push(embeddings, labels, ids)
            self.n_steps = self.n_steps + 1
        return value
