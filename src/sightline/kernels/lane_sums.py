"""Sums of a sigmoid and its slope along a sorted list, for every place of the list at once.

With ``z = exp(-gap / tau)`` the sigmoid of a negative gap is ``z / (1 + z)`` and its slope ``z / (1 + z)**2``, both
polynomials in z without constant term, to 1.6e-6 and 1.4e-5 of their value. So all that is needed at a place are the sums
of ``z, z**2 ... z**8`` over the items below it (or above), and moving to the next place multiplies them by powers of one
number. To keep a vector unit busy the list is cut into pieces of equal length, one a lane: each piece is walked from a
start of zero, what reaches its end is carried from piece to piece, and each is walked again from its true start.

A list of n places is held by ``n_steps`` rows of ``n_lanes`` columns: place i is in row ``i % n_steps`` of column
``i // n_steps``.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils

from sightline.kernels.vectors import LANES, Vectors, vector_kernel

DEGREE = 8
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
TINY = 1e-30  # added where a number could become denormal, which takes a processor a hundred times as long
NOT_AN_ITEM = 127  # the level of a place that holds none

Read = Callable[..., None]


def _walk(upwards: bool, read: Read | None, dropping: bool = False) -> Any:
    """A walk along a tile of pieces; without ``read`` from zero, leaving what reaches the end in ``states``.

    With ``dropping`` a place may also end what an item ``delta`` below began: ``drops`` is added to the d-th sum times
    ``fades[d]``, and to a ninth sum, which does not decay.
    """

    def describe(v: Vectors, decays: Any, gains: Any, drops: Any, fades: Any, n_steps: Any, n_lanes: Any, tile: Any,
                 states: Any, *operands: Any) -> None:  # fmt: skip
        builder = v.builder
        n_states = DEGREE + dropping
        lines = [builder.add(tile, builder.mul(n_lanes, ir.Constant(n_lanes.type, d))) for d in range(n_states)]
        sums = [v.variable(v.number(0.0) if read is None else v.load(states, line)) for line in lines]
        tiny = v.number(TINY)
        fade = [v.spread(builder.load(builder.gep(fades, [ir.Constant(tile.type, d)]))) for d in range(DEGREE * dropping)]
        with cgutils.for_range(builder, n_steps) as loop:
            step = loop.index if upwards else builder.sub(builder.sub(n_steps, loop.index), ir.Constant(tile.type, 1))
            place = builder.add(builder.mul(step, n_lanes), tile)
            z, gain = v.load(decays, place), v.load(gains, place)
            values = [builder.load(register) for register in sums]
            powers = [z]
            for _ in range(1, DEGREE):
                powers.append(v.multiply_add(powers[-1], z, tiny))

            def decayed(values: list[Any]) -> list[Any]:
                kept = [v.multiply_add(value, power, tiny) for value, power in zip(values, powers, strict=False)]
                return kept + values[DEGREE:]

            if upwards:
                values = decayed(values)
            if read is not None:
                read(v, values, place, *operands)
            if dropping:
                drop = v.load(drops, place)
                grown = [v.multiply_add(drop, fade[d], v.add(values[d], gain)) for d in range(DEGREE)]
                values = [*grown, v.subtract(values[DEGREE], drop)]
            else:
                values = [v.add(value, gain) for value in values]
            if not upwards:
                values = decayed(values)
            for register, value in zip(sums, values, strict=True):
                builder.store(value, register)
        if read is None:
            for register, line in zip(sums, lines, strict=True):
                v.store(builder.load(register), states, line)

    return vector_kernel(describe)


def _constants(v: Vectors, numbers: list[float]) -> list[Any]:
    return [v.number(number) for number in numbers]


def _read_below(v: Vectors, sums: list[Any], place: Any, values: Any, slopes: Any) -> None:
    v.store(v.dot(sums, _constants(v, VALUE)), values, place)
    v.store(v.dot(sums, _constants(v, SLOPE)), slopes, place)


def _read_above(v: Vectors, sums: list[Any], place: Any, values: Any, slopes: Any) -> None:
    v.store(v.subtract(v.load(values, place), v.dot(sums, _constants(v, VALUE))), values, place)
    v.store(v.add(v.load(slopes, place), v.dot(sums, _constants(v, SLOPE))), slopes, place)


def _read_above_and_far(v: Vectors, sums: list[Any], place: Any, values: Any, slopes: Any, fades: Any, levels: Any) -> None:
    """At a place that is no item: the sums as they are ``delta`` further down."""
    kind = v.load(levels, place)
    no_item = v.builder.icmp_signed("==", kind, ir.Constant(kind.type, [NOT_AN_ITEM] * LANES))
    fade = [v.spread(v.builder.load(v.builder.gep(fades, [ir.Constant(place.type, d)]))) for d in range(DEGREE)]
    faded = [v.multiply_add(value, v.where(no_item, factor, v.number(1.0)), v.number(TINY))
             for value, factor in zip(sums, fade, strict=True)]  # fmt: skip
    value, slope = v.dot(faded, _constants(v, VALUE)), v.dot(faded, _constants(v, SLOPE))
    v.store(v.where(no_item, value, v.subtract(v.load(values, place), value)), values, place)
    v.store(v.where(no_item, slope, v.add(v.load(slopes, place), slope)), slopes, place)


def _read_slope(v: Vectors, sums: list[Any], place: Any, sources: Any, slopes: Any) -> None:
    slope = v.dot(sums, _constants(v, SLOPE))
    v.store(v.multiply_add(slope, v.load(sources, place), v.load(slopes, place)), slopes, place)


def _read_slope_and_line(v: Vectors, sums: list[Any], place: Any, sources: Any, slopes: Any, line: Any) -> None:
    slope = v.multiply_add(sums[DEGREE], v.spread(line), v.dot(sums[:DEGREE], _constants(v, SLOPE)))
    v.store(v.multiply_add(slope, v.load(sources, place), v.load(slopes, place)), slopes, place)


end_upwards, end_downwards, end_dropping = _walk(True, None), _walk(False, None), _walk(True, None, dropping=True)
read_below, read_above = _walk(True, _read_below), _walk(False, _read_above)
read_above_and_far = _walk(False, _read_above_and_far)
read_slope_below, read_slope_above = _walk(True, _read_slope), _walk(False, _read_slope)
read_slope_and_line = _walk(True, _read_slope_and_line, dropping=True)


def _describe_decays(v: Vectors, gaps: Any, n_vectors: Any, sharpness: Any, decays: Any) -> None:
    scale = v.multiply(v.spread(sharpness), v.number(-1.4426950408889634))
    with cgutils.for_range(v.builder, n_vectors) as loop:
        place = v.builder.mul(loop.index, ir.Constant(loop.index.type, LANES))
        v.store(v.exponential(v.multiply(v.load(gaps, place), scale)), decays, place)


fill_decays = vector_kernel(_describe_decays)


def _describe_chosen(lower: bool) -> Any:
    def describe(v: Vectors, levels: Any, n_vectors: Any, level: Any, chosen: Any) -> None:
        wanted = v.spread(v.builder.trunc(level, ir.IntType(8)))
        with cgutils.for_range(v.builder, n_vectors) as loop:
            place = v.builder.mul(loop.index, ir.Constant(loop.index.type, LANES))
            match = v.builder.icmp_signed("<" if lower else "==", v.load(levels, place), wanted)
            v.store(v.where(match, v.number(1.0), v.number(0.0)), chosen, place)

    return vector_kernel(describe)


fill_lower, fill_equal = _describe_chosen(lower=True), _describe_chosen(lower=False)


@njit(cache=True, error_model="numpy", fastmath={"contract"})
def carry(states, wholes, n_lanes, upwards, dropping):
    """What reaches each piece's end to what each begins with; ``wholes`` is the decay over a piece."""
    zero = np.float32(0.0)
    tiny = np.float32(TINY)
    a, b, c, d, e, f, g, h, last = zero, zero, zero, zero, zero, zero, zero, zero, zero
    for i in range(n_lanes):
        lane = i if upwards else n_lanes - 1 - i
        z = wholes[lane]
        z2 = z * z + tiny
        z3 = z2 * z + tiny
        z4 = z2 * z2 + tiny
        end_a, end_b, end_c, end_d = states[0, lane], states[1, lane], states[2, lane], states[3, lane]
        end_e, end_f, end_g, end_h = states[4, lane], states[5, lane], states[6, lane], states[7, lane]
        states[0, lane], states[1, lane], states[2, lane], states[3, lane] = a, b, c, d
        states[4, lane], states[5, lane], states[6, lane], states[7, lane] = e, f, g, h
        a = a * z + end_a
        b = b * z2 + end_b
        c = c * z3 + end_c
        d = d * z4 + end_d
        e = e * (z4 * z + tiny) + end_e
        f = f * (z4 * z2 + tiny) + end_f
        g = g * (z4 * z3 + tiny) + end_g
        h = h * (z4 * z4 + tiny) + end_h
        if dropping:
            end_last = states[8, lane]
            states[8, lane] = last
            last += end_last
