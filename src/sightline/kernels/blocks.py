"""Smooth counts on any device, in whole-tensor operations: pair by pair for few targets, by blocks without the cubic cost.

What :mod:`~sightline.kernels.sorted_rows` walks item by item, :class:`BlockCounts` does block by block. Each row is sorted
and cut into N blocks of C items. A target (an item whose rank is wanted) meets the items of its own block one by one, and
those of the other blocks through the sums of :mod:`~sightline.kernels.lane_sums`: with ``z = exp(-gap / tau)`` the sigmoid
of a negative gap and its slope are polynomials in z, so a block is known by its moments, the sums of
``z, z**2 ... z**8`` to a place of reference, here the lowest score of each block. Moments move from one reference to the
next by a factor.

SupRank's step is a line beyond ``delta``. The edge, ``delta`` above a target, lies in some block: its items beyond the edge
are met one by one too, the blocks after it are left out of the moments, and what is beyond the edge is counted and summed.

The gradient is the same with targets and items exchanged: factor by factor the transposed sums, so that a row's gradient
sums to 0 as far as rounding allows. Every exponent is at most 0. The matrix products are of the precision that torch is set
to, as those of the scores are. Python looks at no value: a GPU is never waited for, and torch.compile can trace it all.

Letters beside those of the library: R rows, P targets of a row, N blocks, C items of a block, K channels. A target reads
the channel of its level (SupRank's step: items of lower levels) or all K of them (the sigmoid: items of each level).
"""

import math
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.kernels.lane_sums import DEGREE, SLOPE, VALUE

BLOCK = 16  # items
CHUNK_ELEMENTS = 3 << 17  # items of the rows that are worked on at once: 170 MB where targets and levels are few
PAIR_ELEMENTS = 1 << 20  # pairs that are worked on at once
AWAY_FROM_CPU = 4  # times as many: a GPU is kept waiting by many small operations
LARGEST = 1e30  # scores beyond count as this: their differences, and sums of these, stay finite
NO_POWER = 16.0  # exp of minus this counts as 0 beside 1
NEGLIGIBLE = 1e-30  # a gradient below becomes 0: with denormal numbers a matrix product takes ten times as long


def packed(chosen: Tensor, most: int | None = None) -> tuple[Tensor, Tensor]:
    """(Q, P) int64 columns of the True places of (Q, G), packed to the left, 0 in the padding; (Q, P) bool, False there.

    P is ``most``, which no row may exceed, or the largest number of a row, for which a GPU has to wait.
    """
    places = chosen.cumsum(1)
    if most is None:
        most = int(places[:, -1].max()) if chosen.numel() else 0
    columns = torch.arange(chosen.shape[1], device=chosen.device).expand_as(places)
    index = places.new_zeros(len(chosen), most + 1)  # what was not chosen goes to the last place, which is dropped
    index.scatter_(1, (places - 1).where(chosen, most), columns)
    return index[:, :most], torch.arange(most, device=chosen.device) < chosen.sum(1, keepdim=True)


def rows_at_once(scores: Tensor, most_targets: int, n_levels: int, by_pairs: bool) -> int:
    """Rows that are worked on together."""
    n_items = scores.shape[1]
    widest = max(n_items, most_targets * BLOCK // 4, (n_items + most_targets) * n_levels // 8)
    elements, per_row = (PAIR_ELEMENTS, most_targets * n_items) if by_pairs else (CHUNK_ELEMENTS, widest)
    return max(1, elements * (1 if scores.device.type == "cpu" else AWAY_FROM_CPU) // max(1, per_row))


def _last_within(own: Tensor, edge: float) -> Tensor:
    """The last float32 not beyond the edge: taken in float64, as the edge rounded puts items on the wrong side."""
    exact = own.double() + edge
    near = exact.to(own.dtype)
    return torch.where(near > exact, near.nextafter(torch.full_like(near, -torch.inf)), near)


def _sigmoid_and_slope(gaps: Tensor) -> tuple[Tensor, Tensor]:
    """Sigmoid of gaps in units of tau, and its slope, which does not come from a difference; ``gaps`` is used up."""
    smooth = gaps.sigmoid()
    return smooth, gaps.neg_().sigmoid_().mul_(smooth)


class PairCounts:
    """:class:`BlockCounts` pair by pair, for few targets: arguments and attributes are the same."""

    def __init__(
        self, scores: Tensor, levels: Tensor, n_levels: int, most: int, tau: float, sup: Any, worth: Tensor | None
    ) -> None:
        self.place, self.valid = packed(levels > 0, most)
        x, kinds = scores.clamp(-LARGEST, LARGEST), levels.view(torch.uint8)[:, None]  # not in the list: 255
        own, self.level = x.gather(1, self.place), levels.gather(1, self.place).long().where(self.valid, 1)
        level, targets = self.level.to(torch.uint8)[..., None], own[..., None]
        gap, self.is_sup = x[:, None] - targets, sup is not None  # (R, P, G)
        at_least = gap >= 0
        here = kinds < n_levels
        counted = at_least & here & self.valid[..., None]
        self.above = (counted & (kinds >= level)).sum(2).to(x.dtype)
        self.graded = torch.zeros_like(self.above)
        if worth is not None:
            of_items = worth.gather(1, levels.long().clamp(min=0))[:, None]
            self.graded = torch.minimum(of_items, worth.gather(1, self.level)[..., None]).mul(counted).sum(2)
        if sup is None:
            self.kinds = kinds.clamp(max=n_levels).long().expand_as(gap)
            smooth, self.slopes = _sigmoid_and_slope(gap.div_(tau))
            self.slopes.scatter_(2, self.place[..., None], 0.0)  # none with itself, not one that rounding takes out
            self.values = torch.stack([(smooth * (kinds == level)).sum(2) for level in range(n_levels)], 2)
        else:
            lower = kinds < level
            edge = _last_within(own, sup.edge)[..., None]
            beyond = (x[:, None] > edge) & lower
            smooth, slopes = _sigmoid_and_slope(gap.masked_fill(~lower, -torch.inf).div_(tau))
            line = (x[:, None] - edge).mul_(sup.rho).add_(sup.top)
            self.slopes = slopes.masked_fill_(beyond, sup.rho * tau)
            jumps = lower & ((gap > 0) if sup.strict else at_least)
            self.values = (torch.where(beyond, line, smooth).sum(2) + sup.jump * jumps.sum(2))[..., None]
        self.slopes = self.slopes.div_(tau)
        self.values = self.values * self.valid[..., None]

    def fill_gradient(self, weights: Tensor, gradient: Tensor) -> None:
        """As that of :class:`BlockCounts`."""
        weights = weights * self.valid[..., None]
        pulls = self.slopes * (weights if self.is_sup else F.pad(weights, (0, 1)).gather(2, self.kinds))
        found = pulls.sum(1).scatter_add_(1, self.place, -pulls.sum(2))
        gradient.copy_(found.mul_(found.abs() > NEGLIGIBLE))


def _coefficients(like: Tensor) -> Tensor:
    """(2, 16) of a value and of its slope times tau: first of the items above, then of those below."""
    # Numbers sent to a GPU are waited for: they are kept there. In a graph they are constants anyway.
    made = _made_coefficients.__wrapped__ if torch.compiler.is_compiling() else _made_coefficients
    return made(like.device, like.dtype)


@cache
def _made_coefficients(device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.tensor([[-c for c in VALUE] + list(VALUE), list(SLOPE) * 2], dtype=dtype, device=device)


class BlockCounts:
    """Some rows' targets, in the order of their scores, with exact and smooth counts of the items above them.

    Args:
        scores: (R, G).
        levels: (R, G) int8.
        n_levels: M.
        most: P, the most targets that a row has, or more.
        tau: width of the sigmoid.
        sup: what makes SupRank's step of a sigmoid: ``jump`` at 0 (``strict``: above 0), and beyond ``edge`` a line that
            starts at ``top`` with the slope ``rho``; None for the sigmoid alone.
        worth: (R, M) the relevance of each level, or None.

    Attributes:
        valid: (R, P) bool.
        level: (R, P) int64, 1 in the padding.
        above: (R, P) items of the target's level or a higher one that score at least as much; 0 in the padding.
        graded: (R, P) the sum over the items that score at least as much of the smaller worth; 0 without.
        values: (R, P, 1 or K) smooth counts; 0 in the padding.
        slopes: the same of the step's slope.
    """

    def __init__(
        self, scores: Tensor, levels: Tensor, n_levels: int, most: int, tau: float, sup: Any, worth: Tensor | None
    ) -> None:
        self.tau, self.n_levels, self.sup = tau, n_levels, sup
        self.factors: dict[tuple[bool, int], tuple[Tensor, Tensor]] = {}
        self.n_channels = n_levels if self.sup is None else n_levels - 1
        self._lay_out(scores, levels)
        self._find_targets(most)
        self._count(worth)
        self._sum_blocks()
        self.values, self.slopes = self._read_blocks()
        self._meet_own_block()
        if self.sup is not None:
            self._meet_edge_block()
            self._add_line()
        self.values *= self.valid[..., None]
        del self.counted, self.from_below, self.from_above, self.totals  # the gradient does not need them

    def _lay_out(self, scores: Tensor, levels: Tensor) -> None:
        """Sort the rows; fill up the last block with places that hold no item."""
        # Whole numbers in the order of the scores, which torch sorts in two thirds of the time.
        bits = scores.contiguous().view(torch.int32)
        self.order = (bits ^ (bits >> 31 & 0x7FFFFFFF)).argsort(1)
        values = scores.gather(1, self.order).clamp_(-LARGEST, LARGEST)
        n_more = -scores.shape[1] % BLOCK
        self.x = torch.cat([values, values[:, -1:].expand(-1, n_more)], 1)
        self.kind = F.pad(levels.gather(1, self.order), (0, n_more), value=-1)
        self.blocks = self.x.unflatten(1, (-1, BLOCK))  # (R, N, C)
        self.lowest = torch.cat([self.blocks[:, :, 0], self.x[:, -1:]], 1)  # (R, N + 1) references, one past the end
        self.n_rows, self.n_slots = self.lowest.shape
        self.row = torch.arange(self.n_rows, device=values.device)[:, None]
        self.kinds = self.kind.view(torch.uint8).view_as(self.blocks)  # not in the list: 255
        kinds = self.kinds[:, :, None]
        channels = torch.arange(self.n_channels, dtype=torch.uint8, device=kinds.device)[:, None]
        counted = kinds == channels if self.sup is None else kinds <= channels
        self.counted = counted.to(values.dtype)  # (R, N, K, C)
        self.index = kinds.clamp(max=self.n_levels).long()  # of a level in a table with one entry more

    def _find_targets(self, most: int) -> None:
        """Each target's place, block and level; the block of its edge, past the end where there is none."""
        self.place, self.valid = packed(self.kind > 0, most)
        self.own = self.x.gather(1, self.place)
        self.level = self.kind.gather(1, self.place).long().where(self.valid, 1)
        self.block = self.place // BLOCK
        if self.sup is not None:
            # (R, N, K, C) scores of the items that a channel counts, -inf for the others.
            self.listed = self.blocks[:, :, None].where(self.counted > 0, -torch.inf)
            self.edge = _last_within(self.own, self.sup.edge)
            self.edge_block = torch.searchsorted(self.x, self.edge, right=True) // BLOCK
            self.past_edge = (self.edge_block + 1).clamp_(max=self.n_slots - 1)  # slots whose items are all on the line

    def _count(self, worth: Tensor | None) -> None:
        """The exact counts."""
        self.at_least = self._counts_from(torch.searchsorted(self.x, self.own)) * self.valid[..., None]
        levels = torch.arange(self.n_levels, device=self.x.device)
        self.above = (self.at_least * (levels >= self.level[..., None])).sum(2)
        self.graded = torch.zeros_like(self.above)
        if worth is not None:
            smaller = torch.minimum(worth.gather(1, self.level)[..., None], worth[:, None])
            self.graded = (self.at_least * smaller).sum(2)

    def _counts_from(self, places: Tensor) -> Tensor:
        """(R, P, M) items of each level from (R, P) places of the sorted row on; several counters share an integer."""
        bits = self.x.shape[1].bit_length()
        n_shared = 63 // bits
        parts = []
        for start in range(0, self.n_levels, n_shared):
            n_here = min(n_shared, self.n_levels - start)
            levels = self.index.view_as(self.kind) - start
            each = (1 << (levels * bits).clamp(0, 62)).where((levels >= 0) & (levels < n_here), 0)
            upto = F.pad(each.cumsum(1), (1, 0))
            shifts = bits * torch.arange(n_here, device=places.device)
            parts.append((upto[:, -1:] - upto.gather(1, places))[..., None] >> shifts & (1 << bits) - 1)
        return torch.cat(parts, 2).to(self.x.dtype)

    def _rows(self, slots: Tensor, n_slots: int) -> Tensor:
        """Where the entries of a target's own channel are, at (R, P) slots of a table (R, n_slots, K, ...)."""
        return ((slots + self.row * n_slots) * self.n_channels + self.level - 1).flatten()

    def _read(self, table: Tensor, slots: Tensor) -> Tensor:
        """(R, P, ...) what targets read of their own channel at (R, P) slots of (R, N or N + 1, K, ...)."""
        found = table.flatten(0, 2).index_select(0, self._rows(slots, table.shape[1]))
        return found.view(*slots.shape, *table.shape[3:])

    def _powers(self, gaps: Tensor, n_degrees: int = DEGREE) -> Tensor:
        """(..., n_degrees) ``exp(-d gap / tau)``."""
        degrees = torch.arange(1, n_degrees + 1, device=gaps.device)
        return (gaps[..., None] * (degrees / -self.tau)).exp_()

    def _sum_blocks(self) -> None:
        """The moments of each block's items, the number and the sum of scores; carried to the other blocks."""
        before = self.blocks - self.lowest[:, :-1, None]
        gaps = torch.stack([self.lowest[:, 1:, None] - self.blocks, before], 2).unsqueeze(3)  # to the next one, to the own
        degrees = torch.arange(1, DEGREE + 1, device=gaps.device) / -self.tau
        self.terms = (gaps * degrees[:, None]).exp_().view(-1, 2 * DEGREE, BLOCK)  # (R N, 16, C)
        counted = self.counted.flatten(0, 1)
        sums = torch.bmm(counted, self.terms.mT).unflatten(0, self.blocks.shape[:2])
        self.from_below = self._carry(F.pad(sums[..., :DEGREE], (0, 0, 0, 0, 1, 0)), self.lowest, upwards=True)
        self.from_above = self._carry(F.pad(sums[..., DEGREE:], (0, 0, 0, 0, 0, 1)), self.lowest, upwards=False)
        number = self.counted.sum(3, dtype=torch.float64)
        over = torch.bmm(counted, before.flatten(0, 1)[..., None]).view_as(number)
        totals = torch.stack([number, over + number * self.lowest[:, :-1, None]], 3)
        self.totals = F.pad(totals, (0, 0, 0, 0, 1, 0)).cumsum(1)  # (R, N + 1, K, 2) of the blocks before

    def _carry(self, state: Tensor, places: Tensor, upwards: bool) -> Tensor:
        """(R, N, K, 8) sums over all the slots up to each of the (R, N) places, or down to it, from what each slot adds.

        Two neighbours become one, down to a single slot; then each gets what is before it: 2 N steps, not N log N. The
        result is where ``state`` was.
        """
        n_slots = state.shape[1]
        if n_slots == 1:
            return state
        start = 1 if upwards else n_slots % 2
        first, second = state[:, 1 - start :: 2], state[:, start::2]  # the first slot of all is a first one
        first_places, second_places = places[:, 1 - start :: 2], places[:, start::2]
        n_later, n_pairs = first.shape[1] - 1, second.shape[1]
        # Neighbours: the firsts that seconds follow, the firsts that follow a second, the seconds that these follow.
        paired, later, before = (
            (slice(n_pairs), slice(1, None), slice(n_later))
            if upwards
            else (slice(-n_pairs, None), slice(n_later), slice(n_pairs - n_later, None))
        )
        key = (upwards, n_slots)
        if key not in self.factors:  # the gradient needs them again
            gaps = second_places - first_places[:, paired], first_places[:, later] - second_places[:, before]
            # Repeated for each channel: a long run of numbers is worked on several times as fast.
            within, between = (self._powers(gap.abs_())[:, :, None].repeat(1, 1, self.n_channels, 1) for gap in gaps)
            self.factors[key] = within, between
        within, between = self.factors[key]
        pairs = self._carry(torch.addcmul(second, within, first[:, paired]), second_places, upwards)
        second.copy_(pairs)
        first[:, later].addcmul_(between, pairs[:, before])
        return state

    def _read_blocks(self) -> tuple[Tensor, Tensor]:
        """(R, P, 1 or K) values and slopes: the items of blocks below, and of those above before the edge's."""
        coefficients = _coefficients(self.x)
        states = torch.cat([self.from_above[:, 1:], self.from_below[:, :-1]], 3)  # (R, N, K, 16)
        # Of every place, value and slope of each channel: the factors to a target are the terms of its place.
        mixed = (states[:, :, None] * coefficients[:, None]).flatten(2, 3).flatten(0, 1)
        found = torch.bmm(mixed, self.terms).view(self.n_rows, self.n_slots - 1, 2, self.n_channels, BLOCK)
        if self.sup is None:
            found = found.permute(0, 1, 4, 2, 3).reshape(self.n_rows, -1, 2 * self.n_channels)
            found = found.gather(1, self.place[..., None].expand(-1, -1, 2 * self.n_channels)).unflatten(2, (2, -1))
            value, slope = found.unbind(2)
            last, after = self.totals[:, -1:, :, 0], self.block[..., None] + 1
            number = last - self.totals[..., 0].gather(1, after.expand(-1, -1, self.n_channels))
        else:
            places = (self.block + self.row * (self.n_slots - 1)) * 2 * self.n_channels + self.level - 1
            places = places * BLOCK + self.place % BLOCK
            value, slope = (found.take(places + part * self.n_channels * BLOCK)[..., None] for part in (0, 1))
            # Without what the blocks past the edge would add; over so long a gap few powers count.
            n_degrees = min(DEGREE, math.ceil(NO_POWER * self.tau / self.sup.edge))
            self.to_edge = self._powers(self.lowest.gather(1, self.past_edge) - self.own, n_degrees)
            states = self._read(self.from_above[..., :n_degrees], self.past_edge)
            edge = (states * self.to_edge) @ coefficients[:, :n_degrees].T
            value, slope = value - edge[..., :1], slope - edge[..., 1:]
            number = self._read(self.totals[..., :1], self.past_edge) - self._read(self.totals[..., :1], self.block + 1)
        return value + number.to(value.dtype), slope.div_(self.tau)

    def _add_line(self) -> None:
        """Add the blocks beyond the edge's and the jump."""
        step = self.sup
        last = self.totals[:, -1:].expand_as(self.totals)
        beyond = self._read(last - self.totals, self.past_edge)
        number, line = beyond[..., :1], beyond[..., 1:] - beyond[..., :1] * (self.own.double() + step.edge)[..., None]
        self.values += (step.top * number + step.rho * line).to(self.values.dtype)
        self.slopes += (step.rho * number).to(self.values.dtype)
        if step.jump:
            above = self._counts_from(torch.searchsorted(self.x, self.own, right=True)) if step.strict else self.at_least
            levels = torch.arange(self.n_levels, device=self.x.device)
            self.values += step.jump * (above * (levels < self.level[..., None])).sum(2, keepdim=True)

    def _meet_own_block(self) -> None:
        """Add the pairs of each target with the items of its own block."""
        self.met = [self._block_rows(self.block)]
        if self.sup is not None:
            smooth, slopes = _sigmoid_and_slope(
                self._read(self.listed, self.block).sub_(self.own[..., None]).div_(self.tau)
            )
            self.values[..., 0] += smooth.sum(2)
        else:
            scores, kinds = (
                table.flatten(0, 1).index_select(0, self.met[0]).view(*self.block.shape, BLOCK)
                for table in (self.blocks, self.kinds)
            )
            smooth, slopes = _sigmoid_and_slope(scores.sub_(self.own[..., None]).div_(self.tau))
            # With itself a target has no slope, not one that rounding takes out.
            slopes.scatter_(2, (self.place % BLOCK)[..., None], 0.0)
            for channel in range(self.n_channels):
                self.values[..., channel] += (smooth * (kinds == channel)).sum(2)
        self.met_slopes = [slopes]  # in units of 1 / tau

    def _block_rows(self, blocks: Tensor) -> Tensor:
        """Where (R, P) blocks are among those of all rows."""
        return (blocks + self.row * (self.n_slots - 1)).flatten()

    def _meet_edge_block(self) -> None:
        """Beyond the edge, add the line for the items of its block, and take their sigmoids back."""
        step, blocks = self.sup, self.edge_block.clamp(max=self.n_slots - 2)  # none of the last block is beyond
        scores = self._read(self.listed, blocks)
        over = (scores - self.edge[..., None]).clamp_(min=0)
        outside = over.sign()
        smooth = scores.sub_(self.own[..., None]).div_(self.tau).sigmoid_()
        # A difference, exact enough beside the slope of the line.
        slopes = smooth.square().sub_(smooth).add_(step.rho * self.tau).mul_(outside)
        self.values[..., 0] += over.mul_(step.rho).addcmul_(smooth.neg_().add_(step.top), outside).sum(2)
        self.met.append(self._block_rows(blocks))
        self.met_slopes.append(slopes)

    def fill_gradient(self, weights: Tensor, gradient: Tensor) -> None:
        """Fill (R, G) with the gradient in the scores of what has ``weights`` for one in ``values``; can be had once."""
        weights = weights * self.valid[..., None]
        ascending = self._from_blocks(weights)
        given = self._from_pairs(weights, ascending) + (weights * self.slopes).sum(2)
        places = self.place + self.row * self.x.shape[1]
        ascending.view(-1).index_add_(0, places.flatten(), -given.flatten())
        ascending *= ascending.abs() > NEGLIGIBLE
        ascending = ascending.view_as(self.x)[:, : self.order.shape[1]]
        gradient.scatter_(1, self.order, ascending)

    def _from_pairs(self, weights: Tensor, ascending: Tensor) -> Tensor:
        """Add what the pairs met one by one give to the items to (R, N, C); returns (R, P), what the targets give."""
        if self.sup is None:
            levels = self.index.view(-1, BLOCK).index_select(0, self.met[0]).view_as(self.met_slopes[0])
            weights = F.pad(weights, (0, 1)).gather(2, levels)
        weights = weights / self.tau
        given = torch.zeros_like(self.own)
        for met, slopes in zip(self.met, self.met_slopes, strict=True):
            pulls = slopes.mul_(weights)
            given += pulls.sum(2)
            ascending.view(-1, BLOCK).index_add_(0, met, pulls.flatten(0, 1))
        return given

    def _from_blocks(self, weights: Tensor) -> Tensor:
        """(R, N, C) what the targets of other blocks give to the items."""
        n_blocks, sup = self.n_slots - 1, self.sup
        sources = self.x.new_zeros(self.n_rows * n_blocks, self.n_channels, BLOCK)  # the weight at each target's place
        channels = torch.arange(self.n_channels, device=weights.device) if sup is None else self.level[..., None] - 1
        places = ((self.block + self.row * n_blocks)[..., None] * self.n_channels + channels) * BLOCK
        sources.view(-1).index_add_(0, (places + (self.place % BLOCK)[..., None]).flatten(), weights.flatten())
        sums = torch.bmm(sources, self.terms.mT).view(self.n_rows, n_blocks, self.n_channels, 2 * DEGREE)
        up, down = F.pad(sums[..., :DEGREE], (0, 0, 0, 0, 1, 0)), F.pad(sums[..., DEGREE:], (0, 0, 0, 0, 0, 1))
        tables = [up, down]
        if sup is not None:
            past = self._rows(self.past_edge, self.n_slots)
            gone = (-weights * self.to_edge).flatten(0, 1)
            up.flatten(0, 2)[:, : gone.shape[1]].index_add_(0, past, gone)
            line = self.x.new_zeros(self.n_rows, self.n_slots, self.n_channels, 1)
            line.flatten(0, 2).index_add_(0, past, weights.flatten(0, 1))
            tables.append(line)
            # An item of level m is counted by the targets of all levels above.
            for channel in reversed(range(self.n_channels - 1)):
                for table in tables:
                    table[:, :, channel] += table[:, :, channel + 1]
        up, down = self._carry(up, self.lowest, upwards=True), self._carry(down, self.lowest, upwards=False)
        slopes = _coefficients(self.x)[1] / self.tau
        # To an item the factors are its own terms, exchanged: targets below reach it from its own block's lowest score on.
        state = (torch.cat([down[:, 1:], up[:, :-1]], 3) * slopes).flatten(0, 1)
        found = torch.bmm(state, self.terms)
        if sup is not None:
            found += (line.cumsum(1)[:, :-1] * sup.rho).flatten(0, 1)
        items = self.index.view(-1, 1, BLOCK).clamp(max=self.n_channels - 1)
        return found.gather(1, items).view_as(self.blocks).masked_fill_(self.kinds >= self.n_channels, 0.0)
