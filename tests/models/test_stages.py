"""A backbone that is cut between its stages computes what it computes whole, and only its upper part learns."""

import pytest
import torch
from torch.testing import assert_close

from refusals import assert_refused
from sightline import Encoder
from sightline.models.backbones import TinyBackbone, create_backbone, feature_map
from sightline.models.stages import CutBackbone, UpperEncoder, stage_names

FAMILIES = {  # name: side, stages, of which learn unless somebody says otherwise
    "tf_efficientnet_lite0": (64, 7, 2),
    "resnet10t": (64, 4, 1),
    "convnext_atto": (64, 4, 1),
    "swin_tiny_patch4_window7_224": (224, 4, 1),
    "vit_tiny_patch16_224": (224, 12, 4),
    "eva02_tiny_patch14_224": (224, 12, 4),
}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_two_parts_of_a_backbone_make_the_whole(name):
    side, n_stages, n_upper = FAMILIES[name]
    backbone = create_backbone(name).eval()
    cut = CutBackbone(backbone, None, side)
    assert (len(stage_names(backbone)), cut.n_upper) == (n_stages, n_upper)
    images = torch.rand(3, 3, side, side, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert_close(cut.upper(cut.lower(images)), feature_map(backbone, images), rtol=0, atol=0)
    lower = {name for name, _ in backbone.named_parameters()} - set(cut.upper_weights)
    assert any(name.startswith(stage_names(backbone)[0]) for name in lower)
    assert all(not name.startswith(tuple(stage_names(backbone)[-n_upper:])) for name in lower)


def test_a_backbone_without_stages_is_refused_and_a_frozen_encoder_learns_by_its_head():
    assert_refused("no list of stages", CutBackbone, create_backbone("vgg11"), None, 32)
    assert_refused(r"upper:3.*3 stages.*1 to 2", CutBackbone, TinyBackbone(), 3, 32)
    upper = UpperEncoder(Encoder.create("tiny", 8, image_size=32), "frozen")
    assert [name.split(".")[0] for name, weight in upper.encoder.named_parameters() if weight.requires_grad] == ["head"] * 2


def test_learning_from_features_is_learning_of_the_whole_with_its_lower_stages_at_rest():
    encoder = Encoder.create("tiny", 8, image_size=32)
    upper = UpperEncoder(encoder, "upper:1").train()
    images = torch.rand(6, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    weight = torch.rand(6, 8, generator=torch.Generator().manual_seed(1))
    (upper(upper.resting(images).half().float()) * weight).sum().backward()
    found = {name: one.grad.clone() for name, one in encoder.named_parameters() if one.grad is not None}
    assert {name for name in found if name.startswith("backbone")} == {
        f"backbone.layers.2.{part}" for part in ("0.weight", "1.weight", "1.bias")
    }
    encoder.zero_grad()
    rounding = encoder.backbone.layers[1].register_forward_hook(lambda *call: call[-1].half().float())
    (encoder(images) * weight).sum().backward()
    rounding.remove()
    expected = {name: one.grad for name, one in encoder.named_parameters() if one.grad is not None}
    assert_close(found, expected)


def test_the_name_of_the_resting_part_follows_its_weights_alone():
    def network(seed, adaptation, change=None):
        upper = UpperEncoder(Encoder.create("tiny", 8, image_size=32, seed=seed), adaptation)
        with torch.no_grad():
            if change:
                upper.encoder.get_parameter(change).add_(1)
        return upper.network

    same = network(0, "upper:1")
    assert same == network(0, "upper") == network(0, "upper:1", "backbone.layers.2.0.weight")
    assert same == network(0, "upper:1", "head.projection.weight")
    others = [network(1, "upper:1"), network(0, "upper:2"), network(0, "frozen")]
    assert len({same, network(0, "upper:1", "backbone.layers.1.0.weight"), *others}) == 5
