"""The state a loss carries from batch to batch: the last few batches as further items to rank, and random draws.

Training calls ``start_epoch()`` of a loss and its parts before each epoch, and ``identify(ids)`` before each batch.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sightline.errors import InputError
from sightline.losses.base import LossBatch, batch_pairs
from sightline.ranking.pairs import GradedSets, Pairs, check_labels
from sightline.ranking.ranks import check_counts


def start_epoch(loss: nn.Module) -> None:
    """Call ``start_epoch`` of the loss and of its parts that have it."""
    for part in loss.modules():
        if callable(hook := getattr(part, "start_epoch", None)):
            hook()


def identify_batch(loss: nn.Module, ids: Tensor) -> None:
    """Call ``identify`` of the loss and its parts with the items of the next batch, (B,) int64, 0 or more."""
    for part in loss.modules():
        if callable(hook := getattr(part, "identify", None)):
            hook(ids)


def keeps_batches(loss: nn.Module) -> bool:
    """Whether the loss, or a part of it, ranks earlier batches too."""
    return any(isinstance(part, RecentBatches) and part.n_batches for part in loss.modules())


class RecentBatches(nn.Module):
    """The rows of the last few batches with their labels, in training: detached, and in the ``state_dict``.

    Args:
        n_batches: how many to keep; 0 for none.

    Attributes:
        rows: (N, D) the rows, oldest batch first.
        labels: (N, L) their labels.
        ids: (N,) int64 which items they are; -1 where unknown.
        sizes: (n,) int64 rows of each batch kept.
        coming: (B,) int64 which items the next batch holds; None where unknown.
    """

    def __init__(self, n_batches: int) -> None:
        super().__init__()
        check_counts(least=0, memory=n_batches)
        self.n_batches = n_batches
        self.reset()
        self.register_load_state_dict_pre_hook(fit_buffers)  # type: ignore[no-untyped-call]

    def reset(self) -> None:
        """Empty the memory."""
        self.rows: Tensor = nn.Buffer(torch.zeros(0, 0))
        self.labels: Tensor = nn.Buffer(torch.zeros(0, 0, dtype=torch.int64))
        self.ids: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self.sizes: Tensor = nn.Buffer(torch.zeros(0, dtype=torch.int64))
        self.coming: Tensor | None = None

    start_epoch = reset  # an item of the last epoch may come at any time

    def identify(self, ids: Tensor) -> None:
        """Set which items the next batch holds, (B,) int64, 0 or more: none of them then ranks an older copy of itself."""
        self.coming = ids

    def before(self, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The rows in memory, on the device of ``rows``; none in evaluation. Refuses rows of another width."""
        if not (self.training and self.n_batches and len(self.rows)):
            return rows[:0].detach(), labels[:0]
        if self.rows.shape[1] != rows.shape[1]:
            raise InputError(
                f"rows must be as wide as those in memory, {self.rows.shape[1]}, got {rows.shape[1]}; reset() empties it"
            )
        return self.rows.to(rows.device), self.labels.to(rows.device)

    def push(self, rows: Tensor, labels: Tensor) -> None:
        """Add a batch, and drop the oldest where there are too many; do nothing in evaluation."""
        if not (self.training and self.n_batches):
            return
        old_rows, old_labels = self.before(rows, labels)
        sizes = [*self.sizes.tolist(), len(rows)]
        n_gone = sum(sizes[: -self.n_batches])
        self.rows = torch.cat([old_rows, rows.detach()])[n_gone:].clone()
        self.labels = torch.cat([old_labels, labels])[n_gone:].clone()
        ids = torch.full((len(rows),), -1, device=rows.device) if self.coming is None else self.coming
        self.ids, self.coming = torch.cat([self.ids.to(rows.device), ids.to(rows.device)])[n_gone:].clone(), None
        self.sizes = self.sizes.new_tensor(sizes[-self.n_batches :])


def fit_buffers(module: nn.Module, state: dict[str, Any], prefix: str, *_: object) -> None:
    """Give the buffers the shapes that are about to be loaded: they depend on the batches seen so far."""
    for name, buffer in module.named_buffers(recurse=False):
        if (kept := state.get(prefix + name)) is not None:
            setattr(module, name, torch.zeros(kept.shape, dtype=kept.dtype, device=buffer.device))


def pairs_with_memory(recent: RecentBatches, batch: LossBatch) -> Pairs:
    """Every item of the batch as a query against the rest of the batch and the items kept, or against a reference set.

    The batch is kept afterwards; items kept have no gradient, are never queries and not in the lists of later copies of
    themselves, where ids are known. A reference set is refused beside a memory in use: the items kept are not of it.
    """
    wide = batch.in_full_precision()
    pairs = wide.pairs()
    if not (recent.training and recent.n_batches):
        return pairs
    batch.refuse(["indices_tuple", "ref_emb"], "not beside a memory; leave it out, or set memory to 0")
    embeddings, labels = batch.embeddings, batch.labels
    if isinstance(labels, GradedSets):
        raise InputError("memory keeps classes or sets, not items with several codes; set it to 0, or use memory.size")
    if labels.dtype != torch.bool:  # sets of labels
        labels = check_labels(labels, len(embeddings), "labels")
    earlier = batch_pairs(wide.embeddings, labels, *recent.before(embeddings, labels))
    if recent.coming is not None:
        older_copies = recent.coming[:, None].to(recent.ids) == recent.ids
        earlier.levels.masked_fill_(older_copies.to(earlier.levels.device), -1)
    recent.push(embeddings, labels)
    scores, levels = (torch.cat(sides, dim=1) for sides in zip(pairs[:2], earlier[:2], strict=True))
    return Pairs(scores, levels, pairs.n_levels, pairs.relevant_from)


class SeededDraws(nn.Module):
    """A new generator for each call, from the seed and the number of calls, which is part of the loss's state.

    Example:
        >>> draws = SeededDraws(seed=1)
        >>> first, second = draws.next(), draws.next()
        >>> bool(torch.rand(1, generator=first) == torch.rand(1, generator=second))
        False
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        check_counts(least=0, seed=seed)
        self.seed = seed
        self.n_drawn: Tensor = nn.Buffer(torch.zeros((), dtype=torch.int64))

    def next(self) -> torch.Generator:
        """A generator on the CPU."""
        state = np.random.SeedSequence([self.seed, int(self.n_drawn)]).generate_state(1, np.uint64)
        self.n_drawn = self.n_drawn + 1
        return torch.Generator().manual_seed(int(state[0]))
