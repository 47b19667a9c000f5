"""What an encoder gives to scorers: vectors, features before the projection, and deviations over its feature map."""

import numpy as np
import pytest
import torch
from PIL import Image

from sightline import Encoder, InputError, ood


@pytest.fixture(scope="module")
def images():
    return [Image.fromarray(rows) for rows in np.random.default_rng(0).integers(0, 255, (9, 40, 50, 3), np.uint8)]


@pytest.mark.parametrize(
    ("backbone", "pooling", "side"), [("tiny", "gem", 32), ("test_vit", "cls", 160), ("test_vit", "avg", 160)]
)
def test_inputs_are_those_of_hooks_on_the_parts(backbone, pooling, side, images):
    encoder = Encoder.create(backbone, 6, pooling=pooling, image_size=side).eval()
    encoder.backend = "torch"
    seen = {}
    encoder.head.register_forward_hook(lambda _, given, __: seen.update(features=given[0]))
    encoder.pooling.register_forward_hook(lambda _, given, __: seen.update(maps=given[0]))
    found = encoder.scorer_inputs(images, batch_size=9)
    maps = seen["maps"].numpy()
    positions = (
        maps[:, 1:] if maps.ndim == 3 else maps.reshape(*maps.shape[:2], -1).swapaxes(1, 2)
    )  # without the class token
    deviations = positions.std(1, ddof=1)
    np.testing.assert_allclose(found["vectors"], encoder.encode(images), atol=1e-6)
    np.testing.assert_allclose(found["features"], seen["features"].numpy(), atol=1e-6)
    np.testing.assert_allclose(found["feature maps"], deviations, rtol=1e-4, atol=1e-6)
    with torch.inference_mode():
        plain = encoder.feature_maps(torch.zeros(2, 3, side, side))
    assert plain.shape == (2, *(maps.shape[1:] if maps.ndim == 4 else (maps.shape[1] - 1, maps.shape[2])))
    assert not encoder.train().scorer_inputs(images[:2]).keys() - {"vectors", "features", "feature maps"}
    assert encoder.training


def test_the_whole_of_heat_on_an_encoder(images):
    encoder = Encoder.create("tiny", 6, image_size=32)
    given = encoder.scorer_inputs(images * 3)
    noisy = {kind: rows + 0.1 * np.random.default_rng(0).normal(size=rows.shape) for kind, rows in given.items()}
    scorer = ood.create("composition", scorers=["gmm_pooled", "gmm_std", "energy"])
    with pytest.warns(UserWarning, match="few for"):
        scorer.fit(noisy)
    assert scorer.needs == ("features", "feature maps", "vectors")
    assert np.isfinite(scorer.score(given)).all()


def test_a_module_that_returns_vectors_has_no_maps(images):
    module = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 8 * 8, 5))
    with pytest.raises(InputError, match="'linear' has no feature maps"):
        Encoder.wrap(module, 8, name="linear").scorer_inputs(images)
