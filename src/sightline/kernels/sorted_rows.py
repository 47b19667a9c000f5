"""Smooth counts on a CPU without the cubic cost, compiled.

For each target k of a row: how many items of each level score at least as much (exact), the sum of
``step(score j - score k)`` over the items j that count, and the sum of its slopes. With SupRank's step the items of lower
levels count, one number a target (R = 1); with the sigmoid there is a number for each level (R = M). Two ways, chosen row
by row:

* few targets: every pair is evaluated, a vector at a time (:mod:`~sightline.kernels.pairs`);
* many: one sort of the row, then sums that move along it (:mod:`~sightline.kernels.lane_sums`). What lies beyond ``delta``
  is taken out of these sums, exactly where it lies, and counted as a line: each target has a second place in the list,
  ``delta`` above it, that holds no item. Cost: one sort and O(levels) an item, whatever the number of targets, the width of
  the sigmoid and the range of the scores.

The gradient needs the same sums with targets and items exchanged.
"""

import numpy as np
from numba import njit, prange

from sightline.kernels.lane_sums import (
    DEGREE,
    carry,
    end_downwards,
    end_dropping,
    end_upwards,
    fill_decays,
    fill_equal,
    fill_lower,
    read_above,
    read_above_and_far,
    read_below,
    read_slope_above,
    read_slope_and_line,
    read_slope_below,
)
from sightline.kernels.pairs import NEGLIGIBLE, counts_by_pairs, gradient_by_pairs
from sightline.kernels.row_layout import lay_out, room, sort_row
from sightline.kernels.vectors import LANES

FEW_TARGETS = 12  # up to so many, pairs are cheaper than a sort: measured by benchmarks/losses.py


@njit(cache=True, error_model="numpy")
def _fill_wholes(gaps, n_lanes, n_steps, tau, sums, wholes):
    """The decay over each piece."""
    sums[:n_lanes] = 0.0
    for step in range(n_steps):
        for lane in range(n_lanes):
            sums[lane] += gaps[step * n_lanes + lane]
    fill_decays(sums, n_lanes // LANES, np.float32(1.0) / tau, wholes)


@njit(cache=True, error_model="numpy")
def _add_smooth_counts(
    decays, kinds, wholes, fades, n_lanes, n_steps, sup, tau, totals, n_levels, gains, states, value, slope, place,
    far_place, own, values, slopes,
):  # fmt: skip
    """The sums along the list, read at each target's two places."""
    n_targets = np.int64(totals[1])
    table = states[: (DEGREE + 1) * n_lanes].reshape(DEGREE + 1, n_lanes)
    sharpness = np.float64(1.0) / tau
    n_vectors = n_lanes * n_steps // LANES
    for level in range(sup, n_levels):
        if totals[level] == totals[level + 1]:  # no target of this level, or no source
            continue
        if sup:
            fill_lower(kinds, n_vectors, level, gains)
        else:
            fill_equal(kinds, n_vectors, level, gains)
        for tile in range(0, n_lanes, LANES):
            end_upwards(decays, gains, gains, fades, n_steps, n_lanes, tile, states)
        carry(table, wholes, n_lanes, True, False)
        for tile in range(0, n_lanes, LANES):
            read_below(decays, gains, gains, fades, n_steps, n_lanes, tile, states, value, slope)
        for tile in range(0, n_lanes, LANES):
            end_downwards(decays, gains, gains, fades, n_steps, n_lanes, tile, states)
        carry(table, wholes, n_lanes, False, False)
        for tile in range(0, n_lanes, LANES):
            if sup:
                read_above_and_far(decays, gains, gains, fades, n_steps, n_lanes, tile, states, value, slope, fades, kinds)
            else:
                read_above(decays, gains, gains, fades, n_steps, n_lanes, tile, states, value, slope)
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
    n_vectors = n_lanes * n_steps // LANES
    n_places = n_lanes * n_steps
    table = states[: (DEGREE + 1) * n_lanes].reshape(DEGREE + 1, n_lanes)
    sharpness = np.float32(1.0) / tau
    line = np.float32(rho * tau)
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
        if sup:
            fill_lower(kinds, n_vectors, level, sources)
        else:
            fill_equal(kinds, n_vectors, level, sources)
        for tile in range(0, n_lanes, LANES):
            if sup:
                end_dropping(decays, gains, drops, fades, n_steps, n_lanes, tile, states)
            else:
                end_upwards(decays, gains, drops, fades, n_steps, n_lanes, tile, states)
        carry(table, wholes, n_lanes, True, sup)
        for tile in range(0, n_lanes, LANES):
            if sup:
                read_slope_and_line(decays, gains, drops, fades, n_steps, n_lanes, tile, states, sources, moved, line)
            else:
                read_slope_below(decays, gains, drops, fades, n_steps, n_lanes, tile, states, sources, moved)
        for tile in range(0, n_lanes, LANES):
            end_downwards(decays, gains, drops, fades, n_steps, n_lanes, tile, states)
        carry(table, wholes, n_lanes, False, False)
        for tile in range(0, n_lanes, LANES):
            read_slope_above(decays, gains, drops, fades, n_steps, n_lanes, tile, states, sources, moved)
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
def _fades(tau, delta):
    """``exp(-delta / tau)`` to the powers 1 ... DEGREE."""
    fades = np.zeros(DEGREE, np.float32)
    for d in range(DEGREE):
        fades[d] = np.exp(-np.float64(delta) / tau * (d + 1))
        if fades[d] < NEGLIGIBLE:
            fades[d] = 0.0
    return fades


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
        x = np.empty(-(-n_items // LANES) * LANES, np.float32)
        kind = np.empty(len(x), np.int8)
        smooth, steep = np.empty(max(n_room, len(x)), np.float32), np.empty(max(n_room, len(x)), np.float32)
        keys, spare = np.empty(n_items, np.uint64), np.empty(n_items, np.uint64)
        buckets = np.empty((4, 2048), np.int32)
        totals = np.zeros(n_levels + 1)
        counted = np.empty((3, n_levels + 1))
        gaps, gains, sums = np.empty(n_room, np.float32), np.empty(n_room, np.float32), np.empty(n_room, np.float32)
        states = np.empty((DEGREE + 1) * n_lanes_most, np.float32)
        own_scores, far = np.empty(place.shape[1], np.float32), np.empty((place.shape[1], 2))
        for row in range(chunk * n_rows // n_chunks, (chunk + 1) * n_rows // n_chunks):
            if n_targets[row] == 0:
                continue
            if n_targets[row] <= FEW_TARGETS:
                counts_by_pairs(
                    scores[row], levels[row], n_targets[row], n_levels, sup, tau, rho, delta, jump, top, strict, x, kind,
                    smooth, steep, worth[row], place[row], own[row], ranks[row], graded[row], values[row], slopes[row],
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
            fill_decays(gaps, n_lanes * n_steps // LANES, np.float32(1.0) / tau, decays[row])
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
        x = np.empty(-(-n_items // LANES) * LANES, np.float32)
        kind = np.empty(len(x), np.int8)
        steep = np.empty(len(x), np.float32)
        moved = np.empty(max(n_room, len(x)), np.float32)
        gains, drops, sources = np.empty(n_room, np.float32), np.empty(n_room, np.float32), np.empty(n_room, np.float32)
        states = np.empty((DEGREE + 1) * n_lanes_most, np.float32)
        for row in range(chunk * n_rows // n_chunks, (chunk + 1) * n_rows // n_chunks):
            gradient[row] = 0.0
            if n_targets[row] == 0:
                continue
            if n_targets[row] <= FEW_TARGETS:
                gradient_by_pairs(
                    scores[row], levels[row], n_targets[row], sup, tau, rho, delta, x, kind, steep, moved, place[row],
                    own[row], weights[row], slopes[row], gradient[row],
                )  # fmt: skip
                continue
            _gradient_by_sort(
                decays[row], kinds[row], wholes[row], fades, columns[row], shapes[row, 0], shapes[row, 1], sup, tau, rho,
                n_targets[row], n_levels, gains, drops, sources, states, moved, place[row], far_place[row], own[row],
                weights[row], slopes[row], gradient[row],
            )  # fmt: skip
