"""Sums of a sigmoid and its slope along a sorted list, for every place of the list at once.

With ``z = exp(-gap / tau)`` the sigmoid of a negative gap is ``z / (1 + z)`` and its slope ``z / (1 + z)**2``, both
polynomials in z without constant term, to 1.6e-6 and 1.4e-5 of their value. So all that a place takes are the sums of
``z, z**2 ... z**8`` over the items below it (or above), and moving to the next place multiplies them by powers of one
number. To keep a vector unit busy the list is cut into pieces of equal length, one a lane: each piece is walked from a
start of zero, what reaches its end is carried from piece to piece, and each is walked again from its true start.

A list of n places is held by ``n_steps`` rows of ``n_lanes`` columns: place i is in row ``i % n_steps`` of column
``i // n_steps``. A walk takes a tile of ``LANES`` columns at a time; the sums of a tile, ``N_SUMS`` rows of ``LANES``, are
together in ``states``: the compiler sees then that no two overlap, and makes vectors of the loop over the lanes. Sums that
stay in registers all along a walk, by hand-written instructions, made a whole loss 1.1 to 1.3 times as fast: not worth it.
"""

import numpy as np
from numba import njit

from sightline.kernels.few_targets import LOG2_E, ONE, ZERO, power_of_two

LANES = 16  # of a tile: one vector or two, by processor
DEGREE = 8
N_SUMS = DEGREE + 1
# z / (1 + z) = z * (VALUE[0] + VALUE[1] z + ...), the least relative error on [0, 1] among those exact at z = 1: a step
# upwards, however small, counts at least one half.
VALUE = [
    0.9999984140683411, -0.9997973572597808, 0.9956156969334018, -0.9624837095595331,
    0.8335726254833036, -0.5612041616977891, 0.24240645814467207, -0.04810796611261554,
]  # fmt: skip
SLOPE = [  # the same for z / (1 + z)**2
    0.9999861943492291, -1.998376210771728, 2.966697774589413, -3.724211551188805,
    3.7934913999306046, -2.7948206211194933, 1.263177505245626, -0.25594449103484557,
]  # fmt: skip
VALUES, SLOPES = tuple(map(np.float32, VALUE)), tuple(map(np.float32, SLOPE))
TINY = np.float32(1e-30)  # added where a number could become denormal, which takes a processor a hundred times as long
NOT_AN_ITEM = 127  # the level of a place that holds none


@njit(cache=True, error_model="numpy")
def aligned(n):
    """So many float32 from a line of the cache on: a vector that lies across two is stored and read back slowly."""
    raw = np.empty(n + LANES, np.float32)
    skipped = (-raw.ctypes.data // 4) % LANES
    return raw[skipped : skipped + n]


@njit(cache=True, error_model="numpy", fastmath={"contract"}, inline="always")
def _read(states, at):
    """The sums of one lane."""
    return (states[at], states[at + LANES], states[at + 2 * LANES], states[at + 3 * LANES],
            states[at + 4 * LANES], states[at + 5 * LANES], states[at + 6 * LANES], states[at + 7 * LANES])  # fmt: skip


@njit(cache=True, error_model="numpy", fastmath={"contract"}, inline="always")
def _write(states, at, sums):
    states[at], states[at + LANES], states[at + 2 * LANES], states[at + 3 * LANES] = sums[0], sums[1], sums[2], sums[3]
    at += 4 * LANES
    states[at], states[at + LANES], states[at + 2 * LANES], states[at + 3 * LANES] = sums[4], sums[5], sums[6], sums[7]


@njit(cache=True, error_model="numpy", fastmath={"contract"}, inline="always")
def _decayed(sums, z):
    """Each sum times its power of z."""
    z2 = z * z + TINY
    z3 = z2 * z + TINY
    z4 = z2 * z2 + TINY
    return (sums[0] * z + TINY, sums[1] * z2 + TINY, sums[2] * z3 + TINY, sums[3] * z4 + TINY,
            sums[4] * (z4 * z + TINY) + TINY, sums[5] * (z4 * z2 + TINY) + TINY,
            sums[6] * (z4 * z3 + TINY) + TINY, sums[7] * (z4 * z4 + TINY) + TINY)  # fmt: skip


@njit(cache=True, error_model="numpy", fastmath={"contract"}, inline="always")
def _added(sums, more):
    return (sums[0] + more[0], sums[1] + more[1], sums[2] + more[2], sums[3] + more[3],
            sums[4] + more[4], sums[5] + more[5], sums[6] + more[6], sums[7] + more[7])  # fmt: skip


@njit(cache=True, error_model="numpy", fastmath={"contract"}, inline="always")
def _grown(sums, gain):
    return _added(sums, (gain, gain, gain, gain, gain, gain, gain, gain))


@njit(cache=True, error_model="numpy", fastmath={"contract"}, inline="always")
def _scaled(sums, c):
    """Each sum times its coefficient, or each coefficient times its fade."""
    return (sums[0] * c[0], sums[1] * c[1], sums[2] * c[2], sums[3] * c[3],
            sums[4] * c[4], sums[5] * c[5], sums[6] * c[6], sums[7] * c[7])  # fmt: skip


@njit(cache=True, error_model="numpy", fastmath={"contract"}, inline="always")
def _polynomial(sums, c):
    """Sum of products, in two chains: each of them waits half as long for the numbers before."""
    even = sums[0] * c[0] + TINY + sums[2] * c[2] + sums[4] * c[4] + sums[6] * c[6]
    odd = sums[1] * c[1] + TINY + sums[3] * c[3] + sums[5] * c[5] + sums[7] * c[7]
    return even + odd


@njit(cache=True, error_model="numpy", fastmath={"contract"}, inline="always")
def _dropped(sums, drop, fades):
    """What an item ``delta`` below began, and now ends."""
    return _added(sums, _scaled(fades, (drop, drop, drop, drop, drop, drop, drop, drop)))


@njit(cache=True, error_model="numpy", fastmath={"contract"})
def end_upwards(decays, gains, n_steps, n_lanes, states):
    """Walk each piece up from zero; leave what reaches its end."""
    states[: n_lanes * N_SUMS] = 0.0
    for tile in range(0, n_lanes, LANES):
        mine = states[tile * N_SUMS : (tile + LANES) * N_SUMS]
        for step in range(n_steps):
            # Unsigned, here and below: an index that might be negative would be looked at one by one.
            place = np.uint64(step * n_lanes + tile)
            for i in range(LANES):
                at = np.uint64(i)
                here = place + at
                sums = _read(mine, at)
                _write(mine, at, _grown(_decayed(sums, decays[here]), gains[here]))


@njit(cache=True, error_model="numpy", fastmath={"contract"})
def end_dropping(decays, gains, drops, fades, n_steps, n_lanes, states):
    """:func:`end_upwards` where a place may end what an item ``delta`` below began.

    ``drops`` is added to the d-th sum times ``fades[d]``, and taken from a ninth sum, which does not decay.
    """
    states[: n_lanes * N_SUMS] = 0.0
    for tile in range(0, n_lanes, LANES):
        mine = states[tile * N_SUMS : (tile + LANES) * N_SUMS]
        for step in range(n_steps):
            place = np.uint64(step * n_lanes + tile)
            for i in range(LANES):
                at = np.uint64(i)
                here = place + at
                sums = _decayed(_read(mine, at), decays[here])
                _write(mine, at, _dropped(_grown(sums, gains[here]), drops[here], fades))
                mine[at + DEGREE * LANES] -= drops[here]


@njit(cache=True, error_model="numpy")
def rows_downwards(n_steps, n_lanes):
    """Where each row begins, the last first.

    The walks down read it: of a place that it works out itself the compiler asks at every row whether arrays overlap, gets
    the bounds of a walk down wrong, and falls back to one number at a time.
    """
    rows = np.empty(n_steps, np.uint64)
    for step in range(n_steps):
        rows[step] = (n_steps - 1 - step) * n_lanes
    return rows


@njit(cache=True, error_model="numpy", fastmath={"contract"})
def end_downwards(decays, gains, rows, n_lanes, states):
    """Walk each piece down from zero; leave what reaches its end."""
    states[: n_lanes * N_SUMS] = 0.0
    for tile in range(0, n_lanes, LANES):
        mine = states[tile * N_SUMS : (tile + LANES) * N_SUMS]
        for row in rows:
            place = row + np.uint64(tile)
            for i in range(LANES):
                at = np.uint64(i)
                here = place + at
                sums = _grown(_read(mine, at), gains[here])
                _write(mine, at, _decayed(sums, decays[here]))


@njit(cache=True, error_model="numpy", fastmath={"contract"})
def read_below(decays, gains, n_steps, n_lanes, states, values, slopes):
    """Fill in at each place the sums over the items below."""
    for tile in range(0, n_lanes, LANES):
        mine = states[tile * N_SUMS : (tile + LANES) * N_SUMS]
        for step in range(n_steps):
            place = np.uint64(step * n_lanes + tile)
            for i in range(LANES):
                at = np.uint64(i)
                here = place + at
                sums = _decayed(_read(mine, at), decays[here])
                values[here] = _polynomial(sums, VALUES)
                slopes[here] = _polynomial(sums, SLOPES)
                _write(mine, at, _grown(sums, gains[here]))


@njit(cache=True, error_model="numpy", fastmath={"contract"})
def read_above(decays, gains, far, fades, levels, rows, n_lanes, states, values, slopes):
    """Add at each item the sums over the items above; at a place that is none, fill them in as ``delta`` further down."""
    faded_values, faded_slopes = _scaled(fades, VALUES), _scaled(fades, SLOPES)
    for tile in range(0, n_lanes, LANES):
        mine = states[tile * N_SUMS : (tile + LANES) * N_SUMS]
        for row in rows:
            place = row + np.uint64(tile)
            for i in range(LANES):
                at = np.uint64(i)
                here = place + at
                sums = _read(mine, at)
                value = values[here] - _polynomial(sums, VALUES)
                slope = slopes[here] + _polynomial(sums, SLOPES)
                if far:
                    item = levels[here] != NOT_AN_ITEM
                    value = value if item else _polynomial(sums, faded_values)
                    slope = slope if item else _polynomial(sums, faded_slopes)
                values[here], slopes[here] = value, slope
                _write(mine, at, _decayed(_grown(sums, gains[here]), decays[here]))


@njit(cache=True, error_model="numpy", fastmath={"contract"})
def read_slope_below(decays, gains, drops, fades, n_steps, n_lanes, states, sources, line, slopes):
    """Add at the sources the slopes of the items below and, of those further down than ``delta``, the line's."""
    for tile in range(0, n_lanes, LANES):
        mine = states[tile * N_SUMS : (tile + LANES) * N_SUMS]
        for step in range(n_steps):
            place = np.uint64(step * n_lanes + tile)
            for i in range(LANES):
                at = np.uint64(i)
                here = place + at
                sums = _decayed(_read(mine, at), decays[here])
                last = mine[at + DEGREE * LANES]
                slopes[here] += sources[here] * (_polynomial(sums, SLOPES) + last * line)
                _write(mine, at, _dropped(_grown(sums, gains[here]), drops[here], fades))
                mine[at + DEGREE * LANES] = last - drops[here]


@njit(cache=True, error_model="numpy", fastmath={"contract"})
def read_slope_above(decays, gains, rows, n_lanes, states, sources, slopes):
    """Add at the sources the slopes of the items above."""
    for tile in range(0, n_lanes, LANES):
        mine = states[tile * N_SUMS : (tile + LANES) * N_SUMS]
        for row in rows:
            place = row + np.uint64(tile)
            for i in range(LANES):
                at = np.uint64(i)
                here = place + at
                sums = _read(mine, at)
                slopes[here] += sources[here] * _polynomial(sums, SLOPES)
                _write(mine, at, _decayed(_grown(sums, gains[here]), decays[here]))


@njit(cache=True, error_model="numpy", fastmath={"contract"})
def fill_decays(gaps, n, sharpness, decays):
    """``exp(-gap / tau)``."""
    scale = sharpness * -LOG2_E
    for i in range(n):
        decays[i] = power_of_two(gaps[i] * scale)


@njit(cache=True, error_model="numpy")
def fill_chosen(levels, n, lower, level, chosen):
    """1 at the items of a lower level, or of this level; 0 elsewhere."""
    lowest, highest = (np.int8(0), np.int8(level - 1)) if lower else (np.int8(level), np.int8(level))
    for i in range(n):
        chosen[i] = ONE if (levels[i] >= lowest) & (levels[i] <= highest) else ZERO


@njit(cache=True, error_model="numpy", fastmath={"contract"})
def carry(states, wholes, n_lanes, upwards):
    """What reaches each piece's end to what each begins with; ``wholes`` is the decay over a piece."""
    sums = (ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO, ZERO)
    last = ZERO
    for i in range(n_lanes):
        lane = i if upwards else n_lanes - 1 - i
        at = np.uint64(lane // LANES * LANES * N_SUMS + lane % LANES)
        end, end_last = _read(states, at), states[at + DEGREE * LANES]
        _write(states, at, sums)
        states[at + DEGREE * LANES] = last
        sums = _added(_decayed(sums, wholes[lane]), end)
        last += end_last
