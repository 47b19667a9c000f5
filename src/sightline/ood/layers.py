"""Linear layers that take a single query as fast as their weights can be read."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.kernels.row_loops import through_layers
from sightline.kernels.threads import n_chunks, torch_threads

LARGE = 1 << 20  # weights; with fewer, starting threads costs what they save


def linear_layers(
    features: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor] | None = None, slope: float = 1.0
) -> Tensor:
    """``features @ weight.T + bias`` of each layer in turn, what is below 0 then times ``slope``.

    torch multiplies a single row by a matrix on one thread, and more slowly than it could read the matrix. Here all threads
    do, in float32 on a CPU and without a gradient; everything else is torch's. Sums have the same order with any number
    of threads. Weights in bfloat16 take half the time to read; what comes out is of the features' type all the same.

    Args:
        features: (N, D).
        weights: (C, D) of the first layer, like the rest; of the features' type or bfloat16.
        biases: (C,) of the first layer, like the rest; None for none.
        slope: of LeakyReLU; 1 for none.

    Returns:
        (N, C) of the last layer.

    Example:
        >>> linear_layers(torch.tensor([[1.0, 2.0]]), [torch.tensor([[3.0, -4.0]])], [torch.tensor([0.5])], slope=0.2)
        tensor([[-0.9000]])
    """
    if len(features) == 1 and _are_compiled(features, weights):
        half = weights[0].dtype == torch.bfloat16
        tables = tuple(weight.view(torch.uint16 if half else torch.uint32).numpy() for weight in weights)
        offsets = tuple(bias.float().numpy() for bias in biases or [torch.zeros(len(weight)) for weight in weights])
        with torch_threads():
            n_parts, shift = n_chunks(len(weights[-1])), np.uint32(16 if half else 0)
            found = through_layers(features[0].numpy(), tables, offsets, shift, np.float32(slope), n_parts)
        return torch.from_numpy(found)[None]
    for place, weight in enumerate(weights):
        features = F.linear(features, weight.to(features.dtype), biases[place].to(features.dtype) if biases else None)
        features = features if slope == 1 else F.leaky_relu(features, slope)
    return features


def _are_compiled(row: Tensor, weights: Sequence[Tensor]) -> bool:
    """Whether the row goes through the layers in compiled code."""
    if torch.is_grad_enabled() or row.dtype != torch.float32 or sum(weight.numel() for weight in weights) < LARGE:
        return False
    kinds = {weight.dtype for weight in weights}
    return (
        len(kinds) == 1
        and kinds <= {torch.float32, torch.bfloat16}
        and all(table.is_cpu and table.is_contiguous() for table in (row, *weights))
    )
