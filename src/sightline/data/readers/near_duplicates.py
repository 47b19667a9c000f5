"""Find drawings that look alike but for size, margin and colour."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

SIDE = 32
MAX_BITS = 8
MAX_DIFFERENCE = 0.05
LEAST_INK = 0.15
BLOCK = 2048


@dataclass(frozen=True)
class Ink:
    """What the drawing is without its colours.

    Attributes:
        aspect: width of what is drawn, in heights.
        pixels: (32, 32) float32 in [0, 1]: how dark, white being 0 and the darkest 1; cut to what is drawn, in a square.
        hash: 64 bits, one for each of 8 x 8 fields: darker than their mean or not.
    """

    aspect: float
    pixels: NDArray[np.float32]
    hash: np.uint64


def ink_of(image: Image.Image) -> Ink | None:
    """The ink of an image on white; None if it is blank, or so pale that it cannot be seen."""
    darkness = 1 - np.asarray(image.convert("L"), np.float32) / 255
    if darkness.max() < LEAST_INK:
        return None
    rows, columns = (np.flatnonzero((darkness > darkness.max() / 10).any(axis)) for axis in (1, 0))
    cut = darkness[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    height, width = cut.shape
    side = max(height, width)
    square = np.zeros((side, side), np.float32)
    top, left = (side - height) // 2, (side - width) // 2
    square[top : top + height, left : left + width] = cut / cut.max()
    pixels = np.asarray(Image.fromarray(square).resize((SIDE, SIDE), Image.Resampling.BOX))
    fields = pixels.reshape(8, SIDE // 8, 8, SIDE // 8).mean((1, 3)).ravel()
    bits = fields > fields.mean()  # not of frequencies: in a symmetric drawing half of them are 0 and their bits noise
    return Ink(width / height, pixels, np.packbits(bits).view(">u8").astype(np.uint64)[0])


def alike_pairs(inks: list[Ink]) -> list[tuple[int, int]]:
    """The pairs ``(i, j)``, ``i < j``, of near-duplicates: at most 8 of 64 bits and 0.05 of mean darkness apart."""
    hashes = np.array([ink.hash for ink in inks], np.uint64)
    pixels = np.stack([ink.pixels for ink in inks]) if inks else np.empty((0, SIDE, SIDE), np.float32)
    pairs: list[tuple[int, int]] = []
    for start in range(0, len(inks), BLOCK):
        apart = np.bitwise_count(hashes[start : start + BLOCK, None] ^ hashes)
        first, second = np.nonzero(apart <= MAX_BITS)
        first += start
        first, second = first[first < second], second[first < second]
        for part in range(0, len(first), 16 * BLOCK):
            one, other = first[part : part + 16 * BLOCK], second[part : part + 16 * BLOCK]
            near = np.abs(pixels[one] - pixels[other]).mean((1, 2)) <= MAX_DIFFERENCE
            pairs += zip(one[near].tolist(), other[near].tolist(), strict=True)
    return pairs
