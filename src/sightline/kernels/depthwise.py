"""The backward passes of a depthwise convolution and of a batch norm with fixed statistics, channels last."""

from typing import Any

from numba import njit, prange

from sightline.kernels.vectors import LANES, Vectors, vector_kernel

BLOCK = 32  # channels that one thread works on at a time: two lines of the cache
CHANNELS = 16  # their number is a multiple of this: whole vectors on every processor


def _describe_tap(
    on: Vectors, slopes: Any, slope: Any, pixels: Any, targets: Any, pixel: Any, taps: Any, sums: Any, tap: Any
) -> None:
    """One tap of a kernel between one pixel of the result and one of the image, for a vector of channels."""
    value = on.load(slopes, slope)
    on.store(on.multiply_add(value, on.load(taps, tap), on.load(targets, pixel)), targets, pixel)
    on.store(on.multiply_add(value, on.load(pixels, pixel), on.load(sums, tap)), sums, tap)


_add_tap = vector_kernel(_describe_tap)


@njit(cache=True, error_model="numpy", parallel=True)
def fill_gradients(images, gradient, weight, stride, padding, for_images, for_weight):
    """Channels are the last axis of all arrays; a kernel's taps are its first two. Adds to the last array."""
    n, height, width, n_channels = images.shape
    out_height, out_width = gradient.shape[1:3]
    tall, wide = weight.shape[:2]
    for block in prange(-(-n_channels // BLOCK)):
        start, stop = block * BLOCK, min(n_channels, (block + 1) * BLOCK)
        for i in range(n):
            for_images[i, :, :, start:stop] = 0  # here, where it stays in the cache
            for out_y in range(out_height):
                top = out_y * stride[0] - padding[0]
                for out_x in range(out_width):
                    left = out_x * stride[1] - padding[1]
                    slope = ((i * out_height + out_y) * out_width + out_x) * n_channels
                    for tap_y in range(max(0, -top), min(tall, height - top)):
                        for tap_x in range(max(0, -left), min(wide, width - left)):
                            pixel = ((i * height + top + tap_y) * width + left + tap_x) * n_channels
                            tap = (tap_y * wide + tap_x) * n_channels
                            for c in range(start, stop, LANES):
                                _add_tap(gradient, slope + c, images, for_images, pixel + c, weight, for_weight, tap + c)


def _describe_pixel(
    on: Vectors,
    slopes: Any,
    images: Any,
    targets: Any,
    place: Any,
    scale: Any,
    mean: Any,
    sums: Any,
    spreads: Any,
    channel: Any,
) -> None:
    """One pixel of a batch norm, for a vector of channels."""
    value = on.load(slopes, place)
    on.store(on.multiply(value, on.load(scale, channel)), targets, place)
    on.store(on.add(value, on.load(sums, channel)), sums, channel)
    distance = on.subtract(on.load(images, place), on.load(mean, channel))
    on.store(on.multiply_add(value, distance, on.load(spreads, channel)), spreads, channel)


_add_pixel = vector_kernel(_describe_pixel)


@njit(cache=True, error_model="numpy", parallel=True)
def fill_norm_gradients(images, gradient, scale, mean, for_images, sums, spreads):
    """Channels are the last axis of all arrays. Adds to the last two, which have a row for each image."""
    n, height, width, n_channels = images.shape
    for i in prange(n):
        own_sums, own_spreads = sums[i], spreads[i]
        for pixel in range(i * height * width, (i + 1) * height * width):
            for c in range(0, n_channels, LANES):
                place = pixel * n_channels + c
                _add_pixel(gradient, images, for_images, place, scale, mean, own_sums, own_spreads, c)
