"""Loops that go once over a table, row by row; and how many threads a compiled loop runs in: as many as torch."""

from collections.abc import Callable
from typing import Any

import numba
import numpy as np
import torch
from numba import njit, prange
from torch import Tensor

DEVICES = ("cpu",)  # whose tensors compiled loops can read


def is_looped(table: Tensor) -> bool:
    """Whether compiled loops may work on the tensor; torch.compile cannot trace them, but breaks its graph around them."""
    return table.device.type in DEVICES


def run_in_torch_threads(kernel: Callable[..., Any], *arguments: Any) -> Any:
    """What a compiled loop returns, run in as many threads as torch uses."""
    n_threads = torch.get_num_threads()
    numba.set_num_threads(min(n_threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    torch.set_num_threads(n_threads)  # numba's start sets the pool they share to all cores
    return kernel(*arguments)


def n_chunks(n_rows: int) -> int:
    """Parts in which a compiled loop works on so many rows."""
    return max(1, min(n_rows, torch.get_num_threads()))


@njit(cache=True, error_model="numpy", parallel=True)
def fill_shared_levels(labels, ref_labels, shared):
    """(Q, G) int8 levels that (L, Q) and (L, G) labels share, from the coarsest, the last, for as long as they match."""
    n_levels, n_queries = labels.shape
    for i in prange(n_queries):
        row = shared[i]
        row[:] = 0
        for depth in range(n_levels):
            own, others = labels[n_levels - 1 - depth, i], ref_labels[n_levels - 1 - depth]
            for j in range(len(row)):
                row[j] += np.int8(row[j] == depth) & np.int8(others[j] == own)


@njit(cache=True, error_model="numpy", parallel=True)
def fill_level_counts(levels, counts):
    """(Q, M) items of each level 0 to M - 1 in the rows of (Q, G) int8 levels."""
    n_rows, n_levels = counts.shape
    for i in prange(n_rows):
        row = levels[i]
        for level in range(n_levels):
            n = np.int32(0)
            for j in range(len(row)):
                n += np.int32(row[j] == level)
            counts[i, level] = n


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"}, parallel=True)
def fill_across(gradients, scaled, scale, across):
    """(B, D) what of each gradient is at a right angle to its unit vector, times the (B, 1) scale."""
    n_rows, dim = gradients.shape
    for i in prange(n_rows):
        along = np.float32(0.0)
        for d in range(dim):
            along += gradients[i, d] * scaled[i, d]
        for d in range(dim):
            across[i, d] = (gradients[i, d] - along * scaled[i, d]) * scale[i, 0]


@njit(cache=True, nogil=True)
def look_up(pixels, values, found):
    """(B, 3, N) the entry of (256, 3) values for each byte of (B, N, 3) pixels."""
    for image in range(len(pixels)):
        for i in range(pixels.shape[1]):
            for channel in range(3):
                found[image, channel, i] = values[pixels[image, i, channel], channel]


@njit(cache=True, nogil=True, error_model="numpy")
def resample(pixels, columns, column_weights, rows, row_weights, n_bits, found):
    """(N, M, 3) weighted means of (H, W, 3) pixels: first along each row, rounded to bytes, then along each column.

    Column j of the result begins at ``columns[j]`` and has ``column_weights[j]``, of which 1 is 2 ** ``n_bits``; rows too.
    """
    n_taps, n_bytes = column_weights.shape[1], 3 * len(columns)
    first, half = rows[0], np.int32(1 << (n_bits - 1))
    strip = np.empty((rows[-1] + row_weights.shape[1] - first, n_bytes), np.uint8)
    wide, totals = np.empty(3 * pixels.shape[1], np.int32), np.empty(n_bytes, np.int32)
    for i in range(len(strip)):
        row = pixels[first + i].reshape(-1)
        for j in range(len(wide)):  # apart from the sums, so that it takes a vector at a time; the rounding too
            wide[j] = row[j]
        for j in range(len(columns)):
            start = 3 * columns[j]
            given, weights = wide[start : start + 3 * n_taps], column_weights[j]
            red = green = blue = half
            for tap in range(n_taps):
                red += weights[tap] * given[3 * tap]
                green += weights[tap] * given[3 * tap + 1]
                blue += weights[tap] * given[3 * tap + 2]
            totals[3 * j], totals[3 * j + 1], totals[3 * j + 2] = red, green, blue
        for j in range(n_bytes):
            strip[i, j] = min(max(totals[j] >> n_bits, 0), 255)
    for i in range(len(rows)):
        totals[:] = half
        for tap in range(row_weights.shape[1]):
            weight, narrow = row_weights[i, tap], strip[rows[i] - first + tap]
            for j in range(n_bytes):
                totals[j] += weight * narrow[j]
        line = found[i].reshape(-1)
        for j in range(n_bytes):
            line[j] = min(max(totals[j] >> n_bits, 0), 255)


@njit(cache=True, error_model="numpy", inline="always")
def _number(bits, shift):
    """The float32 whose upper bits these are: all 32, or the 16 of a bfloat16."""
    return np.uint32(np.uint32(bits) << shift).view(np.float32)


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"}, parallel=True)
def through_layers(row, weights, biases, shift, slope, n_chunks):
    """A float32 row through linear layers, what is below 0 then times ``slope``: as fast as the weights can be read.

    ``weights`` are bits, uint32 with the shift 0 or uint16 with 16; ``biases`` are float32.
    """
    for layer in range(len(weights)):
        weight, bias, before = weights[layer], biases[layer], row
        n_outputs, dim = weight.shape
        row = np.empty(n_outputs, np.float32)
        for chunk in prange(n_chunks):
            for i in range(chunk * n_outputs // n_chunks, (chunk + 1) * n_outputs // n_chunks):
                total = np.float32(0.0)
                for d in range(dim):
                    total += _number(weight[i, d], shift) * before[d]
                total += bias[i]
                row[i] = total if total > 0 else slope * total
    return row
