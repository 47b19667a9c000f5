"""The backward passes of a depthwise convolution and of a batch norm with fixed statistics.

Channels are the last axis of all arrays, and the innermost loop: it becomes vectors. Threads share the images.
"""

import numpy as np
from numba import njit, prange

PARTS = 32  # at most, of the images; not the number of threads, which would change the order of the sums


@njit(cache=True, error_model="numpy", fastmath={"contract"}, parallel=True)
def fill_gradients(images, gradient, weight, stride, padding, for_images):
    """Fill the images' gradient and return the kernels'; a kernel's taps are the first two axes of ``weight``."""
    n, height, width, n_channels = images.shape
    out_height, out_width = gradient.shape[1:3]
    tall, wide = weight.shape[:2]
    n_parts = min(n, PARTS)
    sums = np.zeros((n_parts, tall, wide, n_channels), np.float32)
    for part in prange(n_parts):
        for i in range(part * n // n_parts, (part + 1) * n // n_parts):
            for_images[i] = 0  # here, where it stays in the cache
            for out_y in range(out_height):
                top = out_y * stride[0] - padding[0]
                for out_x in range(out_width):
                    left = out_x * stride[1] - padding[1]
                    for tap_y in range(max(0, -top), min(tall, height - top)):
                        for tap_x in range(max(0, -left), min(wide, width - left)):
                            y, x = top + tap_y, left + tap_x
                            for c in range(n_channels):
                                slope = gradient[i, out_y, out_x, c]
                                for_images[i, y, x, c] += slope * weight[tap_y, tap_x, c]
                                sums[part, tap_y, tap_x, c] += slope * images[i, y, x, c]
    return sums.sum(0)


@njit(cache=True, error_model="numpy", fastmath={"contract"}, parallel=True)
def fill_norm_gradients(images, gradient, scale, mean, for_images, sums, spreads):
    """Fill the images' gradient; add that of bias and weight to the last two, which have a row for each image."""
    n, height, width, n_channels = images.shape
    for i in prange(n):
        for y in range(height):
            for x in range(width):
                for c in range(n_channels):
                    slope = gradient[i, y, x, c]
                    for_images[i, y, x, c] = slope * scale[c]
                    sums[i, c] += slope
                    spreads[i, c] += slope * (images[i, y, x, c] - mean[c])
