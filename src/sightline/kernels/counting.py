"""Places of the relevant items in every query's list, without sorting the rest; compiled.

No metric needs the order of the irrelevant items among themselves, only how many of them precede each relevant one. So the
relevant items of a row are sorted, and each irrelevant item is counted into the gap between two of them that it falls in.
Both steps go through buckets, ``bucket(score)``, which never decrease as the score falls: items of different buckets are in
order, and inside one their scores are compared. A bucket that holds many gets buckets of its own. Buckets can thus cost
time, never exactness.

A row's scores are finite; minus infinity marks an item that is in no list. A tile is some queries against all items. The
state is that of one query, and stays in the cache while it serves one after the other:

* ``found``, ``level``: scores and levels less 1 of the relevant items, after sorting the best first, of equal scores the
  lower level; ``found`` ends in minus infinities;
* ``gap``: irrelevant items that precede item i but not item i - 1;
* ``start``: the first item of each bucket, or ``-1 - child`` where it has buckets of its own; ``scale``: center, factor,
  limit and 1, which make a score a bucket number, of the row and then of each child; ``span``: [0] how many children,
  then where the buckets of each begin in ``start``.
"""

import numpy as np
from numba import njit

from sightline.kernels.bucket_sort import FEW, bucket, sort_found

CHUNK = 1024
FAR_BELOW = -(1 << 30)


@njit(cache=True, nogil=True, error_model="numpy")
def leave_out(tile, own, by_group, group_start, group_stop):
    """Mark the query itself (column ``own``, -1: none) and ``by_group[group_start:group_stop]`` as in no list."""
    for q in range(len(own)):
        if own[q] >= 0:
            tile[q, own[q]] = -np.inf
        for g in range(group_start[q], group_stop[q]):
            tile[q, by_group[g]] = -np.inf


@njit(cache=True, nogil=True, error_model="numpy")
def _gather_intervals(row, begin, end, found, level):
    """Gather the relevant items: those of level l + 1 and above are the columns from ``begin[l]`` to ``end[l]``."""
    n = 0
    for j in range(begin[0], end[0]):
        if row[j] > -np.inf:
            shared = 1
            while shared < len(begin) and begin[shared] <= j < end[shared]:
                shared += 1
            found[n], level[n] = row[j], shared - 1
            n += 1
    return n


@njit(cache=True, nogil=True, error_model="numpy")
def _gather_levels(row, levels, found, level):
    """Gather the items whose level is above 0; then mark all but those of level 0 as in no list: they are not counted."""
    n = 0
    for j in range(len(levels)):
        if levels[j] != 0:
            if levels[j] > 0 and row[j] > -np.inf:
                found[n], level[n] = row[j], levels[j] - 1
                n += 1
            row[j] = -np.inf
    return n


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc"})
def _count_at_least(row, value, one, nothing):
    """How many reach the value, a vector at a time; in chunks, for the sum of a float32 is whole up to 16 million only."""
    total = 0
    for first in range(0, len(row), CHUNK * CHUNK):
        count = nothing
        for j in range(first, min(len(row), first + CHUNK * CHUNK)):
            count += one if row[j] >= value else nothing
        total += int(count)
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def _count_few(row, found, n, gap, scale):
    before = 0
    for i in range(n):
        if i == 0 or found[i] != found[i - 1]:
            total = _count_at_least(row, found[i], scale[3], scale[2])
            gap[i] += total - before
            before = total


@njit(cache=True, nogil=True, error_model="numpy")
def _search(x, found, i, last):
    """The first item from i on that is not above x: steps that double, then halves."""
    step = 1
    while i + step < last and found[i + step] > x:
        i += step
        step *= 2
    after = min(i + step, last)
    while i < after:
        middle = (i + after) // 2
        if found[middle] > x:
            i = middle + 1
        else:
            after = middle
    return i


@njit(cache=True, nogil=True, error_model="numpy")
def _count_many(row, found, n_found, gap, start, scale, span, crowd, buckets, waiting):
    """Items of a bucket that no relevant item shares are counted as one crowd; only the others are compared."""
    center, factor, limit, one = scale[0, 0], scale[0, 1], scale[0, 2], scale[0, 3]
    lowest, beyond = found[n_found - 1], np.int32(limit) + np.int32(2)
    for first in range(0, len(row), CHUNK):
        part = row[first : first + CHUNK]
        for j in range(len(part)):
            b = bucket(part[j], center, factor, limit, one)
            buckets[j] = b if part[j] >= lowest else beyond
        n_waiting = 0
        for j in range(len(part)):
            # Every item is written to the list of those to compare; the next overwrites it where it need not be there.
            b = np.uint32(buckets[j])
            count = crowd[b]
            crowd[b] = count + 1
            waiting[np.uint32(n_waiting)] = j
            n_waiting += count < 0
        for w in range(n_waiting):
            j = waiting[w]
            x, i = part[j], np.int64(start[buckets[j]])
            if i < 0:
                h = -1 - i
                i = np.int64(start[span[h] + bucket(x, scale[h, 0], scale[h, 1], scale[h, 2], scale[h, 3])])
            # Four comparisons at once, without a branch to guess: what follows is rare.
            late = found[i + 3] > x
            i += (found[i] > x) + (found[i + 1] > x) + (found[i + 2] > x) + late
            if late:
                i = _search(x, found, i, n_found)
            gap[i] += 1


@njit(cache=True, nogil=True, error_model="numpy")
def _empty_crowds(n_buckets, start, crowd):
    """Crowds from 0 on; that of a bucket which holds relevant items stays below 0, for its items are to be compared."""
    for b in range(n_buckets + 2):  # also before a child, where comparing is not needed but does no harm
        crowd[b] = 0 if start[b] == start[b + 1] else FAR_BELOW
    crowd[n_buckets + 2] = 0


@njit(cache=True, nogil=True, error_model="numpy")
def _add_crowds(n_buckets, found, n_found, gap, scale, crowd, buckets):
    """Each relevant item is preceded by the crowds of all buckets before its own."""
    total = np.int32(0)
    for b in range(n_buckets + 2):
        count = max(crowd[b], np.int32(0))
        crowd[b] = total
        total += count
    center, factor, limit, one = scale[0], scale[1], scale[2], scale[3]
    for i in range(n_found):
        buckets[i] = bucket(found[i], center, factor, limit, one)
    before = np.int32(0)
    for i in range(n_found):
        total = crowd[np.uint32(buckets[i])]
        gap[i] += total - before
        before = total


@njit(cache=True, nogil=True, error_model="numpy")
def _count_row(row, begin, end, n, found, gap, start, scale, span, crowd, buckets, waiting):
    """Count the irrelevant items, those outside ``begin`` to ``end``, into the gaps between the n relevant ones."""
    if n > FEW and found[0] != found[n - 1]:
        n_buckets = np.int64(scale[0, 2])
        _empty_crowds(n_buckets, start, crowd)
        for part in (row[:begin], row[end:]):
            _count_many(part, found, n, gap, start, scale, span, crowd, buckets, waiting)
        _add_crowds(n_buckets, found, n, gap, scale[0], crowd, buckets)
    elif n > 0:
        scale[0, 2], scale[0, 3] = 0.0, 1.0
        for part in (row[:begin], row[end:]):
            _count_few(part, found, n, gap, scale[0])


@njit(cache=True, nogil=True, error_model="numpy")
def _note(at_k, seen, running, discounted):
    for m in range(len(seen)):
        at_k[0, m], at_k[1, m], at_k[2, m] = seen[m], running[m], discounted[m]


@njit(cache=True, nogil=True, error_model="numpy")
def _finish_row(n, found, levels, places, tables, ks, by_counting, sums, firsts, at_ks, counts):
    """The statistics of a query from its n relevant items: :class:`~sightline.evaluation.statistics.Statistics`.

    ``tables`` (2, G + 1): at [r], 1 / log2(1 + r) and the sum of 1 / i up to r. ``sums`` (L + 5, L): rows 0 to L - 1
    are ``precision``, then ``discount``, ``precision_at_r``, ``set_precision``, ``found_at_r`` and ``asi`` by level.
    ``places`` comes as the gaps.
    """
    n_levels = sums.shape[1]
    discount, harmonic = tables[0], tables[1]
    seen = np.zeros(n_levels)  # of this very level
    above = np.zeros(n_levels)  # of this level and finer
    n_above = np.zeros(n_levels + 1, np.int64)
    running = np.zeros(n_levels)
    k, before = 0, 0
    for i in range(n):
        counts[levels[i]] += 1
    for m in range(n_levels - 1, -1, -1):
        n_above[m] = n_above[m + 1] + counts[m]
    for i in range(n):
        before += places[i]
        places[i] = i + 1 + before
    for i in range(n):
        r, a = places[i], levels[i]
        share = 1.0 / r
        while k < len(ks) and ks[k] < r:
            _note(at_ks[k], seen, running, sums[n_levels])
            k += 1
        seen[a] += 1
        if k < len(ks) or r <= n:  # cut metrics look no further
            for m in range(a + 1):
                above[m] += 1
                running[m] += above[m] * share
                if r <= n_above[m]:
                    sums[n_levels + 1, m] = running[m]
                    sums[n_levels + 2, m] += harmonic[n_above[m]] - harmonic[r - 1]
                    sums[n_levels + 3, m] = above[m]
            # The ideal list holds so many of its level from this place on.
            ideal = max(r, n_above[a + 1] + int(seen[a]))
            if ideal <= n:
                sums[n_levels + 4, a] += harmonic[n] - harmonic[ideal - 1]
        for m in range(n_levels):
            sums[a, m] += seen[m] * share
        sums[n_levels, a] += discount[r]
    for i in range(n - 1, -1, -1):
        firsts[levels[i]] = places[i]
    for later in range(k, len(ks)):
        _note(at_ks[later], seen, running, sums[n_levels])
    if by_counting:
        _count_ties(n, found, levels, places, discount, sums)


@njit(cache=True, nogil=True, error_model="numpy")
def _count_ties(n, found, level, place, discount, table):
    """``precision`` and ``discount`` again, each item of a tie at the place of its last and with all of them seen."""
    n_levels = table.shape[1]
    table[: n_levels + 1] = 0.0
    seen = np.zeros(n_levels, np.int64)
    start = 0
    while start < n:
        stop = start
        while stop < n and found[stop] == found[start]:
            seen[level[stop]] += 1
            stop += 1
        r = place[stop - 1]
        for i in range(start, stop):
            a = level[i]
            table[n_levels, a] += discount[r]
            for m in range(n_levels):
                table[a, m] += seen[m] / r
        start = stop


@njit(cache=True, nogil=True, error_model="numpy")
def rank_tile(
    tile, levels, begin, end, found, level, gap, start, scale, span, spare, spare_level, crowd, buckets, waiting,
    tables, ks, by_counting, table, first_place, at_ks, counts,
):  # fmt: skip
    """All steps for a tile, query by query."""
    for q in range(len(begin)):
        if len(levels) > 0:
            n = _gather_levels(tile[q], levels[q], found, level)
        else:
            n = _gather_intervals(tile[q], begin[q], end[q], found, level)
        gap[: n + 1] = 0
        sort_found(n, found, level, start, scale, span, spare, spare_level, buckets)
        _count_row(
            tile[q], begin[q, 0], end[q, 0], n, found, gap, start, scale, span, crowd, buckets, waiting
        )  # fmt: skip
        _finish_row(n, found, level, gap, tables, ks, by_counting, table[q], first_place[q], at_ks[q], counts[q])
