"""A module of the user's own, or a Hugging Face model, as an encoder."""

import sys

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from PIL import Image
from starlette.testclient import TestClient
from torch import nn

import sightline as sl
from refusals import assert_refused
from sightline.models.stages import UpperEncoder
from sightline.models.wrapped import as_preprocessing
from sightline.serve.app import create_app
from sightline.serve.settings import read_settings

OWN_MODULE = """
from torch import nn

class Net(nn.Module):
    def __init__(self, width=6):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, width, 3, 2), nn.BatchNorm2d(width), nn.ReLU())

    def forward(self, images):
        return self.layers(images)

def wide():
    return Net(width=9)

def number():
    return 3
"""
IMAGES = [Image.fromarray(np.random.default_rng(seed).integers(0, 256, (40, 50, 3), np.uint8)) for seed in range(3)]


@pytest.fixture
def own_model(tmp_path, monkeypatch):
    """A file ``own_model.py`` in the working folder, imported."""
    (tmp_path / "own_model.py").write_text(OWN_MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield __import__("own_model")
    del sys.modules["own_model"]


SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 32, "patch_size": 8}


def vit():
    from transformers import ViTConfig, ViTModel

    torch.manual_seed(0)
    return ViTModel(ViTConfig(**SHAPE, intermediate_size=32))


def vit_with_registers():
    from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersModel

    return Dinov2WithRegistersModel(Dinov2WithRegistersConfig(**SHAPE, num_register_tokens=4))


class Fixed(nn.Module):
    """Puts out what a function makes of the images."""

    def __init__(self, output):
        super().__init__()
        self.output = output

    def forward(self, images):
        return self.output(images)


def test_vectors_of_a_module_are_its_output_at_unit_length():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    seen = sl.Preprocessing(crop=24, resize=24, mean=(0, 0, 0), std=(1, 1, 1), stretch=True)
    encoder = sl.Encoder.wrap(module, seen, name="mine")
    pixels = np.stack([np.asarray(image.resize((24, 24), Image.Resampling.BILINEAR)) for image in IMAGES]) / 255
    with torch.no_grad():
        wanted = nn.functional.normalize(module(torch.tensor(pixels).permute(0, 3, 1, 2).float()))
    np.testing.assert_allclose(encoder.encode(IMAGES), wanted, atol=0.01)  # two libraries resize
    assert (encoder.dim, encoder.settings.pooling, encoder.settings.backbone) == (4, "none", "mine")
    assert encoder.backbone.module is module


def test_the_pooling_follows_from_the_output():
    for output, pooling, dim in (
        (lambda images: images.flatten(1)[:, :7], "none", 7),
        (lambda images: images[:, :2], "avg", 2),
        (lambda images: images.flatten(2).transpose(1, 2)[:, :16], "avg", 3),
        (lambda images: images.flatten(2).transpose(1, 2)[:, :17], "cls", 3),
        (lambda images: {"last_hidden_state": images, "image_embeds": images[:, :, 0, 0]}, "none", 3),
    ):
        encoder = sl.Encoder.wrap(Fixed(output), 16)
        assert (encoder.settings.pooling, encoder.dim) == (pooling, dim)
        assert encoder.encode(IMAGES).shape == (3, dim)


def test_a_hugging_face_model_is_saved_and_loaded_only_with_trust(tmp_path):
    model = vit()
    encoder = sl.Encoder.wrap(model, 32, embedding_dim=8)
    assert encoder.settings.pooling == "cls"
    with torch.no_grad():
        tokens = model.eval()(torch.zeros(1, 3, 32, 32)).last_hidden_state
    torch.testing.assert_close(encoder.eval().pooled(torch.zeros(1, 3, 32, 32)), tokens[:, 0])
    folder = encoder.save_pretrained(tmp_path / "encoder")
    assert_refused(r"encoder\.json.*transformers\.models\.vit.*--trust", sl.Encoder.from_pretrained, folder)
    loaded = sl.Encoder.from_pretrained(folder, trust=True)
    assert_array_equal(loaded.encode(IMAGES), encoder.encode(IMAGES))
    assert loaded.fingerprint() == encoder.fingerprint() == sl.read_card(folder).fingerprint
    assert "trust=True" in sl.read_card(folder).as_markdown()
    assert "_name_or_path" not in (folder / "encoder.json").read_text()


def test_a_transformer_is_cut_before_its_head_and_its_special_tokens_are_left_out_of_the_mean():
    encoder, images = sl.Encoder.wrap(vit_with_registers(), 32, pooling="avg").eval(), torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        tokens = encoder.backbone.module(images).last_hidden_state
        torch.testing.assert_close(encoder.pooled(images), tokens[:, 5:].mean(1))
    encoder = sl.Encoder.wrap(vit(), 32, embedding_dim=4)
    frozen = UpperEncoder(encoder.eval(), "frozen")
    torch.testing.assert_close(frozen(frozen.resting(images)), encoder(images))
    assert_refused("'full' or 'frozen'", UpperEncoder, encoder, "upper")


def test_an_own_class_is_its_own_factory_and_another_process_finds_it(
    own_model, tmp_path, sightline, check_refused, image_tree
):
    encoder = sl.Encoder.wrap(own_model.Net(), 32, name="<mine>")
    assert all(fact in encoder._repr_html_() for fact in ("&lt;mine&gt; (own_model:Net)", "6 dimensions"))
    folder = encoder.save_pretrained(tmp_path / "encoder")
    assert sl.Encoder.from_pretrained(folder, trust=True).fingerprint() == encoder.fingerprint()
    sys.path.remove(str(tmp_path))  # as in a console command, which is not started from this folder's Python
    words = ["embed", folder, image_tree, "--out", tmp_path / "table.parquet"]
    check_refused(words, "own_model", "--trust")
    status, _, err = sightline(*words, "--trust")
    assert status == 0, err
    assert sl.EmbeddingTable.read(tmp_path / "table.parquet").fingerprint == encoder.fingerprint()


def test_a_gallery_keeps_a_wrapped_encoder_and_searches_with_it(own_model, tmp_path, sightline, image_tree):
    folder = sl.Encoder.wrap(own_model.wide(), 32, factory=own_model.wide).save_pretrained(tmp_path / "encoder")
    gallery, image = tmp_path / "gallery", next(image_tree.rglob("*.png"))
    status, _, err = sightline("index", "build", folder, image_tree, "--out", gallery, "--trust", "--workers", 0)
    assert status == 0, err
    assert sightline("search", image, "--gallery", gallery)[0] == 2
    status, out, err = sightline("search", image, "--gallery", gallery, "--trust", "-k", 1)
    assert status == 0, err
    assert image.name in out.splitlines()[1]
    assert [sightline("index", "verify", gallery, *more)[0] for more in ([], ["--trust"])] == [2, 0]
    settings = read_settings(given={"galleries": [gallery], "trust": True}, environ={})
    with TestClient(create_app(settings), base_url="http://127.0.0.1:8000") as client:
        found = client.post("/v1/search", files={"image": ("a", image.read_bytes())}).json()
    assert found["results"][0]["id"].endswith(image.name)


def test_a_gallery_uses_the_encoder_it_was_created_with_while_that_is_the_same(own_model, tmp_path, image_tree):
    encoder = sl.Encoder.wrap(own_model.Net(), 32, name="net")
    with sl.Gallery.create(tmp_path / "gallery", encoder) as gallery:
        assert gallery.add_images(image_tree).added == 72  # no module is imported, so nothing has to be trusted
        assert gallery.encoder() is encoder
        encoder.backbone.module.layers[0].weight.data.zero_()  # its vectors are others now
        assert_refused("own_model", gallery.encoder)
    with sl.Gallery.open(tmp_path / "gallery") as gallery, pytest.raises(sl.InputError, match="--trust"):
        gallery.search_images(image_tree / "super0/class00/0.png")


def test_without_a_factory_it_encodes_and_keeps_mode_and_frozen_weights_but_is_not_saved(tmp_path):
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 5, 3)).eval()
    module[0].requires_grad_(False)
    encoder = sl.Encoder.wrap(module, 16, name="nameless")
    assert not encoder.training
    assert [weight.requires_grad for weight in module.parameters()] == [False, False, True, True]
    assert encoder.encode(IMAGES).shape == (3, 5)
    assert_refused(r"nameless.*factory=", encoder.save_pretrained, tmp_path / "encoder")
    assert not (tmp_path / "encoder").exists()


def test_what_cannot_be_wrapped_is_refused(own_model):
    for factory, fact in (
        ("own_model:wide", "layers.0.weight"),
        ("own_model:number", "int"),
        ("own_model:nothing", "nothing"),
        ("not a path", "import path"),
        ("__main__:make", ".py file"),
        (lambda: None, "import path"),
    ):
        assert_refused([fact], sl.Encoder.wrap, own_model.Net(), 32, factory=factory)
    assert_refused(["int"], sl.Encoder.wrap, 3, 16)
    for output, options, fact in (
        (lambda images: images[0, 0, 0], {}, "(16,)"),
        (lambda images: [images], {}, "list"),
        (lambda images: {"a": images}, {"output": "b"}, "'a'"),
        (lambda images: images.view(-1, 5), {}, "16 x 16"),
        (lambda images: images, {"pooling": "none"}, "(1, 3, 16, 16)"),
        (lambda images: images.flatten(1), {"pooling": "gem"}, "'none'"),
        (lambda images: images, {"pooling": "cls"}, "class token"),
    ):
        assert_refused([fact], sl.Encoder.wrap, Fixed(output), 16, **options)


def test_preprocessing_of_image_processors():
    from transformers import ViTImageProcessor
    from transformers.models.clip import CLIPImageProcessor

    clip = as_preprocessing(CLIPImageProcessor(size={"shortest_edge": 40}, crop_size={"height": 32, "width": 32}))
    assert (clip.crop, clip.resize, clip.stretch) == (32, 40, False)
    assert clip.mean[0] == pytest.approx(0.48145466)
    plain = as_preprocessing(ViTImageProcessor(size={"height": 48, "width": 48}, do_normalize=False))
    assert (plain.crop, plain.resize, plain.stretch, plain.mean, plain.std) == (48, 48, True, (0, 0, 0), (1, 1, 1))
    assert_refused("str", as_preprocessing, "224")


def test_weights_that_share_memory_are_saved(own_model, tmp_path):
    net = own_model.Net()
    net.layers[1].bias.data = net.layers[1].weight.data
    encoder = sl.Encoder.wrap(net, 32).eval()
    loaded = sl.Encoder.from_pretrained(encoder.save_pretrained(tmp_path / "encoder"), trust=True)
    assert_array_equal(loaded.encode(IMAGES), encoder.encode(IMAGES))
