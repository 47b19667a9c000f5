"""The weights `icons`: the bundled ones with upper stages that learned from drawings, which they rank better."""

import math

import numpy as np
import pytest
from PIL import Image, ImageDraw
from torch import equal

from sightline import Encoder, evaluate
from sightline.models.backbones import BUNDLED, create_backbone

STAR = [(0.5 + r * math.sin(k * math.pi / 5), 0.5 - r * math.cos(k * math.pi / 5)) for k, r in enumerate([0.45, 0.18] * 5)]
SHAPES = {  # corners in a unit square
    "arrow": [(0.1, 0.4), (0.5, 0.4), (0.5, 0.2), (0.9, 0.5), (0.5, 0.8), (0.5, 0.6), (0.1, 0.6)],
    "bolt": [(0.6, 0.1), (0.25, 0.55), (0.47, 0.55), (0.4, 0.9), (0.75, 0.42), (0.53, 0.42)],
    "cross": [
        (x / 10, y / 10)
        for x, y in [(4, 1), (6, 1), (6, 4), (9, 4), (9, 6), (6, 6), (6, 9), (4, 9), (4, 6), (1, 6), (1, 4), (4, 4)]
    ],
    "flag": [(0.2, 0.1), (0.85, 0.2), (0.65, 0.35), (0.85, 0.5), (0.3, 0.5), (0.3, 0.9), (0.2, 0.9)],
    "house": [(0.5, 0.1), (0.9, 0.45), (0.78, 0.45), (0.78, 0.9), (0.22, 0.9), (0.22, 0.45), (0.1, 0.45)],
    "ribbon": [(0.3, 0.1), (0.7, 0.1), (0.7, 0.9), (0.5, 0.7), (0.3, 0.9)],
    "star": STAR,
    "stairs": [(0.1, 0.9), (0.1, 0.7), (0.35, 0.7), (0.35, 0.5), (0.6, 0.5), (0.6, 0.3), (0.9, 0.3), (0.9, 0.9)],
}
STYLES = [  # ground, inside, edge and its width in pixels
    ("white", "white", "black", 3),
    ("white", "black", "black", 1),
    ("white", "orange", "orange", 1),
    ("white", "lightblue", "navy", 6),
    ("darkgreen", "white", "white", 1),
]


@pytest.fixture(scope="module")
def encoder():
    return Encoder.from_pretrained("icons")


def drawn(shape, style, side=96):
    ground, inside, edge, width = style
    image = Image.new("RGB", (side, side), ground)
    corners = [(side * x, side * y) for x, y in SHAPES[shape]]
    ImageDraw.Draw(image).polygon(corners, inside, edge, width)
    return image


def test_shapes_in_other_styles_are_found_better_than_by_imagenets_weights(encoder):
    images = [drawn(shape, style) for shape in SHAPES for style in STYLES]
    labels, encoders = np.repeat(np.arange(len(SHAPES)), len(STYLES)), (encoder, Encoder.from_pretrained("bundled"))
    of_icons, of_photos = (evaluate(one.encode(images, backend="torch"), labels)["map@r"] for one in encoders)
    assert of_icons > of_photos + 0.4, (of_icons, of_photos)  # 1.0 and 0.30


def test_only_upper_stages_differ_from_the_bundled_weights(encoder):
    before, after = create_backbone(BUNDLED, "bundled").state_dict(), create_backbone(BUNDLED, "icons").state_dict()
    changed = {name for name in before if not equal(before[name], after[name])}
    assert {name[:8] for name in changed if name.startswith("blocks")} == {"blocks.4", "blocks.5", "blocks.6"}
    assert not any("running" in name for name in changed)
    assert all(equal(tensor, encoder.backbone.state_dict()[name]) for name, tensor in after.items())
    assert encoder.fingerprint() == "6d74e7ba4686720e9523f34def9ac502"  # galleries hold it
