"""Whole vectors of float32 inside compiled kernels: loops that numba would leave scalar, written as such.

:func:`vector_kernel` makes a function for compiled code out of Python that describes its vector instructions. The arrays it
works on have room for a whole number of vectors.
"""

from collections.abc import Callable
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 16 if llvm.get_host_cpu_features().get("avx512f") else 8  # numbers in a vector
FLOATS = ir.VectorType(ir.FloatType(), LANES)
BYTES = ir.VectorType(ir.IntType(8), LANES)
INTS = ir.VectorType(ir.IntType(32), LANES)
FUSE = ("contract",)
POWER_OF_TWO = [  # 2 ** f for f in [-0.5, 0.5], to 2e-9 of its value
    1.5345668882592504e-4, 1.3399930057876874e-3, 9.61848948915553e-3, 5.5503287805816655e-2,
    2.4022646885718885e-1, 6.931472057350233e-1, 1.0,
]  # fmt: skip
SMALLEST = -125.0  # of a power of two: the result stays a normal number


class Vectors:
    """The instructions a kernel is made of; values are vectors, offsets count elements."""

    def __init__(self, builder: Any) -> None:
        self.builder = builder

    def number(self, value: float) -> Any:
        """A constant in every lane."""
        return ir.Constant(FLOATS, [ir.Constant(ir.FloatType(), value)] * LANES)

    def spread(self, scalar: Any) -> Any:
        """A float32 of the caller's in every lane."""
        kind = ir.VectorType(scalar.type, LANES)
        first = self.builder.insert_element(ir.Constant(kind, ir.Undefined), scalar, ir.Constant(ir.IntType(32), 0))
        lanes = ir.Constant(INTS, [0] * LANES)
        return self.builder.shuffle_vector(first, ir.Constant(kind, ir.Undefined), lanes)

    def load(self, pointer: Any, offset: Any) -> Any:
        place, kind = self._place(pointer, offset)
        return self.builder.load(place, align=kind)

    def store(self, value: Any, pointer: Any, offset: Any) -> None:
        place, kind = self._place(pointer, offset)
        self.builder.store(value, place, align=kind)

    def _place(self, pointer: Any, offset: Any) -> tuple[Any, int]:
        one_byte = pointer.type.pointee == ir.IntType(8)
        kind = BYTES if one_byte else FLOATS
        return self.builder.bitcast(self.builder.gep(pointer, [offset]), kind.as_pointer()), 1 if one_byte else 4

    def add(self, left: Any, right: Any) -> Any:
        return self.builder.fadd(left, right, flags=FUSE)

    def subtract(self, left: Any, right: Any) -> Any:
        return self.builder.fsub(left, right, flags=FUSE)

    def multiply(self, left: Any, right: Any) -> Any:
        return self.builder.fmul(left, right, flags=FUSE)

    def multiply_add(self, left: Any, right: Any, addend: Any) -> Any:
        return self.add(self.multiply(left, right), addend)

    def polynomial(self, z: Any, coefficients: list[float]) -> Any:
        """The constant term is the last."""
        value = self.number(coefficients[0])
        for coefficient in coefficients[1:]:
            value = self.multiply_add(value, z, self.number(coefficient))
        return value

    def dot(self, values: list[Any], coefficients: list[Any]) -> Any:
        """Sum of products, in two chains."""
        chains = [self.multiply(values[0], coefficients[0]), self.multiply(values[1], coefficients[1])]
        for i in range(2, len(values)):
            chains[i % 2] = self.multiply_add(values[i], coefficients[i], chains[i % 2])
        return self.add(*chains)

    def exponential(self, y: Any) -> Any:
        """``2 ** y`` for y <= 0, to 1e-7 of its value; nothing smaller than ``2 ** SMALLEST``."""
        builder = self.builder
        lowest = self.number(SMALLEST)
        y = builder.select(builder.fcmp_ordered(">", y, lowest), y, lowest)
        # Adding 1.5 * 2**23 leaves the nearest whole number in the last bits of the sum.
        magic = self.number(12582912.0)
        shifted = builder.fadd(y, magic)
        part = builder.fsub(y, builder.fsub(shifted, magic))
        power = self.polynomial(part, POWER_OF_TWO)
        exponent = builder.shl(builder.bitcast(shifted, INTS), ir.Constant(INTS, [23] * LANES))
        return builder.bitcast(builder.add(builder.bitcast(power, INTS), exponent), FLOATS)

    def where(self, condition: Any, left: Any, right: Any) -> Any:
        return self.builder.select(condition, left, right)

    def total(self, value: Any) -> Any:
        """Sum over the lanes, as a float32."""
        half = LANES // 2
        while half:
            places = ir.Constant(INTS, [(i + half) % LANES for i in range(LANES)])
            value = self.builder.fadd(value, self.builder.shuffle_vector(value, value, places))
            half //= 2
        return self.builder.extract_element(value, ir.Constant(ir.IntType(32), 0))

    def variable(self, value: Any) -> Any:
        """A place in a register whose value changes from one turn of a loop to the next."""
        place = cgutils.alloca_once(self.builder, FLOATS)
        self.builder.store(value, place)
        return place


def vector_kernel(describe: Callable[..., Any], returns_float: bool = False) -> Any:
    """A function for compiled code, from one that describes its instructions.

    Args:
        describe: takes :class:`Vectors` and the arguments: a pointer for an array, a value for a number.
        returns_float: it gives back a float32; otherwise nothing.
    """

    @intrinsic
    def kernel(typing_context, *kinds):
        def generate(context, builder, signature, values):
            parts = cgutils.unpack_tuple(builder, values[0])
            operands = [
                context.make_array(kind)(context, builder, part).data if isinstance(kind, types.Array) else part
                for kind, part in zip(kinds, parts, strict=True)
            ]
            result = describe(Vectors(builder), *operands)
            return result if returns_float else context.get_dummy_value()

        together = types.StarArgTuple.from_types(kinds)
        return (types.float32 if returns_float else types.void)(together), generate

    return kernel
