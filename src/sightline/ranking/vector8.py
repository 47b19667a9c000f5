"""Eight float32 numbers at once inside compiled kernels: what numba leaves scalar in the shortest of loops.

Each works on the eight elements of a float32 array that begin at an index.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

VECTOR = ir.VectorType(ir.FloatType(), 8)
CONTRACT = ("contract", "nsz")


def _pointer(context: Any, builder: Any, array_type: Any, array: Any, index: Any) -> Any:
    data = context.make_array(array_type)(context, builder, array).data
    return builder.bitcast(builder.gep(data, [index]), VECTOR.as_pointer())


def _shuffle(builder: Any, first: Any, second: Any, places: list[int]) -> Any:
    return builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(ir.IntType(32), 8), places))


def _spread(builder: Any, value: Any) -> Any:
    empty = ir.Constant(VECTOR, ir.Undefined)
    return _shuffle(builder, builder.insert_element(empty, value, ir.Constant(ir.IntType(32), 0)), empty, [0] * 8)


@intrinsic
def scale8(typing_context, array, at, factors, start, offset):  # type: ignore[no-untyped-def]
    """array[at:at + 8] = array[at:at + 8] * factors[start:start + 8] + offset"""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        values, place, scales, begin, constant = arguments
        pointer = _pointer(context, builder, signature.args[0], values, place)
        scale = builder.load(_pointer(context, builder, signature.args[2], scales, begin), align=4)
        product = builder.fmul(builder.load(pointer, align=4), scale, flags=CONTRACT)
        builder.store(builder.fadd(product, _spread(builder, constant), flags=CONTRACT), pointer, align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, factors, types.intp, types.float32), generate


@intrinsic
def add8(typing_context, array, at, amount):  # type: ignore[no-untyped-def]
    """array[at:at + 8] += amount"""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        values, place, number = arguments
        pointer = _pointer(context, builder, signature.args[0], values, place)
        builder.store(builder.fadd(builder.load(pointer, align=4), _spread(builder, number)), pointer, align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.float32), generate


@intrinsic
def take_powers8(typing_context, array, at, amount, base):  # type: ignore[no-untyped-def]
    """array[at:at + 8] -= amount * (base, base**2 ... base**8)"""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        values, place, number, z = arguments
        pointer = _pointer(context, builder, signature.args[0], values, place)
        one = ir.Constant(VECTOR, [1.0] * 8)
        z2 = builder.fmul(z, z)
        low, mid, high = (_spread(builder, power) for power in (z, z2, builder.fmul(z2, z2)))
        odd = _shuffle(builder, low, mid, [0, 8] * 4)  # z z2 z z2 ...
        twos = _shuffle(builder, one, mid, [0, 0, 8, 8] * 2)  # 1 1 z2 z2 ...
        fours = _shuffle(builder, one, high, [0] * 4 + [8] * 4)
        powers = builder.fmul(builder.fmul(odd, twos), fours)
        taken = builder.fmul(_spread(builder, number), powers, flags=CONTRACT)
        builder.store(builder.fsub(builder.load(pointer, align=4), taken, flags=CONTRACT), pointer, align=4)
        return context.get_dummy_value()

    return types.void(array, types.intp, types.float32, types.float32), generate


@intrinsic
def dot8(typing_context, array, at, weights):  # type: ignore[no-untyped-def]
    """sum(array[at:at + 8] * weights[:8])"""

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        values, place, factors = arguments
        zero = ir.Constant(ir.IntType(64), 0)
        left = builder.load(_pointer(context, builder, signature.args[0], values, place), align=4)
        right = builder.load(_pointer(context, builder, signature.args[2], factors, zero), align=4)
        total = builder.fmul(left, right)
        for half in (4, 2, 1):
            total = builder.fadd(total, _shuffle(builder, total, total, [(i + half) % 8 for i in range(8)]))
        return builder.extract_element(total, ir.Constant(ir.IntType(32), 0))

    return types.float32(array, types.intp, weights), generate
