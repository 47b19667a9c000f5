"""Smooth counts on any device without the cubic cost, in whole-tensor operations.

What :mod:`~sightline.kernels.sorted_rows` walks item by item is done here block by block. Each row is sorted and cut into
N blocks of C items. A target (an item whose rank is wanted) meets the items of its own block one by one, and those of the
other blocks through the sums of :mod:`~sightline.kernels.lane_sums`: with ``z = exp(-gap / tau)`` the sigmoid of a negative
gap and its slope are polynomials in z, so a block is known by its moments, the sums of ``z, z**2 ... z**8`` to a place of
reference, here the lowest score of each block. Moments move from one reference to the next by a factor.

SupRank's step is a line beyond ``delta``. The edge, ``delta`` above a target, lies in some block: its items below the edge
are met one by one too, the blocks beyond are left out of the moments, and what is beyond the edge is counted and summed.

The gradient is the same with targets and items exchanged: factor by factor the transposed sums, so that a row's gradient
sums to 0 as far as rounding allows. Every exponent is at most 0. The matrix products are of the precision that torch is set
to, as those of the scores are.

Letters beside those of the library: R rows, P targets of a row, N blocks, C items of a block, K channels. A target reads
the channel of its level (SupRank's step: items of lower levels) or all K of them (the sigmoid: items of each level).
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.kernels.lane_sums import DEGREE, SLOPE, VALUE

BLOCK = 16  # items
N_TERMS = 2 * DEGREE + 2  # numbers that go into the sums of a block, of each item
CHUNK_ELEMENTS = 3 << 17  # items of the rows that are worked on at once: 170 MB where targets and levels are few
LARGEST = 1e30  # scores beyond count as this: their differences, and sums of these, stay finite
NEGLIGIBLE = 1e-30  # a gradient below becomes 0: with denormal numbers a matrix product takes ten times as long


def packed(chosen: Tensor) -> tuple[Tensor, Tensor]:
    """(Q, P) int64 columns of the True places of (Q, G), packed to the left, 0 in the padding; (Q, P) bool, False there."""
    counts = chosen.sum(1)
    most = int(counts.max()) if chosen.numel() else 0
    index = torch.zeros(len(chosen), most, dtype=torch.int64, device=chosen.device)
    valid = torch.arange(most, device=chosen.device) < counts[:, None]
    index[valid] = chosen.nonzero()[:, 1]  # both in row order
    return index, valid


def rows_at_once(n_items: int, most_targets: int, n_levels: int) -> int:
    """Rows that are worked on together."""
    widest = max(n_items, most_targets * BLOCK // 4, (n_items + most_targets) * n_levels // 8)
    return max(1, CHUNK_ELEMENTS // widest)


def block_room(scores: Tensor, n_rows: int) -> Tensor:
    """Memory for the terms of so many rows, for all chunks: to write to new memory first costs as much as the work."""
    # Some more places between the terms: at distances of a power of two they would drive each other from the cache.
    n_items = scores.shape[1]
    return scores.new_empty(N_TERMS, min(n_rows, len(scores)) * (n_items + -n_items % BLOCK) + 5 * BLOCK)


class BlockCounts:
    """Some rows' targets, in the order of their scores, with exact and smooth counts of the items above them.

    Args:
        scores: (R, G).
        levels: (R, G) int8.
        n_levels: M.
        tau: width of the sigmoid.
        sup: what makes SupRank's step of a sigmoid: ``jump`` at 0 (``strict``: above 0), and beyond ``edge`` a line that
            starts at ``top`` with the slope ``rho``; None for the sigmoid alone.
        worth: (R, M) the relevance of each level, or None.
        room: of :func:`block_room`.

    Attributes:
        valid: (R, P) bool.
        level: (R, P) int64, 1 in the padding.
        above: (R, P) items of the target's level or a higher one that score at least as much; 0 in the padding.
        graded: (R, P) the sum over the items that score at least as much of the smaller worth; 0 without.
        values: (R, P, 1 or K) smooth counts; 0 in the padding.
        slopes: the same of the step's slope.
    """

    def __init__(
        self, scores: Tensor, levels: Tensor, n_levels: int, tau: float, sup: Any, worth: Tensor | None, room: Tensor
    ) -> None:
        self.tau, self.n_levels, self.sup = tau, n_levels, sup
        self.factors: dict[tuple[bool, int], tuple[Tensor, Tensor]] = {}
        self.n_channels = n_levels if self.sup is None else n_levels - 1
        self._lay_out(scores, levels)
        self._find_targets()
        self._count(worth)
        self._sum_blocks(room)
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

    def _find_targets(self) -> None:
        """Each target's place, block and level; the block of its edge, past the end where there is none."""
        self.place, self.valid = packed(self.kind > 0)
        self.own = self.x.gather(1, self.place)
        self.level = self.kind.gather(1, self.place).long().where(self.valid, 1)
        self.block = self.place // BLOCK
        if self.sup is None:
            self.edge_block = torch.full_like(self.place, self.n_slots - 1)
        else:  # The last float32 not beyond: taken in float64, as the edge rounded puts items on the wrong side.
            edge = self.own.double() + self.sup.edge
            near = edge.to(self.own.dtype)
            self.edge = torch.where(near > edge, near.nextafter(torch.full_like(near, -torch.inf)), near)
            self.edge_block = torch.searchsorted(self.x, self.edge, right=True) // BLOCK
        self.beyond = self.edge_block > self.block  # if not, the own block holds all that is below the edge

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
            levels = range(start, min(start + n_shared, self.n_levels))
            units = torch.zeros(self.n_levels + 1, dtype=torch.int64, device=places.device)
            shifts = bits * torch.arange(len(levels), device=places.device)
            units[levels.start : levels.stop] = 1 << shifts
            each = units.index_select(0, self.index.flatten()).view_as(self.kind)
            upto = F.pad(each.cumsum(1), (1, 0))
            parts.append((upto[:, -1:] - upto.gather(1, places))[..., None] >> shifts & (1 << bits) - 1)
        return torch.cat(parts, 2).to(self.x.dtype)

    def _rows(self, slots: Tensor) -> Tensor:
        """Where the entries that targets read at (R, P) slots are in a table of (R, N + 1, K, ...)."""
        if self.sup is None:
            return (slots + self.row * self.n_slots).flatten()
        return (slots * self.n_channels + (self.row * (self.n_slots * self.n_channels) + self.level - 1)).flatten()

    def _read(self, table: Tensor, slots: Tensor) -> Tensor:
        """(R, P, 1 or K, W) what targets read at (R, P) slots of (R, N + 1, K, W)."""
        table = table.flatten(0, 1 if self.sup is None else 2)
        return table.index_select(0, self._rows(slots)).view(*slots.shape, -1, table.shape[-1])

    def _put(self, table: Tensor, slots: Tensor, values: Tensor) -> None:
        """Add (R, P, 1 or K, W) to the entries that targets read at (R, P) slots of (R, N + 1, K, W)."""
        table = table.flatten(0, 1).flatten(1) if self.sup is None else table.flatten(0, 2)
        table.index_add_(0, self._rows(slots), values.flatten(0, 1).flatten(1))

    def _powers(self, gaps: Tensor) -> Tensor:
        """(..., 8) ``exp(-d gap / tau)``."""
        degrees = torch.arange(1, DEGREE + 1, device=gaps.device)
        return (gaps[..., None] * (degrees / -self.tau)).exp_()

    def _sum_blocks(self, room: Tensor) -> None:
        """The moments of each block's items, the number and the sum of scores; carried to the other blocks."""
        terms = room[:, : self.x.numel()].unflatten(1, self.blocks.shape)
        torch.sub(self.lowest[:, 1:, None], self.blocks, out=terms[0])
        torch.sub(self.blocks, self.lowest[:, :-1, None], out=terms[DEGREE])
        terms[-2], terms[-1] = 1, terms[DEGREE]
        for start in (0, DEGREE):
            terms[start].div_(-self.tau).exp_()
            for d in range(start + 1, start + DEGREE):
                torch.mul(terms[start], terms[d - 1], out=terms[d])
        self.terms = terms.flatten(1, 2).transpose(0, 1)  # (R N, 18, C)
        sums = torch.bmm(self.counted.flatten(0, 1), self.terms.transpose(1, 2)).unflatten(0, self.blocks.shape[:2])
        self.from_below = self._carry(F.pad(sums[..., :DEGREE], (0, 0, 0, 0, 1, 0)), self.lowest, upwards=True)
        self.from_above = self._carry(F.pad(sums[..., DEGREE:-2], (0, 0, 0, 0, 0, 1)), self.lowest, upwards=False)
        number = sums[..., -2].double()
        totals = torch.stack([number, sums[..., -1] + number * self.lowest[:, :-1, None]], 3)
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
        after, never = self.block + 1, torch.inf
        gap_after = (self.lowest.gather(1, after) - self.own).where(self.beyond, never)
        self.reads = [self._powers(self.own - self.lowest.gather(1, self.block)), self._powers(gap_after)]
        below = self._read(self.from_below, self.block) * self.reads[0][:, :, None]
        above = self._read(self.from_above, after) * self.reads[1][:, :, None]
        if self.sup is not None:
            gap_edge = (self.lowest.gather(1, self.edge_block) - self.own).where(self.beyond, never)
            self.reads.append(self._powers(gap_edge))
            above.addcmul_(self._read(self.from_above, self.edge_block), self.reads[2][:, :, None], value=-1)
        value, slope = self.x.new_tensor(VALUE), self.x.new_tensor(SLOPE) / self.tau
        found = below @ torch.stack([value, slope], 1) + above @ torch.stack([-value, slope], 1)
        number = (self._read(self.totals, self.edge_block) - self._read(self.totals, after))[..., 0].to(found.dtype)
        return found[..., 0] + number * self.beyond[..., None], found[..., 1]

    def _add_line(self) -> None:
        """Add the blocks beyond the edge's and the jump."""
        step = self.sup
        last = self.totals[:, -1:].expand_as(self.totals)
        beyond = self._read(last - self.totals, (self.edge_block + 1).clamp_(max=self.n_slots - 1))
        number, line = beyond[..., 0], beyond[..., 1] - beyond[..., 0] * (self.own.double() + step.edge)[..., None]
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
            smooth, slopes = _sigmoid_and_slope(self._list(self.block).sub_(self.own[..., None]).div_(self.tau))
            self.values[..., 0] += smooth.sum(2)
            self.slopes[..., 0] += slopes.sum(2) / self.tau
        else:
            scores = self.blocks.flatten(0, 1).index_select(0, self.met[0]).view(*self.block.shape, BLOCK)
            smooth, slopes = _sigmoid_and_slope(scores.sub_(self.own[..., None]).div_(self.tau))
            # With itself a target has no slope, not one that rounding takes out.
            slopes.scatter_(2, (self.place % BLOCK)[..., None], 0.0)
            for channel in range(self.n_channels):
                counted = self.counted[:, :, channel].flatten(0, 1).index_select(0, self.met[0]).view_as(smooth)
                self.values[..., channel] += (smooth * counted).sum(2)
                self.slopes[..., channel] += (slopes * counted).sum(2) / self.tau
        self.met_slopes = [slopes]  # in units of 1 / tau

    def _block_rows(self, blocks: Tensor) -> Tensor:
        """Where (R, P) blocks are among those of all rows."""
        return (blocks + self.row * (self.n_slots - 1)).flatten()

    def _list(self, blocks: Tensor) -> Tensor:
        """(R, P, C) scores of the items that each target counts in one of its row's blocks, -inf for the others."""
        rows = self._block_rows(blocks)
        scores, kinds = (table.flatten(0, 1).index_select(0, rows) for table in (self.blocks, self.kinds))
        others = kinds >= self.level.to(kinds.dtype).view(-1, 1)
        found: Tensor = scores.masked_fill_(others, -torch.inf)
        return found.view(*blocks.shape, BLOCK)

    def _meet_edge_block(self) -> None:
        """Add the pairs of each target with the items of its edge's block; where that is its own, what the line changes."""
        step, there = self.sup, self.edge_block < self.n_slots - 1
        blocks = self.edge_block.clamp(max=self.n_slots - 2)
        own, edge = (table.where(there, torch.inf)[..., None] for table in (self.own, self.edge))  # all gaps are -inf
        scores = self._list(blocks)
        smooth, slopes = _sigmoid_and_slope((scores - own).div_(self.tau))
        over = scores.sub_(edge).clamp_(min=0)
        values = step.rho * over.sum(2)
        outside = over.sign_()
        values += step.top * outside.sum(2)
        # The own block's items have been met: beyond the edge the sigmoid is taken back.
        inside = self.beyond[..., None].to(outside.dtype) - outside
        self.values[..., 0] += values + smooth.mul_(inside).sum(2)
        slopes.mul_(inside).add_(outside, alpha=step.rho * self.tau)
        self.slopes[..., 0] += slopes.sum(2) / self.tau
        self.met.append(self._block_rows(blocks))
        self.met_slopes.append(slopes)

    def fill_gradient(self, weights: Tensor, gradient: Tensor) -> None:
        """Fill (R, G) with the gradient in the scores of what has ``weights`` for one in ``values``; can be had once."""
        weights = weights * self.valid[..., None]
        ascending = self._from_pairs(weights) + self._from_blocks(weights)
        places = self.place + self.row * self.x.shape[1]
        ascending.view(-1).index_add_(0, places.flatten(), -(weights * self.slopes).sum(2).flatten())
        ascending *= ascending.abs() > NEGLIGIBLE
        ascending = ascending.view_as(self.x)[:, : self.order.shape[1]]
        gradient.scatter_(1, self.order, ascending)

    def _from_pairs(self, weights: Tensor) -> Tensor:
        """(R, N, C) what the pairs met one by one give to the items."""
        table = torch.zeros_like(self.blocks).flatten(0, 1)
        if self.sup is None:
            levels = self.index.view(-1, BLOCK).index_select(0, self.met[0]).view_as(self.met_slopes[0])
            weights = F.pad(weights, (0, 1)).gather(2, levels)
        weights = weights / self.tau
        for met, slopes in zip(self.met, self.met_slopes, strict=True):
            table.index_add_(0, met, slopes.mul_(weights).flatten(0, 1))
        return table.view_as(self.blocks)

    def _from_blocks(self, weights: Tensor) -> Tensor:
        """(R, N, C) what the targets of other blocks give to the items."""
        down, up = (self.x.new_zeros(self.n_rows, self.n_slots, self.n_channels, DEGREE) for _ in range(2))
        line = self.x.new_zeros(self.n_rows, self.n_slots, self.n_channels, 1)
        sources = weights[..., None]
        self._put(down, self.block, sources * self.reads[0][:, :, None])
        self._put(up, self.block + 1, sources * self.reads[1][:, :, None])
        if self.sup is not None:
            self._put(up, self.edge_block, -sources * self.reads[2][:, :, None])
            self._put(line, (self.edge_block + 1).clamp_(max=self.n_slots - 1), sources)
            # An item of level m is counted by the targets of all levels above.
            for channel in reversed(range(self.n_channels - 1)):
                for table in (down, up, line):
                    table[:, :, channel] += table[:, :, channel + 1]
        slope = self.x.new_tensor(SLOPE) / self.tau
        down, up = self._carry(down, self.lowest, upwards=False), self._carry(up, self.lowest, upwards=True)
        states = [down[:, 1:] * slope, up[:, :-1] * slope]
        if self.sup is not None:
            states.append(line.cumsum(1)[:, :-1] * self.sup.rho)
        state = torch.cat(states, 3).flatten(0, 1)
        found = torch.bmm(state, self.terms[:, : state.shape[2]])
        channels = self.index.view(-1, 1, BLOCK).clamp(max=self.n_channels - 1)
        return found.gather(1, channels).view_as(self.blocks).masked_fill_(self.kinds >= self.n_channels, 0.0)


def _sigmoid_and_slope(gaps: Tensor) -> tuple[Tensor, Tensor]:
    """Sigmoid of gaps in units of tau, and its slope, which does not come from a difference; ``gaps`` is used up."""
    smooth = gaps.sigmoid()
    return smooth, gaps.neg_().sigmoid_().mul_(smooth)
