"""Smooth counts on a CPU without the cubic cost, compiled.

For each target k of a row: how many items of each level score at least as much (exact), the sum of
``step(score j - score k)`` over the items j that count, and the sum of its slopes. With SupRank's step the items of lower
levels count, one number a target (R = 1); with the sigmoid there is a number for each level (R = M). Two ways, chosen row
by row:

* few targets: every pair is evaluated, a vector at a time (:mod:`~sightline.kernels.few_targets`);
* many: one sort of the row, then sums that move along it (:mod:`~sightline.kernels.lane_sums`). What lies beyond ``delta``
  is taken out of these sums, exactly where it lies, and counted as a line: each target has a second place in the list,
  ``delta`` above it, that holds no item. Cost: one sort and O(levels) an item, whatever the number of targets, the width of
  the sigmoid and the range of the scores.

The gradient needs the same sums with targets and items exchanged.
"""

import numpy as np
from numba import njit, prange

from sightline.kernels.few_targets import NEGLIGIBLE, ONE, counts_by_pairs, gradient_by_pairs
from sightline.kernels.lane_sums import (
    LANES,
    N_SUMS,
    NOT_AN_ITEM,
    aligned,
    carry,
    end_downwards,
    end_dropping,
    end_upwards,
    fill_chosen,
    fill_decays,
    read_above,
    read_below,
    read_slope_above,
    read_slope_below,
    rows_downwards,
)

FEW_TARGETS = 12  # up to so many, pairs are cheaper than a sort: measured by benchmarks/losses.py
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
    for i in range(n):
        for digit in range(n_digits):  # side by side: one digit alone would wait for the count before it
            buckets[digit, (keys[i] >> np.uint64(32 + width * digit)) & mask] += 1
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


@njit(cache=True, error_model="numpy", inline="always")
def _next_place(step, lane, at, n_lanes, n_steps):
    """The row, column and place that follow: down a column, then from the top of the next."""
    if step + 1 < n_steps:
        return step + 1, lane, at + n_lanes
    return 0, lane + 1, lane + 1


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
        # Targets pass in the order of their scores, and so do their second places, delta above: one pointer, v, is enough.
        while v < n_second and v < t and np.float64(x) - own_scores[v] > delta:
            edge = max(np.float32(own_scores[v] + delta), last)  # rounded it could lie before the place that precedes it
            gaps[at], kinds[at], columns[at] = edge - last, NOT_AN_ITEM, -1
            far_place[v] = at
            # Of lower levels, how many are beyond and the sum of those before; the whole sum is known at the end.
            far[v, 0], far[v, 1] = n - i - totals[own[v]] + seen[own[v]], sum_so_far - sums[own[v]]
            last = edge
            v += 1
            step, lane, at = _next_place(step, lane, at, n_lanes, n_steps)
        level = np.int64((order[i] >> np.uint64(COLUMN_BITS)) & np.uint64(127))
        column = np.int32(order[i] & np.uint64(MOST_ITEMS - 1))
        gaps[at], kinds[at], columns[at] = max(x - last, np.float32(0.0)), level, column
        if x != last_item:
            if strict:
                _untie(values, jump, own, first_tied, t, i - group, seen, before)
            group, last_item, first_tied = i, x, t
        if level > 0:
            if t == first_tied:
                for m in range(1, n_levels):  # all of a tie count against each of it: read before any of them is added
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
                # An item above counts 1 here, and less z / (1 + z) when the sums are read; so does a tie, by its order.
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
        step, lane, at = _next_place(step, lane, at, n_lanes, n_steps)
    while lane < n_lanes:
        gaps[at], kinds[at], columns[at] = 0.0, NOT_AN_ITEM, -1
        step, lane, at = _next_place(step, lane, at, n_lanes, n_steps)
    if strict:
        _untie(values, jump, own, first_tied, t, n - group, seen, before)
    # Beyond delta the line replaces the 1 of above; float64, as rho times a sum of many scores leaves few digits.
    for k in range(v):
        n_far, far_sum = far[k, 0], sum_so_far - sums[own[k]] - far[k, 1]
        values[k, 0] += (top - 1.0) * n_far + rho * (far_sum - n_far * (np.float64(own_scores[k]) + delta))
        slopes[k, 0] = rho * n_far
    return n_lanes, n_steps


@njit(cache=True, error_model="numpy")
def _fill_wholes(gaps, n_lanes, n_steps, tau, sums, wholes):
    """The decay over each piece."""
    sums[:n_lanes] = 0.0
    for step in range(n_steps):
        for lane in range(n_lanes):
            sums[lane] += gaps[step * n_lanes + lane]
    fill_decays(sums, n_lanes, ONE / tau, wholes)


@njit(cache=True, error_model="numpy")
def _add_smooth_counts(
    decays, kinds, wholes, fades, n_lanes, n_steps, sup, tau, totals, n_levels, gains, states, value, slope, place,
    far_place, own, values, slopes,
):  # fmt: skip
    """The sums along the list, read at each target's two places."""
    n_targets = np.int64(totals[1])
    sharpness, rows = np.float64(1.0) / tau, rows_downwards(n_steps, n_lanes)
    for level in range(sup, n_levels):
        if totals[level] == totals[level + 1]:  # no target of this level, or no source
            continue
        fill_chosen(kinds, n_lanes * n_steps, sup, level, gains)
        end_upwards(decays, gains, n_steps, n_lanes, states)
        carry(states, wholes, n_lanes, np.bool_(True))
        read_below(decays, gains, n_steps, n_lanes, states, value, slope)
        end_downwards(decays, gains, rows, n_lanes, states)
        carry(states, wholes, n_lanes, np.bool_(False))
        read_above(decays, gains, sup == 1, fades, kinds, rows, n_lanes, states, value, slope)
        for t in range(n_targets):
            if not sup:
                values[t, level] += value[place[t]]
                slopes[t, level] += slope[place[t]] * sharpness
            elif own[t] == level:
                smooth, steep = np.float64(value[place[t]]), np.float64(slope[place[t]])
                if far_place[t] >= 0:
                    smooth += value[far_place[t]]
                    steep -= slope[far_place[t]]
                values[t, 0] += smooth
                slopes[t, 0] += steep * sharpness


@njit(cache=True, error_model="numpy")
def _gradient_by_sort(
    decays, kinds, wholes, fades, columns, n_lanes, n_steps, sup, tau, rho, n_targets, n_levels, gains, drops, sources,
    states, moved, place, far_place, own, weights, slopes, gradient,
):  # fmt: skip
    """Gradient of one row; weights (P, R) is that of the loss with respect to the values."""
    n_places = n_lanes * n_steps
    sharpness = ONE / tau
    line, rows = np.float32(rho * tau), rows_downwards(n_steps, n_lanes)
    moved[:n_places] = 0.0
    for level in range(sup, n_levels):
        gains[:n_places] = 0.0
        drops[:n_places] = 0.0
        found = False
        for t in range(n_targets):
            if not sup or own[t] == level:
                w = np.float32(weights[t, 0 if sup else level])
                found |= w != 0.0
                gains[place[t]] = w
                if far_place[t] >= 0:
                    drops[far_place[t]] = -w
        if not found:
            continue
        fill_chosen(kinds, n_places, sup, level, sources)
        if sup:
            end_dropping(decays, gains, drops, fades, n_steps, n_lanes, states)
        else:
            end_upwards(decays, gains, n_steps, n_lanes, states)
        carry(states, wholes, n_lanes, np.bool_(True))
        read_slope_below(decays, gains, drops, fades, n_steps, n_lanes, states, sources, line, moved)
        end_downwards(decays, gains, rows, n_lanes, states)
        carry(states, wholes, n_lanes, np.bool_(False))
        read_slope_above(decays, gains, rows, n_lanes, states, sources, moved)
    for t in range(n_targets):
        own_share = np.float32(0.0)
        for m in range(weights.shape[1]):
            own_share += weights[t, m] * slopes[t, m]
        moved[place[t]] -= own_share * tau
    for i in range(n_places):
        if columns[i] >= 0:
            g = moved[i] * sharpness
            gradient[columns[i]] = g if abs(g) > NEGLIGIBLE else np.float32(0.0)


@njit(cache=True, error_model="numpy")
def _fade(tau, delta, power):
    """``exp(-delta / tau)`` to a power."""
    fade = np.float32(np.exp(-np.float64(delta) / tau * power))
    return fade if fade > NEGLIGIBLE else np.float32(0.0)


@njit(cache=True, error_model="numpy")
def _fades(tau, delta):
    """Its powers 1 to 8, as numbers: to read an array, a loop over lanes would have to stop at each."""
    return (_fade(tau, delta, 1), _fade(tau, delta, 2), _fade(tau, delta, 3), _fade(tau, delta, 4),
            _fade(tau, delta, 5), _fade(tau, delta, 6), _fade(tau, delta, 7), _fade(tau, delta, 8))  # fmt: skip


@njit(cache=True, error_model="numpy", parallel=True)
def smooth_count_rows(
    scores, levels, n_levels, sup, tau, rho, delta, jump, top, strict, n_chunks, n_targets, counts,
    worth, decays, kinds, wholes, columns, shapes, place, far_place, own, ranks, graded, values, slopes,
):  # fmt: skip
    """Fill (Q, P) own level, exact and graded rank, (Q, P, R) values and slopes; and what the gradient needs.

    Args:
        top: the step's value just beyond ``delta``, without the jump.
        strict: an equal score gets no jump.
    """
    n_rows, n_items = scores.shape
    n_room, n_lanes_most = room(n_items, place.shape[1])
    fades = _fades(tau, delta)
    for chunk in prange(n_chunks):
        x = np.empty(n_items, np.float32)
        smooth, steep = aligned(n_room), aligned(n_room)
        keys, spare = np.empty(n_items, np.uint64), np.empty(n_items, np.uint64)
        buckets = np.empty((4, 2048), np.int32)
        totals = np.zeros(n_levels + 1)
        counted = np.empty((3, n_levels + 1))
        gaps, gains, sums, states = aligned(n_room), aligned(n_room), aligned(n_room), aligned(N_SUMS * n_lanes_most)
        own_scores, far = np.empty(place.shape[1], np.float32), np.empty((place.shape[1], 2))
        for row in range(chunk * n_rows // n_chunks, (chunk + 1) * n_rows // n_chunks):
            if n_targets[row] == 0:
                continue
            if n_targets[row] <= FEW_TARGETS:
                counts_by_pairs(
                    scores[row], levels[row], n_targets[row], n_levels, sup, tau, rho, delta, jump, top, strict, smooth,
                    steep, worth[row], place[row], own[row], ranks[row], graded[row], values[row], slopes[row],
                )  # fmt: skip
                continue
            totals[n_levels] = 0.0
            for m in range(n_levels - 1, -1, -1):
                totals[m] = totals[m + 1] + counts[row, m]
            order, n = sort_row(scores[row], levels[row], keys, spare, buckets), np.int64(totals[0])
            n_lanes, n_steps = lay_out(
                order, x, n, sup, rho, delta, jump, top, strict, n_levels, totals, counted,
                gaps, kinds[row], columns[row], worth[row], place[row], far_place[row], own[row], ranks[row], graded[row],
                values[row], slopes[row], own_scores, far,
            )  # fmt: skip
            shapes[row, 0], shapes[row, 1] = n_lanes, n_steps
            fill_decays(gaps, n_lanes * n_steps, ONE / tau, decays[row])
            _fill_wholes(gaps, n_lanes, n_steps, tau, sums, wholes[row])
            _add_smooth_counts(
                decays[row], kinds[row], wholes[row], fades, n_lanes, n_steps, sup, tau, totals, n_levels, gains, states,
                smooth, steep, place[row], far_place[row], own[row], values[row], slopes[row],
            )  # fmt: skip


@njit(cache=True, error_model="numpy", parallel=True)
def smooth_count_gradient(
    scores, levels, n_levels, sup, tau, rho, delta, n_chunks, n_targets,
    decays, kinds, wholes, columns, shapes, place, far_place, own, weights, slopes, gradient,
):  # fmt: skip
    """Fill (Q, G) gradient of a loss whose gradient with respect to the values is ``weights``, (Q, P, R)."""
    n_rows, n_items = scores.shape
    n_room, n_lanes_most = room(n_items, place.shape[1])
    fades = _fades(tau, delta)
    for chunk in prange(n_chunks):
        smooth, moved, gains = aligned(n_room), aligned(n_room), aligned(n_room)
        drops, sources, states = aligned(n_room), aligned(n_room), aligned(N_SUMS * n_lanes_most)
        for row in range(chunk * n_rows // n_chunks, (chunk + 1) * n_rows // n_chunks):
            gradient[row] = 0.0
            if n_targets[row] == 0:
                continue
            if n_targets[row] <= FEW_TARGETS:
                gradient_by_pairs(
                    scores[row], levels[row], n_targets[row], sup, tau, rho, delta, smooth, sources, moved,
                    place[row], own[row], weights[row], slopes[row], gradient[row],
                )  # fmt: skip
                continue
            _gradient_by_sort(
                decays[row], kinds[row], wholes[row], fades, columns[row], shapes[row, 0], shapes[row, 1], sup, tau, rho,
                n_targets[row], n_levels, gains, drops, sources, states, moved, place[row], far_place[row], own[row],
                weights[row], slopes[row], gradient[row],
            )  # fmt: skip
