"""Images at their own size and aspect, at several scales, against the published pipeline step by step."""

import math

import numpy as np
import polars as pl
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from refusals import assert_refused
from sightline.data.manifest import Manifest
from sightline.models.encoder import Encoder
from sightline.models.own_size import SCALES, OwnSize, embed_at_own_size

SIZES = [(300, 100), (90, 210), (300, 100), (64, 64), (200, 120)]


@pytest.fixture(scope="module")
def landmarks(tmp_path_factory):
    """Images of several shapes, the last with a box of 150 x 50."""
    folder, rng = tmp_path_factory.mktemp("landmarks"), np.random.default_rng(0)
    for place, (width, height) in enumerate(SIZES):
        coarse = rng.integers(0, 256, (6, 6, 3), np.uint8)
        Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC).save(folder / f"{place}.png")
    names = [f"{place}.png" for place in range(len(SIZES))]
    boxes = {name: [None] * 4 + [end] for name, end in (("x_1", 10), ("y_1", 20), ("x_2", 160), ("y_2", 70))}
    return Manifest(folder, folder, pl.DataFrame({"id": names, "path": names, "split": ["test"] * 5} | boxes), 0)


@pytest.fixture(scope="module")
def encoder():
    return Encoder.create("tiny", 8, "gem", weights=None, image_size=32)


def published(encoder, image, longest, scales):
    """One image: thumbnail, normalisation, at each scale a unit descriptor, and their mean, of length 1."""
    image = image.copy()
    image.thumbnail((longest, longest), Image.Resampling.LANCZOS, reducing_gap=None)
    seen = encoder.settings.preprocessing
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].float() / 255
    pixels = (pixels - torch.tensor(seen.mean)[:, None, None]) / torch.tensor(seen.std)[:, None, None]
    total = 0
    for scale in scales:
        at_scale = pixels
        if scale != 1:
            at_scale = torch.nn.functional.interpolate(pixels, scale_factor=scale, mode="bilinear", align_corners=False)
        maps = encoder.backbone.forward_features(at_scale)
        descriptor = encoder.head(encoder.pooling(maps))
        total = total + descriptor / descriptor.norm(dim=1)
    return (total / total.norm(dim=1))[0]


@pytest.mark.parametrize(("longest", "scales"), [(1024, (1.0,)), (160, SCALES)])
def test_vectors_of_any_shape_are_those_of_the_published_pipeline(encoder, landmarks, longest, scales):
    table = embed_at_own_size(encoder, landmarks, OwnSize(longest, scales), batch_size=2)
    with torch.inference_mode():
        encoder.eval()
        for place, vector in enumerate(table.vectors):
            image = Image.open(landmarks.paths()[place]).convert("RGB")
            image = image.crop((10, 20, 160, 70)) if place == 4 else image
            wanted = published(encoder, image, longest, scales)
            smallest = min(image.size) * min(scales) * min(1, longest / max(image.size))
            if smallest >= 32:
                assert_close(torch.from_numpy(vector), wanted, rtol=1e-4, atol=1e-5)
            assert math.isclose(float(np.linalg.norm(vector)), 1, abs_tol=1e-5)
    assert table.fingerprint not in (encoder.fingerprint(), OwnSize(longest + 1, scales).fingerprint(encoder))


def test_the_command_embeds_whole_images_and_refuses_what_does_not_fit(
    encoder, landmarks, tmp_path, sightline, check_refused
):
    encoder.save_pretrained(tmp_path / "encoder")
    landmarks.table.drop("id").write_csv(landmarks.root / "landmarks.csv")
    words = ["embed", tmp_path / "encoder", landmarks.root / "landmarks.csv", "--out", tmp_path / "a.parquet"]
    assert sightline(*words, "--longest", 160, "--scale", 1, "--scale", 0.7071, "--scale", 0.5)[0] == 0
    assert sightline("evaluate", tmp_path / "a.parquet")[0] == 2  # no labels
    whiten = ["whiten", tmp_path / "encoder", tmp_path / "a.parquet", "--out"]
    assert sightline(*whiten, tmp_path / "own-size.safetensors")[0] == 0
    check_refused([*whiten, tmp_path / "whitened"], "must be of this encoder")  # which sees squares
    check_refused([*words, "--scale", 0.5], "--longest")
    check_refused([*words, "--longest", 8], "longest", "8")
    check_refused([*words, "--longest", 160, "--scale", 0], "scales", "0")
    check_refused([*words, "--longest", 160, "--backend", "onnx"], "--backend")
    (landmarks.root / "broken.png").write_bytes(b"no image")
    broken = Manifest(
        landmarks.source,
        landmarks.root,
        pl.DataFrame({"id": ["b"], "path": ["broken.png"], "split": ["test"]}),
        0,
    )
    assert_refused("broken.png", embed_at_own_size, encoder, broken, OwnSize(64))
