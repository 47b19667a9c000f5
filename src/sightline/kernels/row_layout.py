"""A row of scores sorted and laid out for :mod:`~sightline.kernels.lane_sums`, with what is counted exactly; compiled."""

import numpy as np
from numba import njit

from sightline.kernels.lane_sums import NOT_AN_ITEM
from sightline.kernels.vectors import LANES

LONGEST_PIECE = 32
SHORT_ROW = 1500  # items; fewer are sorted by digits of 8 bits
COLUMN_BITS = 25  # of a sort key; 7 more hold the level
MOST_ITEMS = 1 << COLUMN_BITS


@njit(cache=True, error_model="numpy")
def sort_row(scores, levels, keys, spare, buckets):
    """Ascending order; a key holds score, in bits that keep its order, level and column. Items not in the list are last."""
    bits = scores.view(np.uint32)
    n = len(scores)
    sign, all_ones = np.uint64(0x80000000), np.uint64(0xFFFFFFFF)
    for j in range(n):  # without a branch, so that it becomes vectors
        b = np.uint64(bits[j])
        b = np.uint64(0) if b == sign else b  # -0.0 is 0.0
        b ^= ((np.uint64(0) - (b >> np.uint64(31))) & all_ones) | sign
        b = all_ones if levels[j] < 0 else b
        keys[j] = (b << np.uint64(32)) | np.uint64(np.uint8(levels[j])) << np.uint64(COLUMN_BITS) | np.uint64(j)
    width = 8 if n < SHORT_ROW else 11  # bits of a digit
    n_digits, mask = -(-32 // width), np.uint64((1 << width) - 1)
    buckets[:n_digits, : 1 << width] = 0
    first, second, third, fourth = (
        np.uint64(32),
        np.uint64(32 + width),
        np.uint64(32 + 2 * width),
        np.uint64(32 + 3 * width),
    )
    for i in range(n):
        key = keys[i]
        buckets[0, (key >> first) & mask] += 1
        buckets[1, (key >> second) & mask] += 1
        buckets[2, (key >> third) & mask] += 1
        if n_digits == 4:
            buckets[3, (key >> fourth) & mask] += 1
    source, target = keys, spare
    for digit in range(n_digits):
        shift = np.uint64(32 + width * digit)
        total = 0
        for d in range(1 << width):
            c = buckets[digit, d]
            buckets[digit, d] = total
            total += c
        for i in range(n):
            key = source[i]
            d = (key >> shift) & mask
            target[buckets[digit, d]] = key
            buckets[digit, d] += 1
        source, target = target, source
    return source


@njit(cache=True, error_model="numpy", inline="always")
def _score_bits(key):
    """The bits of the score in a key."""
    b = np.uint32(key >> np.uint64(32))
    return b & np.uint32(0x7FFFFFFF) if b & np.uint32(0x80000000) else ~b


@njit(cache=True, error_model="numpy")
def _shape(n_all):
    """Lanes and steps that hold so many places; an odd number of vectors, or steps would meet in one part of the cache."""
    n_lanes = LANES * (n_all // (LANES * LONGEST_PIECE) | 1)
    return n_lanes, -(-n_all // n_lanes)


@njit(cache=True, error_model="numpy")
def room(n_items, n_targets):
    """Places and lanes that a row needs at most."""
    n_lanes, n_steps = _shape(n_items + n_targets)
    return n_lanes * (n_steps + 1), n_lanes


@njit(cache=True, error_model="numpy")
def _untie(values, jump, own, first, last, n_tied, seen, before):
    """Take the jump back from the items of lower levels that tie with the targets of a group."""
    for t in range(first, last):
        values[t, 0] -= jump * (n_tied - seen[own[t]] + before[own[t]])


@njit(cache=True, error_model="numpy")
def lay_out(
    order, scores, n, sup, rho, delta, jump, top, strict, n_levels, totals, counted, gaps, kinds, columns,
    worth, place, far_place, own, ranks, graded, values, slopes, own_scores, far,
):  # fmt: skip
    """The sorted row and the targets' second places as lanes, and for each target in order what can be counted exactly.

    ``totals[m]`` counts the items of level m and above. The smooth part remains to be added to ``values`` and ``slopes``.
    """
    bits = scores.view(np.uint32)  # in order
    for i in range(n):
        bits[i] = _score_bits(order[i])
    n_second = 0
    if sup:
        for i in range(n):
            if np.float64(scores[n - 1]) - scores[i] <= delta:  # rounded, a gap of about delta may lie on either side
                break
            n_second += (order[i] >> np.uint64(COLUMN_BITS)) & np.uint64(127) > 0
    n_lanes, n_steps = _shape(n + n_second)
    counted[:] = 0.0
    seen, before, sums = counted[0], counted[1], counted[2]  # of level m and above: so far, below this score; their sum
    step, at, lane = 0, 0, 0  # at is the place: row `step` of column `lane`
    t, v, first_tied, group, sum_so_far = 0, 0, 0, 0, 0.0
    last = last_item = scores[0]
    for i in range(n):
        x = scores[i]
        while v < n_second and v < t and np.float64(x) - own_scores[v] > delta:
            edge = max(np.float32(own_scores[v] + delta), last)
            gaps[at], kinds[at], columns[at] = edge - last, NOT_AN_ITEM, -1
            far_place[v] = at
            far[v, 0], far[v, 1] = n - i - totals[own[v]] + seen[own[v]], sum_so_far - sums[own[v]]
            last = edge
            v += 1
            step += 1
            at += n_lanes
            if step == n_steps:
                step, lane = 0, lane + 1
                at = lane
        level = np.int64((order[i] >> np.uint64(COLUMN_BITS)) & np.uint64(127))
        column = np.int32(order[i] & np.uint64(MOST_ITEMS - 1))
        gaps[at], kinds[at], columns[at] = max(x - last, np.float32(0.0)), level, column
        if x != last_item:
            if strict:
                _untie(values, jump, own, first_tied, t, i - group, seen, before)
            group, last_item, first_tied = i, x, t
        if level > 0:
            if t == first_tied:
                for m in range(1, n_levels):
                    before[m] = seen[m]
            place[t], far_place[t], own[t], own_scores[t] = at, -1, level, x
            not_below = totals[level] - before[level]
            ranks[t] = not_below
            if len(worth):
                at_least, sum_worth = totals[1] - before[1], 0.0
                for m in range(1, n_levels):
                    higher = totals[m + 1] - before[m + 1]
                    sum_worth += (at_least - higher) * min(worth[m], worth[level])
                    at_least = higher
                graded[t] = sum_worth
            if sup:
                values[t, 0] = n - i - totals[level] + seen[level] + jump * (n - group - not_below)
                slopes[t, 0] = 0.0
            else:
                rest = n - 1 - i
                for m in range(n_levels - 1, 0, -1):
                    beyond = totals[m] - totals[m + 1] - seen[m] + seen[m + 1] - (m == level)
                    values[t, m] = beyond + 0.5 * (m == level)
                    rest -= beyond
                    slopes[t, m] = 0.0
                values[t, 0] = rest
                slopes[t, 0] = 0.0
            for m in range(1, level + 1):
                seen[m] += 1.0
                sums[m] += x
            t += 1
        sum_so_far += x
        last = max(x, last)
        step += 1
        at += n_lanes
        if step == n_steps:
            step, lane = 0, lane + 1
            at = lane
    while lane < n_lanes:
        gaps[at], kinds[at], columns[at] = 0.0, NOT_AN_ITEM, -1
        step += 1
        at += n_lanes
        if step == n_steps:
            step, lane = 0, lane + 1
            at = lane
    if strict:
        _untie(values, jump, own, first_tied, t, n - group, seen, before)
    for k in range(v):
        n_far, far_sum = far[k, 0], sum_so_far - sums[own[k]] - far[k, 1]
        values[k, 0] += (top - 1.0) * n_far + rho * (far_sum - n_far * (np.float64(own_scores[k]) + delta))
        slopes[k, 0] = rho * n_far
    return n_lanes, n_steps
