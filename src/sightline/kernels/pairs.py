"""Smooth counts of a row with few targets, compiled: every pair, a vector of items at a time, in float32."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils

from sightline.kernels.vectors import LANES, Vectors, vector_kernel

NEGLIGIBLE = np.float32(1e-30)  # a gradient below becomes 0: with denormal numbers a matrix product takes ten times as long


def _offset(v: Vectors, index: Any) -> Any:
    return v.builder.mul(index, ir.Constant(index.type, LANES))


class _Step:
    """The step without its jump, and its slope, at an item's gap to a pivot; beyond ``delta`` a line of slope ``rho``."""

    def __init__(self, v: Vectors, pivot: Any, sharpness: Any, rho: Any, delta: Any, beyond: Any, top: Any) -> None:
        self.v = v
        self.one, self.zero = v.number(1.0), v.number(0.0)
        self.scale = v.multiply(v.spread(sharpness), v.number(1.4426950408889634))
        self.pivot, self.sharp, self.rho, self.edge, self.beyond, self.top = (
            v.spread(number) for number in (pivot, sharpness, rho, delta, beyond, top)
        )

    def at(self, score: Any) -> tuple[Any, Any, Any]:
        """Whether the item is not below the pivot; the step; its slope."""
        v, builder = self.v, self.v.builder
        gap = builder.fsub(score, self.pivot)
        upwards = builder.fcmp_ordered(">=", gap, self.zero)
        e = v.exponential(v.multiply(v.where(upwards, builder.fsub(self.zero, gap), gap), self.scale))
        r = builder.fdiv(self.one, v.add(self.one, e))
        far = builder.fcmp_ordered(">=", score, self.beyond)
        line = v.multiply_add(self.rho, v.subtract(gap, self.edge), self.top)
        smooth = v.where(far, line, v.where(upwards, r, v.multiply(e, r)))
        slope = v.where(far, self.rho, v.multiply(v.multiply(v.multiply(e, r), r), self.sharp))
        return upwards, smooth, slope


def _describe_step(v: Vectors, x: Any, n_vectors: Any, pivot: Any, sharpness: Any, rho: Any, delta: Any, beyond: Any,
                   top: Any, smooth: Any, steep: Any) -> None:  # fmt: skip
    step = _Step(v, pivot, sharpness, rho, delta, beyond, top)
    with cgutils.for_range(v.builder, n_vectors) as loop:
        place = _offset(v, loop.index)
        _, value, slope = step.at(v.load(x, place))
        v.store(value, smooth, place)
        v.store(slope, steep, place)


def _describe_slope(
    v: Vectors, x: Any, n_vectors: Any, pivot: Any, sharpness: Any, rho: Any, beyond: Any, steep: Any
) -> None:
    step = _Step(v, pivot, sharpness, rho, rho, beyond, rho)
    with cgutils.for_range(v.builder, n_vectors) as loop:
        place = _offset(v, loop.index)
        v.store(step.at(v.load(x, place))[2], steep, place)


def _describe_lower(v: Vectors, x: Any, kinds: Any, n_vectors: Any, level: Any, pivot: Any, sharpness: Any, rho: Any,
                    delta: Any, beyond: Any, top: Any, sums: Any) -> None:  # fmt: skip
    """Over items of lower level: steps, slopes, how many are not below the pivot; and how many of the others are not."""
    builder = v.builder
    step, wanted = _Step(v, pivot, sharpness, rho, delta, beyond, top), v.spread(builder.trunc(level, ir.IntType(8)))
    totals = [v.variable(step.zero) for _ in range(4)]
    with cgutils.for_range(builder, n_vectors) as loop:
        place = _offset(v, loop.index)
        kind = v.load(kinds, place)
        lower, not_lower = _match(v, True, kind, wanted), builder.icmp_signed(">=", kind, wanted)
        upwards, value, slope = step.at(v.load(x, place))
        chosen = [
            v.where(lower, value, step.zero),
            v.where(lower, slope, step.zero),
            v.where(builder.and_(lower, upwards), step.one, step.zero),
            v.where(builder.and_(not_lower, upwards), step.one, step.zero),
        ]
        for total, amount in zip(totals, chosen, strict=True):
            builder.store(v.add(builder.load(total), amount), total)
    for i, total in enumerate(totals):
        place = builder.gep(sums, [ir.Constant(n_vectors.type, i)])
        builder.store(v.total(builder.load(total)), place)


def _match(v: Vectors, lower: bool, kinds: Any, level: Any) -> Any:
    """Lanes whose item counts: of lower level but in the list, or of this level."""
    builder = v.builder
    if not lower:
        return builder.icmp_signed("==", kinds, level)
    present = builder.icmp_signed(">=", kinds, ir.Constant(kinds.type, [0] * LANES))
    return builder.and_(present, builder.icmp_signed("<", kinds, level))


def _describe_sum(v: Vectors, values: Any, kinds: Any, n_vectors: Any, level: Any) -> Any:
    """Over the items of one level."""
    wanted, zero = v.spread(v.builder.trunc(level, ir.IntType(8))), v.number(0.0)
    total = v.variable(zero)
    with cgutils.for_range(v.builder, n_vectors) as loop:
        place = _offset(v, loop.index)
        match = _match(v, False, v.load(kinds, place), wanted)
        v.builder.store(v.add(v.builder.load(total), v.where(match, v.load(values, place), zero)), total)
    return v.total(v.builder.load(total))


def _describe_count(v: Vectors, x: Any, kinds: Any, n_vectors: Any, level: Any, pivot: Any, equal: Any) -> Any:
    """Items of one level that score at least as much as the pivot, or just as much; whole numbers, exact to 16 million."""
    builder = v.builder
    wanted, pivots, zero, one = v.spread(builder.trunc(level, ir.IntType(8))), v.spread(pivot), v.number(0.0), v.number(1.0)
    total = v.variable(zero)
    only_equal = v.spread(builder.trunc(equal, ir.IntType(1)))
    with cgutils.for_range(builder, n_vectors) as loop:
        place = _offset(v, loop.index)
        score = v.load(x, place)
        above = builder.fcmp_ordered(">=", score, pivots)
        not_above = builder.fcmp_ordered("<=", score, pivots)
        chosen = builder.and_(above, builder.or_(not_above, builder.not_(only_equal)))
        match = builder.and_(_match(v, False, v.load(kinds, place), wanted), chosen)
        builder.store(v.add(builder.load(total), v.where(match, one, zero)), total)
    return v.total(builder.load(total))


def _describe_spread(lower: bool) -> Any:
    def describe(v: Vectors, slopes: Any, kinds: Any, n_vectors: Any, level: Any, weight: Any, moved: Any) -> None:
        wanted, zero, weights = v.spread(v.builder.trunc(level, ir.IntType(8))), v.number(0.0), v.spread(weight)
        with cgutils.for_range(v.builder, n_vectors) as loop:
            place = _offset(v, loop.index)
            match = _match(v, lower, v.load(kinds, place), wanted)
            amount = v.where(match, v.load(slopes, place), zero)
            v.store(v.multiply_add(amount, weights, v.load(moved, place)), moved, place)

    return vector_kernel(describe)


fill_step, fill_slope = vector_kernel(_describe_step), vector_kernel(_describe_slope)
sum_over_lower, sum_equal = vector_kernel(_describe_lower), vector_kernel(_describe_sum, returns_float=True)
count_above = vector_kernel(_describe_count, returns_float=True)
spread_lower, spread_equal = _describe_spread(lower=True), _describe_spread(lower=False)


@njit(cache=True, error_model="numpy")
def _whole_vectors(scores, levels, spare, spare_levels):
    """The row, or a copy with room for whole vectors; what is added has level -1."""
    n = len(scores)
    if n == len(spare):
        return scores, levels
    for j in range(n):
        spare[j], spare_levels[j] = scores[j], levels[j]
    for j in range(n, len(spare)):
        spare[j], spare_levels[j] = 0.0, -1
    return spare, spare_levels


@njit(cache=True, error_model="numpy")
def _first_beyond(pivot, delta):
    """The least score more than ``delta`` above the pivot, by float64: a gap rounded to float32 may lie on either side."""
    edge = np.float64(pivot) + delta
    near = np.float32(edge)
    return near if near > edge else np.nextafter(near, np.float32(np.inf))


@njit(cache=True, error_model="numpy")
def counts_by_pairs(
    scores, levels, n_targets, n_levels, sup, tau, rho, delta, jump, top, strict, spare, spare_levels, smooth, steep, worth,
    place, own, ranks, graded, values, slopes,
):  # fmt: skip
    """As :func:`~sightline.kernels.sorted_rows.smooth_count_rows`, for one row."""
    x, kinds = _whole_vectors(scores, levels, spare, spare_levels)
    n_vectors, sharpness, edge = len(x) // LANES, np.float32(1.0) / tau, np.float32(delta)
    sums = np.zeros(4, np.float32)
    t, j = 0, -1
    while t < n_targets:
        j += 1
        level = np.int64(levels[j])
        if level <= 0:
            continue
        place[t], own[t], pivot = j, level, x[j]
        beyond = _first_beyond(pivot, delta)
        if sup:
            sum_over_lower(x, kinds, n_vectors, level, pivot, sharpness, rho, edge, beyond, top, sums)
            n_jumps = sums[2]
            for m in range(level * strict):
                n_jumps -= count_above(x, kinds, n_vectors, m, pivot, True)
            values[t, 0], slopes[t, 0], ranks[t] = sums[0] + jump * n_jumps, sums[1], sums[3]
        else:
            fill_step(x, n_vectors, pivot, sharpness, rho, edge, beyond, top, smooth, steep)
            steep[j] = 0.0  # moves with itself: large, and would have to cancel
            ranks[t] = 0.0
            for m in range(n_levels):
                values[t, m] = sum_equal(smooth, kinds, n_vectors, m)
                slopes[t, m] = sum_equal(steep, kinds, n_vectors, m)
                if m >= level:
                    ranks[t] += count_above(x, kinds, n_vectors, m, pivot, False)
        for m in range(1, len(worth)):
            graded[t] += count_above(x, kinds, n_vectors, m, pivot, False) * min(worth[m], worth[level])
        t += 1


@njit(cache=True, error_model="numpy")
def gradient_by_pairs(
    scores,
    levels,
    n_targets,
    sup,
    tau,
    rho,
    delta,
    spare,
    spare_levels,
    steep,
    moved,
    place,
    own,
    weights,
    slopes,
    gradient,
):
    """As :func:`~sightline.kernels.sorted_rows.smooth_count_gradient`, for one row."""
    x, kinds = _whole_vectors(scores, levels, spare, spare_levels)
    n_vectors, sharpness = len(x) // LANES, np.float32(1.0) / tau
    moved[: len(x)] = 0.0
    for t in range(n_targets):
        pivot = x[place[t]]
        fill_slope(x, n_vectors, pivot, sharpness, rho, _first_beyond(pivot, delta), steep)
        steep[place[t]] = 0.0
        for m in range(weights.shape[1]):
            w = np.float32(weights[t, m])
            if sup:
                spread_lower(steep, kinds, n_vectors, own[t], w, moved)
            else:
                spread_equal(steep, kinds, n_vectors, m, w, moved)
            moved[place[t]] -= w * slopes[t, m]
    for j in range(len(scores)):
        gradient[j] = moved[j] if abs(moved[j]) > NEGLIGIBLE else np.float32(0.0)
