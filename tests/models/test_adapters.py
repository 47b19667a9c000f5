import sys

import pytest
import torch
from torch.testing import assert_close

from sightline.errors import InputError
from sightline.models.adapters import adapters
from sightline.models.encoder import Encoder


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
