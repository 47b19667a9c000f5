"""Each family of timm's models computes what timm computes, at any size, and is prepared for as it was trained."""

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from refusals import assert_refused
from sightline import Encoder
from sightline.models.backbones import timm
from sightline.models.stages import UpperEncoder

SMALL = {"embed_dim": 48, "depth": 2, "num_heads": 3}
FAMILIES = {  # a model, its images' side, and what makes it small
    "vit_small_patch16_dinov3": (64, SMALL),
    "vit_base_patch16_siglip_224": (64, SMALL),
    "vit_pe_core_tiny_patch16_384": (64, SMALL),
    "vit_base_patch14_reg1_tipsv2": (70, SMALL),
    "vit_base_patch16_clip_224": (64, SMALL),
    "eva02_tiny_patch14_224": (70, SMALL),
    "swin_tiny_patch4_window7_224": (64, {"embed_dim": 12, "depths": (1, 1, 2, 1), "num_heads": (1, 2, 3, 6)}),
    "test_convnext": (64, {}),
    "test_efficientnet": (64, {}),
    "test_resnet": (64, {}),
}


@pytest.fixture
def small_models(monkeypatch):
    """timm's models by their names, with few weights."""
    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, **given: create(name, **FAMILIES[name][1] | given))


@pytest.mark.parametrize("name", FAMILIES)
def test_vectors_are_those_of_timm_also_in_upper_stages_saved_and_by_onnx_runtime(
    name, small_models, tmp_path, monkeypatch
):
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    side = FAMILIES[name][0]
    encoder = Encoder.create(name, None, "native", image_size=side, feature_norm="none").eval()
    images = torch.randn(3, 3, side, side, generator=torch.Generator().manual_seed(0))
    upper, again = UpperEncoder(encoder, "upper:1").eval(), Encoder.from_pretrained(encoder.save_pretrained(tmp_path / "e"))
    with torch.no_grad():
        expected = normalize(encoder.backbone(images))
        for found in (encoder(images), upper(upper.resting(images)), again(images)):
            torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
    assert again.fingerprint() == encoder.fingerprint()
    pictures = list(np.random.default_rng(0).integers(0, 256, (3, 70, 80, 3), np.uint8))
    found, expected = (encoder.encode(pictures, backend=backend) for backend in ("onnx", "torch"))
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("name", ["vit_pe_core_tiny_patch16_384", "vit_base_patch16_siglip_224"])
def test_an_attention_pool_counts_and_learns(name, small_models):
    encoder = Encoder.create(name, None, image_size=64).eval()
    assert encoder.settings.pooling == "native"
    assert any(weight.startswith("attn_pool") for weight in UpperEncoder(encoder, "upper:1").cut.upper_weights)
    images, before = torch.randn(2, 3, 64, 64), encoder.fingerprint()
    with torch.no_grad():
        plain = encoder(images)
        encoder.backbone.attn_pool.latent.add_(1.0)
        assert (encoder(images) - plain).abs().max() > 1e-4
    assert encoder.fingerprint() != before


def test_images_are_prepared_as_the_model_was_trained(small_models):
    found = Encoder.create("vit_base_patch16_siglip_224", None).settings.preprocessing
    config = timm.get_pretrained_cfg("vit_base_patch16_siglip_224")
    assert (found.crop, found.resize, found.interpolation) == (224, int(224 / config.crop_pct), "bicubic")
    assert (found.mean, found.std) == (tuple(config.mean), tuple(config.std))
    given = Encoder.create("test_resnet", 8, image_size=64)
    assert (given.settings.preprocessing.resize, given.settings.pooling) == (73, "gem")  # as asked, and by convolutions
    assert_refused("'native'", Encoder.create, "tiny", 8, "native", image_size=32)
