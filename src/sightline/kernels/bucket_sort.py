"""The relevant items of a row in order, by buckets that :mod:`~sightline.kernels.counting` uses again; compiled."""

import numpy as np
from numba import njit

FEW = 24  # up to so many relevant items, counting for each of them is cheaper than buckets
SMALL_BUCKET = 32
MOST_BUCKETS = 1 << 16
LARGEST_FACTOR = 1e30  # beyond it an overflow would break the order
SENTINELS = 4


def state_widths(n_most):
    """Entries a query with so many relevant items needs in ``start``, and children at most."""
    n_children = n_most // SMALL_BUCKET + 1
    return min(MOST_BUCKETS, 6 * n_most + 256) + 3 + 2 * n_most + 3 * n_children, n_children


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def _precedes(x, level_x, y, level_y):
    return x > y or (x == y and level_x < level_y)


@njit(cache=True, nogil=True, error_model="numpy")
def _sink(found, level, first, root, n):
    while 2 * root + 1 < n:
        child = 2 * root + 1
        if child + 1 < n and _precedes(
            found[first + child], level[first + child], found[first + child + 1], level[first + child + 1]
        ):
            child += 1
        if not _precedes(found[first + root], level[first + root], found[first + child], level[first + child]):
            return
        found[first + root], found[first + child] = found[first + child], found[first + root]
        level[first + root], level[first + child] = level[first + child], level[first + root]
        root = child


@njit(cache=True, nogil=True, error_model="numpy")
def _heap_sort(found, level, first, last):
    """Sort a range in place; no order of the items can make it slow."""
    n = last - first
    for root in range(n // 2 - 1, -1, -1):
        _sink(found, level, first, root, n)
    for size in range(n - 1, 0, -1):
        found[first], found[first + size] = found[first + size], found[first]
        level[first], level[first + size] = level[first + size], level[first]
        _sink(found, level, first, 0, size)


@njit(cache=True, nogil=True, error_model="numpy", inline="always")
def bucket(x, center, factor, limit, one):
    """From 0, above the range, to limit + 1, below it; never falls with x. One and the same expression for all items."""
    t = (center - x) * factor
    t = t if t < limit else limit  # minus infinity, even times 0, comes last
    t = t if t > -one else -one
    return np.int32(t + one)


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "nnan", "nsz"})
def _choose_scale(found, first, last, n_most, scale):
    """Buckets for a range of items: a power of two, from 3 deviations above the mean to 6 below, inside the extremes.

    Further down than up: irrelevant items are many there, and those of a bucket that is open to one side cost the most.
    """
    low = high = found[first]
    total = squares = 0.0
    for i in range(first, last):
        low, high = min(low, found[i]), max(high, found[i])
        total += found[i]
    mean = total / (last - first)
    for i in range(first, last):
        squares += (found[i] - mean) ** 2
    deviation = np.sqrt(squares / (last - first))
    n_buckets = 2
    while 2 * n_buckets <= n_most:
        n_buckets *= 2
    scale[0] = min(np.float64(high), mean + 3 * deviation)
    width = np.float64(scale[0]) - max(np.float64(low), mean - 6 * deviation)
    scale[1] = n_buckets / width if width > 0 and n_buckets / width < LARGEST_FACTOR else 0.0
    scale[2] = n_buckets
    scale[3] = 1.0
    return n_buckets


@njit(cache=True, nogil=True, error_model="numpy")
def _distribute(found, level, first, last, scale, start, spare, spare_level, buckets):
    """Put a range of items in the order of their buckets, start[b] the first item of bucket b; the size of the fullest."""
    center, factor, limit, one = scale[0], scale[1], scale[2], scale[3]
    start[:] = 0
    for i in range(first, last):
        spare[i], spare_level[i] = found[i], level[i]
    for i in range(first, last):
        buckets[i] = bucket(found[i], center, factor, limit, one)
    for i in range(first, last):
        start[buckets[i]] += 1
    most = start.max()
    total = np.int32(first)
    for b in range(len(start)):
        total += start[b]
        start[b] = total
    for i in range(first, last):
        place = start[buckets[i]] - 1
        found[place], level[place] = spare[i], spare_level[i]
        start[buckets[i]] = place
    return most


@njit(cache=True, nogil=True, error_model="numpy")
def _insert(found, level, first, last):
    """Sort a range whose items are near their places, in place."""
    for i in range(first + 1, last):
        x, m, j = found[i], level[i], i
        while j > first and _precedes(x, m, found[j - 1], level[j - 1]):
            found[j], level[j] = found[j - 1], level[j - 1]
            j -= 1
        found[j], level[j] = x, m


@njit(cache=True, nogil=True, error_model="numpy")
def _are_equal(found, n):
    """Do all items score the same?"""
    i = 1
    while i < n and found[i] == found[0]:
        i += 1
    return i >= n


@njit(cache=True, nogil=True, error_model="numpy")
def _order_levels(level, n):
    """Sort items of one score: the lower level first."""
    counts = np.zeros(256, np.int64)
    for i in range(n):
        counts[level[i]] += 1
    i = 0
    for m in range(256):
        for _ in range(counts[m]):
            level[i] = m
            i += 1


@njit(cache=True, nogil=True, error_model="numpy")
def sort_rows(n_found, found, level, start, scale, span, spare, spare_level, buckets):
    """Sort each query's relevant items, and keep the buckets for :func:`count_tile`."""
    for q in range(len(n_found)):
        n = n_found[q]
        found[q, n : n + SENTINELS] = -np.inf
        span[q, 0] = 0  # children
        if n > FEW and _are_equal(found[q], n):
            _order_levels(level[q], n)
            continue
        if n > FEW:
            n_buckets = _choose_scale(found[q], 0, n, min(MOST_BUCKETS, max(256, 6 * n)), scale[q, 0])
            used = n_buckets + 3
            most = _distribute(found[q], level[q], 0, n, scale[q, 0], start[q, :used], spare, spare_level, buckets)
            if most > SMALL_BUCKET:
                _divide(n, n_buckets, found[q], level[q], start[q], scale[q], span[q], spare, spare_level, buckets)
        _insert(found[q], level[q], 0, n)


@njit(cache=True, nogil=True, error_model="numpy")
def _divide(n, n_buckets, found, level, start, scale, span, spare, spare_level, buckets):
    """Give each full bucket buckets of its own; a full one among those is sorted."""
    used, n_children, stop = n_buckets + 3, 0, n
    for b in range(n_buckets + 1, -1, -1):
        begin = start[b]
        if stop - begin > SMALL_BUCKET:
            n_children += 1
            n_parts = _choose_scale(found, begin, stop, 2 * (stop - begin), scale[n_children])
            parts = start[used : used + n_parts + 3]
            most = _distribute(found, level, begin, stop, scale[n_children], parts, spare, spare_level, buckets)
            for part in range(n_parts + 2 if most > SMALL_BUCKET else 0):
                if parts[part + 1] - parts[part] > SMALL_BUCKET:
                    _heap_sort(found, level, parts[part], parts[part + 1])
            span[n_children] = used
            used += n_parts + 3
            start[b] = -1 - n_children
        stop = begin
    span[0] = n_children
