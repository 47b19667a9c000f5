"""Smooth counts pair by pair, a vector at a time, compiled: for rows with few targets."""

import numpy as np
from numba import njit

FAST = {"reassoc", "contract", "nsz", "arcp"}  # sums may be reordered; NaN and infinity never reach the kernels


@njit(cache=True, error_model="numpy")
def group_by_level(scores, levels, ends, x, columns, places):
    """The row's items in the list, those of one level side by side; columns: where each was, places: where it is."""
    ends[:] = 0
    for j in range(len(scores)):
        if levels[j] >= 0:
            ends[levels[j] + 1] += 1
    for m in range(1, len(ends)):
        ends[m] += ends[m - 1]
    for j in range(len(scores)):
        if levels[j] >= 0:
            i = ends[levels[j]]
            x[i] = scores[j]
            columns[i] = j
            places[j] = i
            ends[levels[j]] += 1
    for m in range(len(ends) - 1, 0, -1):
        ends[m] = ends[m - 1]
    ends[0] = 0


@njit(cache=True, error_model="numpy", fastmath=FAST)
def exponentials(first, last, x, pivot, tau, whole, parts, out):
    """exp(-|x[i] - pivot| / tau) for i in [first, last) in float32, a vector at a time."""
    bits = out.view(np.int32)
    scale = np.float32(-1.4426950408889634) / tau
    for i in range(first, last):
        y = max(abs(x[i] - pivot) * scale, np.float32(-126.0))
        k = np.floor(y + np.float32(0.5))
        whole[i] = np.int32(k) + np.int32(127)
        parts[i] = (y - k) * np.float32(0.6931471805599453)
    for i in range(first, last):
        bits[i] = whole[i] << np.int32(23)
    for i in range(first, last):
        f = parts[i]
        p = np.float32(1.0 / 720.0)
        p = p * f + np.float32(1.0 / 120.0)
        p = p * f + np.float32(1.0 / 24.0)
        p = p * f + np.float32(1.0 / 6.0)
        p = p * f + np.float32(0.5)
        p = p * f + np.float32(1.0)
        p = p * f + np.float32(1.0)
        out[i] *= p


@njit(cache=True, error_model="numpy", fastmath=FAST)
def slopes_of_pairs(first, last, own, x, tau, rho, delta, whole, parts, e, out):
    """The step's slope at x[i] - x[own] for i in [first, last), 0 for own itself; e the exponentials as a by-product."""
    pivot, one, sharpness = x[own], np.float32(1.0), np.float32(1.0) / tau
    limit = delta if rho > 0 else np.float32(np.inf)
    exponentials(first, last, x, pivot, tau, whole, parts, e)
    for i in range(first, last):
        r = one / (one + e[i])
        out[i] = rho if x[i] - pivot > limit else e[i] * r * r * sharpness
    if first <= own < last:  # moves with itself: large, and would have to cancel
        out[own] = 0.0


@njit(cache=True, error_model="numpy", fastmath=FAST)
def counts_by_pairs(x, ends, own, tau, rho, delta, jump, whole, parts, e, slope, n_sources, row, k, counts, values, slopes):
    """One target against a row that is grouped by level: level m in [ends[m], ends[m + 1])."""
    one, nothing, pivot = np.float32(1.0), np.float32(0.0), x[own]
    limit = delta if rho > 0 else np.float32(np.inf)
    top = one / (one + np.exp(-delta / tau)) - rho * delta  # where the line meets gap 0
    for m in range(len(ends) - 1):
        first, last = ends[m], ends[m + 1]
        count = nothing  # whole numbers, exact up to 16 million
        for i in range(first, last):
            count += one if x[i] >= pivot else nothing
        counts[row, k, m] = count
        if m < n_sources:
            slopes_of_pairs(first, last, own, x, tau, rho, delta, whole, parts, e, slope)
            value, slope_sum = nothing, nothing
            for i in range(first, last):
                gap = x[i] - pivot
                r = one / (one + e[i])
                smooth = r if gap >= nothing else e[i] * r
                value += top + rho * gap if gap > limit else smooth
                slope_sum += slope[i]
            values[row, k, m] = value + jump * count
            slopes[row, k, m] = slope_sum
