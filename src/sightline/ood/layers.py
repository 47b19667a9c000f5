"""Linear layers that take a single query as fast as their weights can be read."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from numba import njit, prange
from torch import Tensor

from sightline.ranking.levels import n_chunks, torch_threads

LARGE = 1 << 20  # weights; with fewer, starting threads costs what they save


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"}, parallel=True)
def _through_layers(row, weights, biases, slope, n_parts):  # type: ignore[no-untyped-def]
    for layer in range(len(weights)):
        weight, bias, before = weights[layer], biases[layer], row
        n_outputs, dim = weight.shape
        row = np.empty(n_outputs, np.float32)
        for part in prange(n_parts):
            for i in range(part * n_outputs // n_parts, (part + 1) * n_outputs // n_parts):
                total = np.float32(0.0)
                for d in range(dim):
                    total += weight[i, d] * before[d]
                total += bias[i]
                row[i] = total if total > 0 else slope * total
    return row


def linear_layers(
    features: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] | None = None, slope: float = 1.0
) -> Tensor:
    """``features @ weight.T + bias`` of each layer in turn, what is below 0 then times ``slope``.

    torch multiplies a single row by a matrix on one thread, and more slowly than it could read the matrix. Here all threads
    do, in float32 on a CPU and without a gradient; everything else is torch's. Sums have the same order with any number
    of threads.

    Args:
        features: (N, D).
        weights: (C, D) of the first layer, like the rest.
        biases: (C,) of the first layer, like the rest; None for none.
        slope: of LeakyReLU; 1 for none.

    Returns:
        (N, C) of the last layer.

    Example:
        >>> linear_layers(torch.tensor([[1.0, 2.0]]), [torch.tensor([[3.0, -4.0]])], [torch.tensor([0.5])], slope=0.2)
        tensor([[-0.9000]])
    """
    if len(features) == 1 and _are_compiled((features, *weights)):
        added = biases or [weight.new_zeros(len(weight)) for weight in weights]
        row, tables = features[0].numpy(), tuple(weight.numpy() for weight in weights)
        offsets = tuple(bias.numpy() for bias in added)
        with torch_threads():
            found = _through_layers(row, tables, offsets, np.float32(slope), n_chunks(len(weights[-1])))
        return torch.from_numpy(found)[None]
    for place, weight in enumerate(weights):
        features = F.linear(features, weight, biases[place] if biases else None)
        features = features if slope == 1 else F.leaky_relu(features, slope)
    return features


def _are_compiled(tables: Sequence[Tensor]) -> bool:
    """Whether the first, a row, goes through the others in compiled code."""
    if torch.is_grad_enabled() or sum(table.numel() for table in tables) < LARGE:
        return False
    return all(table.dtype == torch.float32 and table.is_cpu and table.is_contiguous() for table in tables)
