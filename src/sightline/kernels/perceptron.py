"""One row through linear layers, as fast as their weights can be read."""

from typing import Any

import numpy as np
from llvmlite import ir
from numba import njit, prange, types
from numba.extending import intrinsic


@intrinsic
def _widened(typing: Any, number: Any) -> Any:
    """A float32 as it is, or of the bits of a bfloat16, which are its upper half."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        if number == types.float32:
            return arguments[0]
        word = ir.IntType(32)
        return builder.bitcast(builder.shl(builder.zext(arguments[0], word), ir.Constant(word, 16)), ir.FloatType())

    return types.float32(number), generate


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"}, parallel=True)
def through_layers(row, weights, biases, slope, n_parts):
    for layer in range(len(weights)):
        weight, bias, before = weights[layer], biases[layer], row
        n_outputs, dim = weight.shape
        row = np.empty(n_outputs, np.float32)
        for part in prange(n_parts):
            for i in range(part * n_outputs // n_parts, (part + 1) * n_outputs // n_parts):
                total = np.float32(0.0)
                for d in range(dim):
                    total += _widened(weight[i, d]) * before[d]
                total += _widened(bias[i])
                row[i] = total if total > 0 else slope * total
    return row
