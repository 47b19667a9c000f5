"""Smooth counts of a row with few targets, compiled: every pair of a target and an item, in float32.

The loops have no branch and one kind of number, so that the compiler makes vectors of them.
"""

import numpy as np
from numba import njit

ONE, ZERO = np.float32(1.0), np.float32(0.0)  # a plain 1.0 would make float64 of what it meets
LOG2_E = np.float32(1.4426950408889634)
# 2 ** f for f in [-0.5, 0.5], to 2e-9 of its value
P_6, P_5, P_4 = np.float32(1.5345668882592504e-4), np.float32(1.3399930057876874e-3), np.float32(9.61848948915553e-3)
P_3, P_2, P_1 = np.float32(5.5503287805816655e-2), np.float32(2.4022646885718885e-1), np.float32(6.931472057350233e-1)
LEAST_EXPONENT = np.float32(-125.0)  # the result stays a normal number
NEGLIGIBLE = np.float32(1e-30)  # a gradient below becomes 0: with denormal numbers a matrix product takes ten times as long


@njit(cache=True, error_model="numpy", fastmath={"contract"}, inline="always")
def power_of_two(y):
    """``2 ** y`` for y <= 0, to 1e-7 of its value: a call of the library's exp would keep a loop from becoming vectors."""
    y = y if y > LEAST_EXPONENT else LEAST_EXPONENT
    whole = np.rint(y)
    f = y - whole
    part = (((((P_6 * f + P_5) * f + P_4) * f + P_3) * f + P_2) * f + P_1) * f + ONE
    # The bits of a float32 begin with its exponent, 127 for 2 ** 0.
    return part * np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)


@njit(cache=True, error_model="numpy", fastmath={"contract"}, inline="always")
def _step(score, pivot, sharpness, rho, delta, beyond, top):
    """Whether the item is not below the pivot; the step without its jump, from ``beyond`` on a line; and its slope."""
    gap = score - pivot
    upwards = gap >= ZERO
    e = power_of_two((-gap if upwards else gap) * (sharpness * LOG2_E))
    r = ONE / (ONE + e)
    far = score >= beyond
    smooth = rho * (gap - delta) + top if far else (r if upwards else e * r)
    slope = rho if far else e * r * r * sharpness
    return upwards, smooth, slope


@njit(cache=True, error_model="numpy", fastmath={"contract"})
def _fill_step(scores, pivot, sharpness, rho, delta, beyond, top, smooth, steep):
    for j in range(len(scores)):
        _, smooth[j], steep[j] = _step(scores[j], pivot, sharpness, rho, delta, beyond, top)


# The sums of the next three may be taken in any order, but always in the same: that of the compiled code.
@njit(cache=True, error_model="numpy", fastmath={"contract", "reassoc"})
def _sum_over_lower(scores, levels, level, pivot, sharpness, rho, delta, beyond, top):
    """Over items of lower level: steps, slopes, how many are not below the pivot; and how many of the others are not."""
    value = steep = n_lower = n_others = ZERO
    for j in range(len(scores)):
        upwards, smooth, slope = _step(scores[j], pivot, sharpness, rho, delta, beyond, top)
        lower = (levels[j] >= 0) & (levels[j] < level)
        value += smooth if lower else ZERO
        steep += slope if lower else ZERO
        n_lower += ONE if lower & upwards else ZERO
        n_others += ONE if (levels[j] >= level) & upwards else ZERO
    return value, steep, n_lower, n_others


@njit(cache=True, error_model="numpy", fastmath={"contract", "reassoc"})
def _sum_equal(values, levels, level):
    """Over the items of one level."""
    total = ZERO
    for j in range(len(levels)):
        total += values[j] if levels[j] == level else ZERO
    return total


@njit(cache=True, error_model="numpy", fastmath={"contract", "reassoc"})
def _count_above(scores, levels, level, pivot, only_equal):
    """Items of one level that score at least as much as the pivot, or just as much; whole numbers, exact to 16 million."""
    n = ZERO
    for j in range(len(scores)):
        chosen = (scores[j] >= pivot) & ((scores[j] <= pivot) | (not only_equal))
        n += ONE if (levels[j] == level) & chosen else ZERO
    return n


@njit(cache=True, error_model="numpy")
def _first_beyond(pivot, delta):
    """The least score more than ``delta`` above the pivot, by float64: a gap rounded to float32 may lie on either side."""
    edge = np.float64(pivot) + delta
    near = np.float32(edge)
    return near if near > edge else np.nextafter(near, np.float32(np.inf))


@njit(cache=True, error_model="numpy")
def counts_by_pairs(
    scores, levels, n_targets, n_levels, sup, tau, rho, delta, jump, top, strict, smooth, steep, worth, place, own, ranks,
    graded, values, slopes,
):  # fmt: skip
    """As :func:`~sightline.kernels.sorted_rows.smooth_count_rows`, for one row."""
    sharpness, edge = ONE / tau, np.float32(delta)
    t, j = 0, -1
    while t < n_targets:
        j += 1
        level = levels[j]
        if level <= 0:
            continue
        place[t], own[t], pivot = j, level, scores[j]
        beyond = _first_beyond(pivot, delta)
        if sup:
            value, slope, n_jumps, n_others = _sum_over_lower(
                scores, levels, level, pivot, sharpness, rho, edge, beyond, top
            )
            for m in range(level * strict):
                n_jumps -= _count_above(scores, levels, np.int8(m), pivot, True)
            values[t, 0], slopes[t, 0], ranks[t] = value + jump * n_jumps, slope, n_others
        else:
            _fill_step(scores, pivot, sharpness, rho, edge, beyond, top, smooth, steep)
            steep[j] = 0.0  # moves with itself: large, and would have to cancel
            ranks[t] = 0.0
            for m in range(n_levels):
                values[t, m] = _sum_equal(smooth, levels, np.int8(m))
                slopes[t, m] = _sum_equal(steep, levels, np.int8(m))
                if m >= level:
                    ranks[t] += _count_above(scores, levels, np.int8(m), pivot, False)
        for m in range(1, len(worth)):
            graded[t] += _count_above(scores, levels, np.int8(m), pivot, False) * min(worth[m], worth[level])
        t += 1


@njit(cache=True, error_model="numpy", fastmath={"contract"})
def _spread(slopes, levels, sup, level, weight, moved):
    """Add slopes times the weight to the items that count: of lower level but in the list, or of this level."""
    lowest, highest = (np.int8(0), np.int8(level - 1)) if sup else (np.int8(level), np.int8(level))
    for j in range(len(levels)):
        counts = (levels[j] >= lowest) & (levels[j] <= highest)
        moved[j] += weight * (slopes[j] if counts else ZERO)


@njit(cache=True, error_model="numpy")
def gradient_by_pairs(
    scores, levels, n_targets, sup, tau, rho, delta, smooth, steep, moved, place, own, weights, slopes, gradient
):
    """As :func:`~sightline.kernels.sorted_rows.smooth_count_gradient`, for one row."""
    moved[: len(scores)] = 0.0
    for t in range(n_targets):
        pivot = scores[place[t]]
        _fill_step(scores, pivot, ONE / tau, rho, rho, _first_beyond(pivot, delta), rho, smooth, steep)
        steep[place[t]] = 0.0
        for m in range(weights.shape[1]):
            w = np.float32(weights[t, m])
            _spread(steep, levels, sup, own[t] if sup else m, w, moved)
            moved[place[t]] -= w * slopes[t, m]
    for j in range(len(scores)):
        gradient[j] = moved[j] if abs(moved[j]) > NEGLIGIBLE else ZERO
