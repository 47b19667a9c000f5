"""Published checkpoints, built here as their authors' code writes them, against their networks step by step."""

import os
import pickle
import sys
from importlib import import_module
from types import ModuleType

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.decomposition import PCA
from torch import nn

from sightline.models.backbones import timm
from sightline.models.encoder import Encoder

models = import_module("torchvision.models")  # after sightline, which declares its operators
IMAGES = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(1))


@pytest.fixture
def stored_config(monkeypatch):
    """Settings as OmegaConf pickles them, of a package that whoever reads them may not have."""
    package = ModuleType("omegaconf")
    for name in ("DictConfig", "AnyNode"):
        setattr(package, name, type(name, (), {"__module__": "omegaconf", "__qualname__": name}))
    monkeypatch.setitem(sys.modules, "omegaconf", package)

    def stored(value):
        is_table = isinstance(value, dict)
        made = (package.DictConfig if is_table else package.AnyNode)()
        made.__dict__ = {"_content": {key: stored(one) for key, one in value.items()}} if is_table else {"_val": value}
        return made

    return stored


def shaken(network):
    """With running statistics and powers that are not where they started."""
    generator = torch.Generator().manual_seed(0)
    for name, tensor in network.state_dict().items():
        if name.endswith(("running_mean", "running_var")):
            tensor.copy_(torch.rand(tensor.shape, generator=generator) + 0.5)
    return network.eval()


def gem(maps, power):
    return maps.clamp(min=1e-6).pow(power).mean((2, 3)).pow(1 / power)


@torch.no_grad()
def naver(file, norm_features=False, **changed):
    network = shaken(models.resnet50(num_classes=24))
    cut = nn.Sequential(*list(network.children())[:-2])
    power = torch.tensor([2.5])
    state = {f"module.{key}": value for key, value in network.state_dict().items() if "num_batches" not in key}
    state |= {"module.adpool.p": power}
    vectors = np.random.default_rng(0).normal(size=(60, 24)) * np.arange(1, 25)
    pca = PCA(whiten=True, svd_solver="full").fit(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))
    options = {"arch": "resnet50_rmac", "out_dim": 24, "pooling": "gem", "gemp": 3, "norm_features": norm_features}
    saved = {"model_options": options, "state_dict": state | changed, "pca": {"Landmarks_clean": pca}, "epoch": 3}
    torch.save(saved, file, _use_new_zipfile_serialization=False)
    pooled = gem(cut(IMAGES), power)
    described = F.normalize(network.fc(F.normalize(pooled, dim=1) if norm_features else pooled), dim=1).double().numpy()
    white = (described - pca.mean_) @ pca.components_.T / pca.explained_variance_**0.25
    return white / np.linalg.norm(white, axis=1, keepdims=True)


@torch.no_grad()
def roadmap(file, stored, pooling="default", norm="true", twice=False):
    network = shaken(models.resnet18(num_classes=16))
    cut = nn.Sequential(*list(network.children())[:-2])
    state = {f"backbone.{key}": value for key, value in cut.state_dict().items()}
    state |= {f"fc.{key}": value for key, value in network.fc.state_dict().items()}
    maps = cut(IMAGES)
    pooled = maps.mean((2, 3)) if pooling == "default" else maps.mean((2, 3)) + maps.amax((2, 3))
    if pooling == "gem":
        state["pooling.p"] = torch.tensor([4.0])
        pooled = gem(maps, 4.0)
    if twice:  # SupRank's head holds pooling and projection again
        state |= {f"head.3.{key}": value for key, value in network.fc.state_dict().items()}
    kwargs = {"backbone_name": "resnet18", "embed_dim": 16, "norm_features": norm, "pooling": pooling}
    torch.save({"net_state": state, "config": stored({"model": {"kwargs": kwargs}}), "epoch": 9}, file)
    return F.normalize(network.fc(F.layer_norm(pooled, [512]) if norm == "true" else pooled), dim=1).numpy()


@torch.no_grad()
def deit(file):
    network = timm.create_model("deit_tiny_patch16_224", num_classes=0).eval()
    projection = nn.Linear(192, 8)
    state = {f"backbone.{key}": value for key, value in network.state_dict().items()}
    torch.save({"net_state": state | {f"fc.{key}": value for key, value in projection.state_dict().items()}}, file)
    images = F.interpolate(IMAGES, 224)
    return images, F.normalize(projection(network.forward_features(images)[:, 0]), dim=1).numpy()


@pytest.mark.parametrize(
    ("write", "size"),
    [
        (lambda file, stored: naver(file), 24),
        (lambda file, stored: naver(file, norm_features=True), 24),
        (lambda file, stored: roadmap(file, stored), 16),
        (lambda file, stored: roadmap(file, stored, "meanmax", norm="false"), 16),
        (lambda file, stored: roadmap(file, stored, "gem", twice=True), 16),
    ],
    ids=["NAVER", "NAVER normed", "ROADMAP", "HAPPIER", "SupRank"],
)
def test_a_converted_checkpoint_is_its_network(tmp_path, stored_config, sightline, monkeypatch, write, size):
    expected = write(tmp_path / "published.pt", stored_config)
    monkeypatch.delitem(sys.modules, "omegaconf")
    words = ("convert", tmp_path / "published.pt", "--out", tmp_path / "encoder", "--image-size", 64, "--resize", 64)
    status, out, err = sightline(*words)
    assert status == 0, err
    encoder = Encoder.from_pretrained(tmp_path / "encoder").eval()
    with torch.inference_mode():
        np.testing.assert_allclose(encoder(IMAGES).numpy(), expected, atol=2e-5)
    assert f"{size} dimensions" in out


def test_a_deit_needs_the_norm_that_its_file_does_not_tell(tmp_path, sightline, check_refused):
    images, expected = deit(tmp_path / "published.ckpt")
    words = ["convert", tmp_path / "published.ckpt", "--out", tmp_path / "encoder"]
    check_refused(words, tmp_path / "published.ckpt", "--feature-norm")
    assert sightline(*words, "--feature-norm", "none")[0] == 0
    with torch.inference_mode():
        found = Encoder.from_pretrained(tmp_path / "encoder").eval()(images).numpy()
    np.testing.assert_allclose(found, expected, atol=2e-5)


class Harmful:
    def __reduce__(self):
        return os.system, ("touch harmed",)


def test_checkpoints_that_do_not_fit_are_refused_and_none_is_run(tmp_path, monkeypatch, check_refused):
    monkeypatch.chdir(tmp_path)
    surplus = {"module.layer9.0.conv1.weight": torch.zeros(1)}
    naver(tmp_path / "surplus.pt", **surplus)
    naver(tmp_path / "shape.pt", **{"module.fc.bias": torch.zeros(9)})
    whole = torch.load(tmp_path / "shape.pt", weights_only=False)
    del whole["state_dict"]["module.bn1.bias"]
    torch.save(whole, tmp_path / "missing.pt")
    torch.save({"state_dict": {"weight": torch.zeros(2)}}, tmp_path / "other.pt")
    torch.save([Harmful()], tmp_path / "harmful.pt")
    (tmp_path / "text.pt").write_text("not a checkpoint")
    (tmp_path / "pickle.pt").write_bytes(pickle.dumps(Harmful()))
    for name, *facts in (
        ("surplus.pt", "left over", "backbone.layer9.0.conv1.weight"),
        ("shape.pt", "head.projection.bias", "(9,)", "(24,)"),
        ("missing.pt", "missing", "backbone.bn1.bias"),
        ("other.pt", "backbone", "'weight'"),
        ("harmful.pt", "named weights", "list"),
        ("text.pt", "not a checkpoint"),
        ("pickle.pt", "checkpoint"),
        ("none.pt", "no such file"),
    ):
        check_refused(["convert", tmp_path / name, "--out", tmp_path / "encoder"], tmp_path / name, *facts)
    assert not (tmp_path / "encoder").exists()
    assert not (tmp_path / "harmed").exists()
