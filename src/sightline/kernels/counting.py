"""Places of the relevant items in every query's list, without sorting the rest; compiled.

No metric needs the order of the irrelevant items among themselves, only how many of them precede each relevant one. So the
relevant items of a row are sorted, and each irrelevant item is counted into the gap between two of them that it falls in.
Both steps go through buckets, ``bucket(score)``, which never decrease as the score falls: items of different buckets are in
order, and inside one their scores are compared. A bucket that holds many gets buckets of its own. Buckets can thus cost
time, never exactness.

A row's scores are finite; minus infinity marks an item that is in no list. Functions work on a tile: some queries against
the columns from ``first`` on. Each row of the state belongs to one query:

* ``n_found``: relevant items gathered; ``found``, ``level``: their scores and levels less 1, after sorting the best first,
  of equal scores the lower level; ``found`` ends in minus infinities;
* ``gap``: irrelevant items that precede item i but not item i - 1;
* ``start``: the first item of each bucket, or ``-1 - child`` where it has buckets of its own; ``scale``: center, factor,
  limit and 1, which make a score a bucket number, of the row and then of each child; ``span``: [0] how many children,
  then where the buckets of each begin in ``start``.
"""

import numpy as np
from numba import njit

from sightline.kernels.bucket_sort import FEW, bucket, sort_rows

CHUNK = 1024
FAR_BELOW = -(1 << 30)


@njit(cache=True, nogil=True, error_model="numpy")
def leave_out(tile, first, own, by_group, group_start, group_stop):
    """Mark the query itself (column ``own``, -1: none) and ``by_group[group_start:group_stop]`` as in no list."""
    width = tile.shape[1]
    for q in range(len(own)):
        if first <= own[q] < first + width:
            tile[q, own[q] - first] = -np.inf
        for g in range(group_start[q], group_stop[q]):
            if first <= by_group[g] < first + width:
                tile[q, by_group[g] - first] = -np.inf


@njit(cache=True, nogil=True, error_model="numpy")
def gather_intervals(tile, first, begin, end, n_found, found, level):
    """Append the relevant items: those of level l + 1 and above are the columns from ``begin[q, l]`` to ``end[q, l]``."""
    n_levels = begin.shape[1]
    last = first + tile.shape[1]
    for q in range(len(begin)):
        n = n_found[q]
        for j in range(max(first, begin[q, 0]), min(last, end[q, 0])):
            x = tile[q, j - first]
            if x > -np.inf:
                shared = 1
                while shared < n_levels and begin[q, shared] <= j < end[q, shared]:
                    shared += 1
                found[q, n] = x
                level[q, n] = shared - 1
                n += 1
        n_found[q] = n


@njit(cache=True, nogil=True, error_model="numpy")
def gather_levels(tile, levels, n_found, found, level):
    """Append the items whose level is above 0; then mark all but those of level 0 as in no list: they are not counted."""
    for q in range(len(levels)):
        n = n_found[q]
        for j in range(levels.shape[1]):
            if levels[q, j] != 0:
                if levels[q, j] > 0 and tile[q, j] > -np.inf:
                    found[q, n] = tile[q, j]
                    level[q, n] = levels[q, j] - 1
                    n += 1
                tile[q, j] = -np.inf
        n_found[q] = n


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
        total = before
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
def count_tile(tile, first, begin, end, n_found, found, gap, start, scale, span, crowd, buckets, waiting):
    """Count the irrelevant items, those outside ``begin[q]`` to ``end[q]``, into the gaps between the relevant ones."""
    width = tile.shape[1]
    for q in range(len(n_found)):
        left = min(max(begin[q] - first, 0), width)
        right = min(max(end[q] - first, left), width)
        n = n_found[q]
        if n > FEW and found[q, 0] != found[q, n - 1]:
            n_buckets = np.int64(scale[q, 0, 2])
            _empty_crowds(n_buckets, start[q], crowd)
            for part in (tile[q, :left], tile[q, right:]):
                _count_many(part, found[q], n, gap[q], start[q], scale[q], span[q], crowd, buckets, waiting)
            _add_crowds(n_buckets, found[q], n, gap[q], scale[q, 0], crowd, buckets)
        elif n > 0:
            scale[q, 0, 2], scale[q, 0, 3] = 0.0, 1.0
            for part in (tile[q, :left], tile[q, right:]):
                _count_few(part, found[q], n, gap[q], scale[q, 0])


@njit(cache=True, nogil=True, error_model="numpy")
def finish_rows(n_found, found, level, gap, tables, ks, by_counting, table, first_place, at_ks, counts):
    """The statistics of each query from its relevant items and gaps: :class:`~sightline.evaluation.statistics.Statistics`.

    ``tables`` (2, G + 1): at [r], 1 / log2(1 + r) and the sum of 1 / i up to r. ``table`` (Q, L + 5, L): rows 0 to L - 1
    are ``precision``, then ``discount``, ``precision_at_r``, ``set_precision``, ``found_at_r`` and ``asi`` by level.
    ``gap`` becomes the places.
    """
    n_levels = table.shape[2]
    discount, harmonic = tables[0], tables[1]
    seen = np.zeros(n_levels)  # of this very level
    above = np.zeros(n_levels)  # of this level and finer
    n_above = np.zeros(n_levels + 1, np.int64)
    running = np.zeros(n_levels)
    for q in range(len(n_found)):
        n, k, before = n_found[q], 0, 0
        seen[:], above[:], running[:] = 0, 0, 0.0
        sums, levels, places, firsts = table[q], level[q], gap[q], first_place[q]
        for i in range(n):
            counts[q, levels[i]] += 1
        for m in range(n_levels - 1, -1, -1):
            n_above[m] = n_above[m + 1] + counts[q, m]
        for i in range(n):
            before += places[i]
            places[i] = i + 1 + before
        # Up to the last place that cut metrics look at.
        i = 0
        while i < n and (k < len(ks) or places[i] <= n):
            r, a = places[i], levels[i]
            share = 1.0 / r
            while k < len(ks) and ks[k] < r:
                at_ks[q, k, 0], at_ks[q, k, 1], at_ks[q, k, 2] = seen, running, sums[n_levels]
                k += 1
            seen[a] += 1
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
            i += 1
        for rest in range(i, n):
            r, a = places[rest], levels[rest]
            share = 1.0 / r
            seen[a] += 1
            for m in range(n_levels):
                sums[a, m] += seen[m] * share
            sums[n_levels, a] += discount[r]
        for i in range(n - 1, -1, -1):
            firsts[levels[i]] = places[i]
        while k < len(ks):
            at_ks[q, k, 0], at_ks[q, k, 1], at_ks[q, k, 2] = seen, running, sums[n_levels]
            k += 1
        if by_counting:
            _count_ties(n, found[q], levels, places, discount, sums)


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
    tile, levels, begin, end, n_found, found, level, gap, start, scale, span, spare, spare_level, crowd, buckets,
    waiting, tables, ks, by_counting, table, first_place, at_ks, counts,
):  # fmt: skip
    """All steps for a tile of whole rows, query by query: one row of state, which stays in the cache, serves all."""
    for q in range(len(begin)):
        n_found[0] = 0
        one = slice(q, q + 1)
        if len(levels) > 0:
            gather_levels(tile[one], levels[one], n_found, found, level)
        else:
            gather_intervals(tile[one], 0, begin[one], end[one], n_found, found, level)
        gap[0, : n_found[0] + 1] = 0
        sort_rows(n_found, found, level, start, scale, span, spare, spare_level, buckets)
        count_tile(
            tile[one],
            0,
            begin[one, 0],
            end[one, 0],
            n_found,
            found,
            gap,
            start,
            scale,
            span,
            crowd,
            buckets,
            waiting,
        )
        finish_rows(
            n_found, found, level, gap, tables, ks, by_counting, table[one], first_place[one], at_ks[one], counts[one]
        )
