"""The relevant items of a row in order, by buckets that :mod:`~sightline.kernels.counting` uses again; compiled.

Plain loops, also where numpy has a function: each of those is compiled too, and takes longer than the loop.
"""

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
def _sink(found, level, i, n):
    """Let an item of a heap of n sink to its place; the root of a heap comes last of all."""
    x, m = found[i], level[i]
    while 2 * i + 1 < n:
        below = 2 * i + 1
        if below + 1 < n and _precedes(found[below], level[below], found[below + 1], level[below + 1]):
            below += 1
        if not _precedes(x, m, found[below], level[below]):
            break
        found[i], level[i] = found[below], level[below]
        i = below
    found[i], level[i] = x, m


@njit(cache=True, nogil=True, error_model="numpy")
def _heap_sort(found, level):
    """Sort items in place; no order of the items can make it slow."""
    n = len(found)
    for i in range(n // 2 - 1, -1, -1):
        _sink(found, level, i, n)
    for last in range(n - 1, 0, -1):
        found[0], found[last] = found[last], found[0]
        level[0], level[last] = level[last], level[0]
        _sink(found, level, 0, last)


@njit(cache=True, nogil=True, error_model="numpy")
def _are_equal(found, n):
    i = 1
    while i < n and found[i] == found[0]:
        i += 1
    return i >= n


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
    total, squares, lowest, highest = 0.0, 0.0, found[first], found[first]
    for i in range(first, last):
        x = np.float64(found[i])
        total += x
        squares += x * x
        lowest, highest = min(lowest, found[i]), max(highest, found[i])
    mean = total / (last - first)
    deviation = np.sqrt(max(squares / (last - first) - mean * mean, 0.0))
    n_buckets = 1 << np.int64(np.log2(n_most))
    scale[0] = min(np.float64(highest), mean + 3 * deviation)
    width = np.float64(scale[0]) - max(np.float64(lowest), mean - 6 * deviation)
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
        buckets[i] = bucket(found[i], center, factor, limit, one)
    for i in range(first, last):
        start[buckets[i]] += 1
    most, total = np.int32(0), np.int32(first)
    for b in range(len(start)):
        most = max(most, start[b])
        total += start[b]
        start[b] = total
    for i in range(first, last):
        place = start[buckets[i]] - 1
        found[place], level[place] = spare[i], spare_level[i]
        start[buckets[i]] = place
    return most


@njit(cache=True, nogil=True, error_model="numpy")
def _insert(found, level, n):
    """Sort n items that are near their places, in place."""
    for i in range(1, n):
        x, m, j = found[i], level[i], i
        while j > 0 and _precedes(x, m, found[j - 1], level[j - 1]):
            found[j], level[j] = found[j - 1], level[j - 1]
            j -= 1
        found[j], level[j] = x, m


@njit(cache=True, nogil=True, error_model="numpy")
def sort_found(n, found, level, start, scale, span, spare, spare_level, buckets):
    """Sort a query's n relevant items, and keep the buckets for :mod:`~sightline.kernels.counting`."""
    found[n : n + SENTINELS] = -np.inf
    span[0] = 0  # children
    if n > FEW and _are_equal(found, n):
        _heap_sort(found[:n], level[:n])
        return
    if n > FEW:
        first = np.int64(0)  # of one type with that in _divide: each type would be compiled
        n_buckets = _choose_scale(found, first, n, min(MOST_BUCKETS, max(256, 6 * n)), scale[0])
        most = _distribute(found, level, first, n, scale[0], start[: n_buckets + 3], spare, spare_level, buckets)
        if most > SMALL_BUCKET:
            _divide(n, n_buckets, found, level, start, scale, span, spare, spare_level, buckets)
    _insert(found, level, n)


@njit(cache=True, nogil=True, error_model="numpy")
def _divide(n, n_buckets, found, level, start, scale, span, spare, spare_level, buckets):
    """Give each full bucket buckets of its own; a full one among those is sorted."""
    used, n_children, stop = n_buckets + 3, 0, n
    for b in range(n_buckets + 1, -1, -1):
        begin = np.int64(start[b])
        if stop - begin > SMALL_BUCKET:
            n_children += 1
            n_parts = _choose_scale(found, begin, stop, 2 * (stop - begin), scale[n_children])
            parts = start[used : used + n_parts + 3]
            most = _distribute(found, level, begin, stop, scale[n_children], parts, spare, spare_level, buckets)
            for part in range(n_parts + 2 if most > SMALL_BUCKET else 0):
                if parts[part + 1] - parts[part] > SMALL_BUCKET:
                    _heap_sort(found[parts[part] : parts[part + 1]], level[parts[part] : parts[part + 1]])
            span[n_children] = used
            used += n_parts + 3
            start[b] = -1 - n_children
        stop = begin
    span[0] = n_children
