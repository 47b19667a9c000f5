"""Smooth counts on a CPU without the cubic cost, compiled.

For each target k of a row and each level m: how many items of level m score at least as much (exact), the sum of
``step(score j - score k)`` over them and the sum of its slopes. Two ways, chosen row by row:

* few targets: every pair is evaluated, in float32, a vector at a time;
* many: one sort of the row, then sums that move along it. With ``z = exp(-gap / tau)`` the sigmoid of a negative gap is
  ``z / (1 + z)`` and its slope ``z / (1 + z)**2``, both polynomials in z without constant term, to 1.6e-6 and 1.4e-5 of
  their value. So all that is needed are the sums of ``z, z**2 ... z**8`` over the items below (and above) a target, and
  moving to the next target multiplies them by powers of one number. What lies beyond ``delta`` is taken out of these
  sums and counted as a line. Cost: one sort and O(levels) an item, whatever the number of targets, the width of the
  sigmoid and the range of the scores.

The gradient needs the same sums with targets and items exchanged.
"""

import numpy as np
from numba import njit, prange

from sightline.ranking.pair_counts import FAST, counts_by_pairs, group_by_level, slopes_of_pairs
from sightline.ranking.vector8 import add8, dot8, scale8, take_powers8

DEGREE = 8
# z / (1 + z) = z * (VALUE[0] + VALUE[1] z + ...), the least relative error on [0, 1] among those exact at z = 1: a step
# upwards, however small, counts at least one half.
VALUE = np.array(
    [
        0.9999984140683411, -0.9997973572597808, 0.9956156969334018, -0.9624837095595331,
        0.8335726254833036, -0.5612041616977891, 0.24240645814467207, -0.04810796611261554,
    ],
    np.float32,
)  # fmt: skip
SLOPE = np.array(  # the same for z / (1 + z)**2
    [
        0.9999861943492291, -1.998376210771728, 2.966697774589413, -3.724211551188805,
        3.7934913999306046, -2.7948206211194933, 1.263177505245626, -0.25594449103484557,
    ],
    np.float32,
)  # fmt: skip
TINY = np.float32(1e-30)  # what is smaller becomes 0: with denormal numbers a matrix product takes ten times as long
FEW_TARGETS = 10  # up to so many, pairs are cheaper than a sort: measured by benchmarks/losses.py


@njit(cache=True, error_model="numpy")
def _sort_row(scores, levels, keys, spare, counts):
    """Ascending order of the items in the list: keys hold the order-preserving bits of the score above its column."""
    bits = scores.view(np.uint32)
    n = 0
    for j in range(len(scores)):
        if levels[j] >= 0:
            b = bits[j]
            if b == np.uint32(0x80000000):  # -0.0 is 0.0
                b = np.uint32(0)
            b = ~b if b & np.uint32(0x80000000) else b | np.uint32(0x80000000)
            keys[n] = (np.uint64(b) << np.uint64(32)) | np.uint64(j)
            n += 1
    source, target = keys, spare
    for digit in range(3):
        shift = np.uint64(32 + 11 * digit)
        counts[:] = 0
        for i in range(n):
            counts[(source[i] >> shift) & np.uint64(2047)] += 1
        total = 0
        for d in range(2048):
            c = counts[d]
            counts[d] = total
            total += c
        for i in range(n):
            d = (source[i] >> shift) & np.uint64(2047)
            target[counts[d]] = source[i]
            counts[d] += 1
        source, target = target, source
    return n, source


@njit(cache=True, error_model="numpy", fastmath=FAST)
def _decays(x, n, tau, whole, parts, out, powers):
    """powers[8 i + d] = exp(-(x[i] - x[i - 1]) / tau)**(d + 1) for i = 1..n-1; the exponential in float64."""
    bits = out.view(np.int64)
    for i in range(1, n):
        y = (np.float64(x[i - 1]) - np.float64(x[i])) / tau * 1.4426950408889634
        y = max(y, -1020.0)
        k = np.floor(y + 0.5)
        whole[i] = np.int64(k) + 1023
        parts[i] = (y - k) * 0.6931471805599453
    for i in range(1, n):
        bits[i] = whole[i] << 52
    for i in range(1, n):
        f = parts[i]
        p = 1.0 / 39916800.0
        p = p * f + 1.0 / 3628800.0
        p = p * f + 1.0 / 362880.0
        p = p * f + 1.0 / 40320.0
        p = p * f + 1.0 / 5040.0
        p = p * f + 1.0 / 720.0
        p = p * f + 1.0 / 120.0
        p = p * f + 1.0 / 24.0
        p = p * f + 1.0 / 6.0
        p = p * f + 0.5
        p = p * f + 1.0
        p = p * f + 1.0
        out[i] *= p
    for i in range(1, n):
        z = np.float32(out[i])
        power = z
        for d in range(8):
            powers[8 * i + d] = power
            power *= z
            power = power if power > TINY else np.float32(0.0)


@njit(cache=True, error_model="numpy", fastmath=FAST)
def _counts_by_sort(x, level, slot, powers, n, tau, rho, delta, jump, n_levels, n_sources, row, counts, values, slopes):
    """One row in ascending order: x scores, level, slot the place of a target among the outputs (-1: no target)."""
    states = np.zeros(8 * n_sources, np.float32)
    one = np.float32(1.0)
    seen = np.zeros(n_levels)
    top = 1.0 / (1.0 + np.exp(-delta / tau)) if rho > 0 else 1.0
    # Upwards: what lies below each target.
    start = 0
    while start < n:
        stop = start + 1
        while stop < n and x[stop] == x[start]:
            stop += 1
        if start > 0:
            for m in range(n_sources):
                scale8(states, 8 * m, powers, 8 * start, TINY)
        for i in range(start, stop):
            k = slot[i]
            if k >= 0:
                for m in range(n_levels):
                    counts[row, k, m] = -seen[m]
                for m in range(n_sources):
                    values[row, k, m] = dot8(states, 8 * m, VALUE)
                    slopes[row, k, m] = dot8(states, 8 * m, SLOPE) / tau
        for i in range(start, stop):
            seen[level[i]] += 1
            if level[i] < n_sources:
                add8(states, 8 * level[i], one)
        start = stop
    # Downwards: ties and what lies above, as far as delta; beyond it a line.
    states[:] = 0.0
    tied = np.zeros(n_levels)
    above = np.zeros(n_levels)
    far = np.zeros(n_levels)
    far_sum = np.zeros(n_levels)
    edge = n - 1
    stop = n
    while stop > 0:
        start = stop - 1
        while start > 0 and x[start - 1] == x[start]:
            start -= 1
        if stop < n:
            for m in range(n_sources):
                scale8(states, 8 * m, powers, 8 * stop, TINY)
        if rho > 0:
            while x[edge] - x[start] > delta:
                m = level[edge]
                if m < n_sources:
                    far[m] += 1
                    far_sum[m] += x[edge]
                    take_powers8(states, 8 * m, one, np.exp((x[start] - x[edge]) / np.float32(tau)))
                edge -= 1
        for m in range(n_levels):
            tied[m] = 0.0
        for i in range(start, stop):
            tied[level[i]] += 1
        for i in range(start, stop):
            k = slot[i]
            if k >= 0:
                for m in range(n_levels):
                    counts[row, k, m] += seen[m]
                for m in range(n_sources):
                    near = above[m] - far[m]
                    line = rho * (far_sum[m] - far[m] * (np.float64(x[start]) + delta))
                    values[row, k, m] += (
                        0.5 * tied[m] + near - dot8(states, 8 * m, VALUE) + top * far[m] + line + jump * counts[row, k, m]
                    )
                    slopes[row, k, m] += (0.25 * tied[m] + dot8(states, 8 * m, SLOPE)) / tau + rho * far[m]
        for i in range(start, stop):
            above[level[i]] += 1
            if level[i] < n_sources:
                add8(states, 8 * level[i], one)
        stop = start


@njit(cache=True, error_model="numpy", fastmath=FAST)
def _gradient_by_sort(x, level, slot, powers, n, tau, rho, delta, n_sources, row, weights, slopes, gradient):
    """Gradient of one row in ascending order; weights (P, M) is that of the loss with respect to the values."""
    states = np.zeros(8 * n_sources, np.float32)
    tied = np.zeros(n_sources)
    far = np.zeros(n_sources)
    # Upwards: targets below an item, as far as delta; beyond it the line's slope.
    edge = 0
    start = 0
    while start < n:
        stop = start + 1
        while stop < n and x[stop] == x[start]:
            stop += 1
        if start > 0:
            for m in range(n_sources):
                scale8(states, 8 * m, powers, 8 * start, TINY)
        if rho > 0:
            while x[start] - x[edge] > delta:
                k = slot[edge]
                if k >= 0:
                    z = np.exp((x[edge] - x[start]) / np.float32(tau))
                    for m in range(n_sources):
                        far[m] += weights[row, k, m]
                        take_powers8(states, 8 * m, np.float32(weights[row, k, m]), z)
                edge += 1
        for m in range(n_sources):
            tied[m] = 0.0
        for i in range(start, stop):
            if slot[i] >= 0:
                for m in range(n_sources):
                    tied[m] += weights[row, slot[i], m]
        for i in range(start, stop):
            m = level[i]
            gradient[i] = 0.0
            if m < n_sources:
                gradient[i] = (0.25 * tied[m] + dot8(states, 8 * m, SLOPE)) / tau + rho * far[m]
        for i in range(start, stop):
            k = slot[i]
            if k >= 0:
                for m in range(n_sources):
                    gradient[i] -= weights[row, k, m] * slopes[row, k, m]
                    add8(states, 8 * m, np.float32(weights[row, k, m]))
        start = stop
    # Downwards: targets above an item.
    states[:] = 0.0
    stop = n
    while stop > 0:
        start = stop - 1
        while start > 0 and x[start - 1] == x[start]:
            start -= 1
        if stop < n:
            for m in range(n_sources):
                scale8(states, 8 * m, powers, 8 * stop, TINY)
        for i in range(start, stop):
            if level[i] < n_sources:
                gradient[i] += dot8(states, 8 * level[i], SLOPE) / tau
        for i in range(start, stop):
            k = slot[i]
            if k >= 0:
                for m in range(n_sources):
                    add8(states, 8 * m, np.float32(weights[row, k, m]))
        stop = start


@njit(cache=True, error_model="numpy", parallel=True)
def smooth_count_rows(
    scores, levels, n_levels, n_sources, tau, rho, delta, jump, n_chunks, place, own, counts, values, slopes
):
    """Fill (Q, P, M) counts, values, slopes, (Q, P) own level, and (Q, G) place: an item's among the targets, or -1."""
    n_rows, n_items = scores.shape
    for chunk in prange(n_chunks):
        x = np.empty(n_items, np.float32)
        level = np.empty(n_items, np.int64)
        slot = np.empty(n_items, np.int64)
        decay, powers = np.empty(n_items), np.empty(8 * n_items, np.float32)
        whole, parts = np.empty(n_items, np.int64), np.empty(n_items)
        keys, spare = np.empty(n_items, np.uint64), np.empty(n_items, np.uint64)
        buckets = np.empty(2048, np.int64)
        whole32, parts32 = np.empty(n_items, np.int32), np.empty(n_items, np.float32)
        e, slope = np.empty(n_items, np.float32), np.empty(n_items, np.float32)
        ends = np.empty(n_levels + 1, np.int64)
        for row in range(chunk * n_rows // n_chunks, (chunk + 1) * n_rows // n_chunks):
            n_targets = 0
            for j in range(n_items):
                place[row, j] = -1
                if levels[row, j] > 0:
                    place[row, j] = n_targets
                    own[row, n_targets] = levels[row, j]
                    n_targets += 1
            if n_targets == 0:
                continue
            if n_targets <= FEW_TARGETS:
                group_by_level(scores[row], levels[row], ends, x, keys, slot)
                for j in range(n_items):
                    k = place[row, j]
                    if k >= 0:
                        counts_by_pairs(
                            x, ends, slot[j], tau, rho, delta, jump, whole32, parts32, e, slope, n_sources,
                            row, k, counts, values, slopes,
                        )  # fmt: skip
            else:
                n, order = _sort_row(scores[row], levels[row], keys, spare, buckets)
                for i in range(n):
                    column = np.int64(order[i] & np.uint64(0xFFFFFFFF))
                    x[i] = scores[row, column]
                    level[i] = levels[row, column]
                    slot[i] = place[row, column]
                _decays(x, n, np.float64(tau), whole, parts, decay, powers)
                _counts_by_sort(
                    x, level, slot, powers, n, np.float64(tau), np.float64(rho), delta, jump,
                    n_levels, n_sources, row, counts, values, slopes,
                )  # fmt: skip


@njit(cache=True, error_model="numpy", parallel=True)
def smooth_count_gradient(scores, levels, n_levels, n_sources, tau, rho, delta, n_chunks, place, weights, slopes, gradient):
    """Fill (Q, G) gradient of a loss whose gradient with respect to the values is ``weights``, (Q, P, M)."""
    n_rows, n_items = scores.shape
    for chunk in prange(n_chunks):
        x = np.empty(n_items, np.float32)
        level = np.empty(n_items, np.int64)
        slot = np.empty(n_items, np.int64)
        decay, powers = np.empty(n_items), np.empty(8 * n_items, np.float32)
        moved = np.empty(n_items)
        whole, parts = np.empty(n_items, np.int64), np.empty(n_items)
        keys, spare = np.empty(n_items, np.uint64), np.empty(n_items, np.uint64)
        buckets = np.empty(2048, np.int64)
        whole32, parts32 = np.empty(n_items, np.int32), np.empty(n_items, np.float32)
        e, slope = np.empty(n_items, np.float32), np.empty(n_items, np.float32)
        ends = np.empty(n_levels + 1, np.int64)
        for row in range(chunk * n_rows // n_chunks, (chunk + 1) * n_rows // n_chunks):
            n_targets = 0
            for j in range(n_items):
                n_targets += place[row, j] >= 0
                gradient[row, j] = 0.0
            if n_targets == 0:
                continue
            if n_targets <= FEW_TARGETS:
                group_by_level(scores[row], levels[row], ends, x, keys, slot)
                moved[:] = 0.0
                for j in range(n_items):
                    k = place[row, j]
                    if k >= 0:
                        for m in range(n_sources):
                            w = weights[row, k, m]
                            if w != 0.0:
                                slopes_of_pairs(
                                    ends[m], ends[m + 1], slot[j], x, tau, rho, delta, whole32, parts32, e, slope
                                )
                                for i in range(ends[m], ends[m + 1]):
                                    moved[i] += w * slope[i]
                                moved[slot[j]] -= w * slopes[row, k, m]
                for i in range(ends[n_levels]):
                    gradient[row, np.int64(keys[i])] = moved[i] if abs(moved[i]) > TINY else 0.0
            else:
                n, order = _sort_row(scores[row], levels[row], keys, spare, buckets)
                for i in range(n):
                    column = np.int64(order[i] & np.uint64(0xFFFFFFFF))
                    x[i] = scores[row, column]
                    level[i] = levels[row, column]
                    slot[i] = place[row, column]
                _decays(x, n, np.float64(tau), whole, parts, decay, powers)
                _gradient_by_sort(
                    x,
                    level,
                    slot,
                    powers,
                    n,
                    np.float64(tau),
                    np.float64(rho),
                    delta,
                    n_sources,
                    row,
                    weights,
                    slopes,
                    moved,
                )
                for i in range(n):
                    gradient[row, np.int64(order[i] & np.uint64(0xFFFFFFFF))] = moved[i] if abs(moved[i]) > TINY else 0.0
