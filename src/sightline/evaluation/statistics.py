"""What every metric of a ranking follows from: a few sums for each query, and those sums from ranked lists."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Statistics:
    """Sums over each query's relevant items; level l of 1..L is at [l - 1], r is the place of an item, from 1 on.

    Attributes:
        counts: (Q, L) items of each level in the list.
        length: (Q,) items in the list.
        precision: (Q, L, L) at [a, m], over the items of level a: items of level m not after it, divided by r.
        discount: (Q, L) over the items of each level: 1 / log2(1 + r).
        first: (Q, L) the best place of each level; 0 where it has none.
        precision_at_r: (Q, L) over the items of level l or finer among the first R places, R being how many there are:
            precision at r, with level l or finer as relevant.
        found_at_r: (Q, L) items of level l or finer among the first R.
        set_precision: (Q, L) sum of that precision over the places 1..R, of relevant items or not.
        asi: (Q,) sum over the places 1..n, n items being of level 1 or above, of the set intersection with the ideal list.
        ks: the places of what follows, ascending.
        found: (Q, K, L) items of each level among the first k.
        precision_at_k: (Q, K, L) over the items of level l or finer among the first k: precision at r.
        discount_at_k: (Q, K, L) over the items of each level among the first k: 1 / log2(1 + r).
    """

    counts: Counts
    length: Counts
    precision: Floats
    discount: Floats
    first: Counts
    precision_at_r: Floats
    found_at_r: Floats
    set_precision: Floats
    asi: Floats
    ks: tuple[int, ...]
    found: Floats
    precision_at_k: Floats
    discount_at_k: Floats

    @property
    def n_levels(self) -> int:
        """L."""
        return int(self.counts.shape[1])

    @property
    def at_least(self) -> Counts:
        """(Q, L) items of each level or finer."""
        return np.flip(np.flip(self.counts, 1).cumsum(1), 1)

    def at(self, k: int) -> int:
        """Where k is among ``ks``."""
        return self.ks.index(k)


def joined(parts: Iterable[Statistics], order: Counts | None = None) -> Statistics:
    """The queries of all parts, one after the other, or query i of them at ``order[i]``."""
    parts = list(parts)
    columns = {
        field.name: np.concatenate([getattr(part, field.name) for part in parts])
        for field in fields(Statistics)
        if field.name != "ks"
    }
    if order is not None:
        back = np.argsort(order)
        columns = {name: column[back] for name, column in columns.items()}
    return Statistics(**columns, ks=parts[0].ks)


def ranked_levels(scores: Tensor, levels: Tensor) -> Tensor:
    """The levels of each query's list in ranked order; of equal scores the lower level comes first.

    Args:
        scores: (Q, G) finite.
        levels: (Q, G) int8; -1 where the item is not in the list.

    Returns:
        (Q, G) int8, best place first, -1 at the end.

    Example:
        >>> scores, levels = torch.tensor([[0.5, 0.9, 0.5]]), torch.tensor([[2, -1, 1]], dtype=torch.int8)
        >>> ranked_levels(scores, levels)
        tensor([[ 1,  2, -1]], dtype=torch.int8)
    """
    return levels.gather(1, _ranked(scores, levels))


def _ranked(scores: Tensor, levels: Tensor) -> Tensor:
    lower_first = levels.argsort(dim=1, stable=True)
    scores = scores.masked_fill(levels < 0, -torch.inf).gather(1, lower_first)
    return lower_first.gather(1, scores.argsort(dim=1, descending=True, stable=True))


def score_statistics(scores: Tensor, levels: Tensor, n_levels: int, ks: Sequence[int], by_counting: bool) -> Statistics:
    """The statistics of the lists that the scores give; the way for any device, by sorting whole rows."""
    order = _ranked(scores, levels)
    ranked = levels.gather(1, order)
    found = list_statistics(ranked, n_levels, ks)
    if not by_counting:
        return found
    sorted_scores = scores.gather(1, order)
    place = torch.arange(ranked.shape[1], device=scores.device).expand_as(ranked)
    ends = torch.ones_like(ranked, dtype=torch.bool)
    ends[:, :-1] = (sorted_scores[:, 1:] != sorted_scores[:, :-1]) | (ranked[:, 1:] < 0)
    last = place.where(ends, ranked.shape[1]).flip(1).cummin(1).values.flip(1)
    # All items of a tie at the place of its last relevant one, or of its last item where none is: those do not count.
    tied = list_statistics(ranked, n_levels, (), last)
    columns = {field.name: getattr(found, field.name) for field in fields(Statistics)}
    return Statistics(**{**columns, "precision": tied.precision, "discount": tied.discount})


def list_statistics(ranked: Tensor, n_levels: int, ks: Sequence[int] = (), last: Tensor | None = None) -> Statistics:
    """The statistics of ranked lists.

    Args:
        ranked: (Q, K) levels, best place first; below 0 where a list has ended.
        n_levels: L.
        ks: places of which counts are wanted.
        last: (Q, K) int64, index of the last item that each one is tied with, if ties are counted.

    Example:
        >>> list_statistics(torch.tensor([[1, 0, 1]]), n_levels=1).precision
        array([[[1.66666667]]])
    """
    device, n_places = ranked.device, ranked.shape[1]
    ks = tuple(sorted(set(ks)))
    place = torch.arange(1, n_places + 1, dtype=torch.float64, device=device)
    is_level = torch.stack([ranked == level for level in range(1, n_levels + 1)], 1)  # (Q, L, K)
    seen, at = is_level.cumsum(2), place.expand(len(ranked), -1)
    if last is not None:
        seen, at = seen.gather(2, last[:, None].expand_as(seen)), place[last]
    share = is_level / at[:, None]
    precision = torch.einsum("qak,qmk->qam", share, seen.double())
    gains = is_level / torch.log2(1 + at)[:, None]
    finer = is_level.flip(1).cumsum(1).flip(1)  # (Q, L, K) of level l or finer
    places_precision = finer.cumsum(2) / place
    at_least = finer.sum(2)
    inside = place <= at_least[:, :, None]
    first = torch.where(is_level.any(2), is_level.byte().argmax(2) + 1, 0) if n_places else at_least
    cut = [min(k, n_places) for k in ks]
    cuts = [(is_level[:, :, :k].sum(2), (places_precision * finer)[:, :, :k].sum(2), gains[:, :, :k].sum(2)) for k in cut]
    found, precision_at_k, discount_at_k = (
        np.stack([_numpy(row[part]).astype(np.float64) for row in cuts], 1)
        if cuts
        else np.zeros((len(ranked), 0, n_levels))
        for part in range(3)
    )
    return Statistics(
        counts=_numpy(is_level.sum(2)),
        length=_numpy((ranked >= 0).sum(1)),
        precision=_numpy(precision),
        discount=_numpy(gains.sum(2)),
        first=_numpy(first),
        precision_at_r=_numpy((places_precision * finer * inside).sum(2)),
        found_at_r=_numpy((finer * inside).sum(2)).astype(np.float64),
        set_precision=_numpy((places_precision * inside).sum(2)),
        asi=_numpy(_set_intersections(is_level, place)),
        ks=ks,
        found=found,
        precision_at_k=precision_at_k,
        discount_at_k=discount_at_k,
    )


def _set_intersections(is_level: Tensor, place: Tensor) -> Tensor:
    counts = is_level.sum(2)
    finer = counts.flip(1).cumsum(1).flip(1) - counts
    ideal = torch.minimum((place.long() - finer[:, :, None]).clamp(min=0), counts[:, :, None])
    both = torch.minimum(is_level.cumsum(2), ideal).sum(1) / place
    return (both * (place <= counts.sum(1)[:, None])).sum(1)


def _numpy(values: Tensor) -> NDArray[Any]:
    return values.cpu().numpy()
