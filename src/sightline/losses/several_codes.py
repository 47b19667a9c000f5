"""Losses on items with several codes: a batch holds the numbers of its items, and a table knows their codes."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.errors import InputError
from sightline.labels.codes import CodeRelevance, CodeSets, code_tables, graded
from sightline.losses.sums import takes_references, terms_of
from sightline.ranking.pairs import GradedSets, check_labels


class ItemCodes:
    """The codes of a set of items, from which the labels of any batch of them are made.

    Args:
        sets: the codes of each item.
        relevance: what sharing them is worth.
        level: where all that counts is whether an item is relevant, one shared code of this level makes it so; 0 is the
            finest.
        source: for messages.

    Example:
        >>> items = ItemCodes([["1.1"], ["1.2", "3.1"], ["1.1"]], CodeRelevance(n_levels=2))
        >>> items.counts
        [3, 2]
        >>> labels = items.labels(torch.tensor([0, 1, 2]))
        >>> labels.worth
        tensor([[1.0000, 0.5000, 1.0000],
                [0.2500, 1.0000, 0.2500],
                [1.0000, 0.5000, 1.0000]])
        >>> labels.relevant[0]
        tensor([ True, False,  True])
    """

    def __init__(self, sets: CodeSets, relevance: CodeRelevance, level: int = 0, source: object = "codes") -> None:
        if not 0 <= level < relevance.n_levels:
            raise InputError(f"level must be below the {relevance.n_levels} levels of the codes, got {level}")
        self.pairs = relevance.between(sets, source=source)
        self.tables = code_tables(sets, relevance.n_levels, source)
        self.level = level

    @property
    def counts(self) -> list[int]:
        """How many codes each level has, finest first."""
        return [len(table.names) for table in self.tables]

    def labels(self, items: Tensor, ref_items: Tensor | None = None) -> GradedSets:
        """What items are to each other, or to those of a reference set; all by their (B,) numbers in the set."""
        rows, device = items.cpu().numpy(), items.device
        others = rows if ref_items is None else ref_items.cpu().numpy()
        worth = torch.from_numpy(graded(self.pairs.rows(rows, others))).float().to(device)
        sets = self._sets(rows, device)
        return GradedSets(worth, sets, sets if ref_items is None else self._sets(others, device), self.level)

    def _sets(self, rows: NDArray[np.int64], device: torch.device) -> list[Tensor]:
        return [torch.from_numpy(table.has[rows].astype(bool).toarray()).to(device) for table in self.tables]


class CodesLoss(nn.Module):
    """A loss on items with several codes, called with the numbers of the items in place of labels.

    Losses that look at how much an item is worth take it from the relevance of codes; those that ask whether it is
    relevant take the items that share a code of ``codes.level``. Proxies are one for each code.

    Args:
        loss: on embeddings and labels.
        codes: of all items.
    """

    def __init__(self, loss: nn.Module, codes: ItemCodes) -> None:
        super().__init__()
        self.loss, self.codes = loss, codes
        self.takes_references = takes_references(loss)

    @property
    def terms(self) -> dict[str, Tensor]:
        """The terms of the loss's last call."""
        return terms_of(self.loss)

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor,
        indices_tuple: Sequence[Tensor] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Tensor:
        if indices_tuple is not None or (ref_emb is None) != (ref_labels is None):
            raise InputError("give ref_emb and ref_labels together, and no indices_tuple, beside items with several codes")
        own = check_labels(labels, len(embeddings), "labels")[:, 0]
        if ref_emb is None:
            return self.loss(embeddings, self.codes.labels(own))  # type: ignore[no-any-return]
        others = check_labels(ref_labels, len(ref_emb), "ref_labels")[:, 0]
        return self.loss(embeddings, self.codes.labels(own, others), ref_emb=ref_emb)  # type: ignore[no-any-return]
