"""An exported file gives what torch gives, and describes its input well enough to do without Sightline."""

import json
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from PIL import Image

from refusals import assert_refused
from sightline import Encoder, Whitening, export_onnx


def session(file):
    return onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])


def described(file):
    return json.loads(session(file).get_modelmeta().custom_metadata_map["sightline"])


def pictures(seed, sizes):
    rng = np.random.default_rng(seed)
    small = [Image.fromarray(rng.integers(0, 256, (7, 9, 3), dtype=np.uint8)) for _ in sizes]
    return [image.resize(size, Image.Resampling.BICUBIC) for image, size in zip(small, sizes, strict=True)]


def moved(encoder, seed=0):
    """Running statistics and powers as after some training, so that none is at its start."""
    generator = torch.Generator().manual_seed(seed)
    for name, tensor in encoder.state_dict().items():
        if name.endswith(("running_mean", "running_var", "power")) or "lora_B" in name:
            tensor += 0.1 * torch.rand(tensor.shape, generator=generator)
    return encoder


@pytest.mark.parametrize(
    ("backbone", "side", "options"),
    [
        pytest.param("resnet18", 64, {}, marks=pytest.mark.slow),
        ("test_vit", 160, {"pooling": "cls", "feature_norm": "none"}),
        pytest.param("tf_efficientnet_lite0", 64, {}, marks=pytest.mark.slow),
        pytest.param("vit_tiny_patch16_224", 224, {}, marks=pytest.mark.slow),
        ("tiny", 32, {"embedding_dim": None, "pooling": "max", "feature_norm": "l2", "lora": 2}),
    ],
)
def test_the_file_gives_what_torch_gives(backbone, side, options, tmp_path):
    rank = options.pop("lora", 0)
    encoder = Encoder.create(backbone, **{"embedding_dim": 24, "pooling": "gem", **options}, image_size=side)
    if rank:
        encoder.add_lora(rank)
    names = list(moved(encoder).state_dict())
    file = export_onnx(encoder, tmp_path / "model.onnx")
    assert (encoder.training, list(encoder.state_dict())) == (True, names)  # left as it was
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
    exported = session(file)
    for n_images in (1, 2, 7):
        images = torch.randn(n_images, 3, side, side, generator=torch.Generator().manual_seed(n_images))
        with torch.inference_mode():
            wanted = encoder.eval()(images).numpy()
        found = exported.run(["embeddings"], {"images": images.numpy()})[0]
        assert found.shape == (n_images, encoder.dim)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-5)


def by_description(about, image):
    """(3, H, W) as the file's description says, by Pillow and NumPy alone."""
    steps = about["preprocessing"]
    assert (steps["colour_order"], steps["interpolation"], steps["antialias"]) == ("RGB", "bilinear", True)
    width, height = image.size
    if steps["resize_mode"] == "both_sides":
        size = (steps["resize"], steps["resize"])
    else:
        short = min(width, height)
        size = tuple(steps["resize"] if side == short else int(steps["resize"] * side / short) for side in image.size)
    image = image.convert("RGB").resize(size, Image.Resampling.BILINEAR)
    left, top = (round((side - steps["crop"]) / 2) for side in image.size)
    pixels = np.asarray(image, np.float64)[top : top + steps["crop"], left : left + steps["crop"]] * steps["scale"]
    return ((pixels - steps["mean"]) / steps["std"]).transpose(2, 0, 1).astype(np.float32)


@pytest.mark.parametrize("is_whitened_and_stretched", [False, True])
def test_the_description_alone_leads_from_a_picture_to_its_vector(is_whitened_and_stretched, tmp_path):
    encoder = moved(Encoder.create("tiny", 12, image_size=32, resize=41, stretch=is_whitened_and_stretched))
    if is_whitened_and_stretched:
        drawn = torch.randn(50, 12, generator=torch.Generator().manual_seed(0))
        encoder = encoder.whitened(Whitening.fit(torch.nn.functional.normalize(drawn, dim=1), 6))
    file = export_onnx(encoder, tmp_path / "model.onnx")
    about = described(file)
    images = pictures(0, [(60, 50), (50, 90), (33, 33), (200, 41)])
    batch = np.stack([by_description(about, image) for image in images])
    assert list(batch.shape[1:]) == about["input"]["shape"][1:]
    found = session(file).run([about["output"]["name"]], {about["input"]["name"]: batch})[0]
    # A byte that is rounded the other way moves a vector of these 32 pixels by a thousandth; another filter by far more.
    np.testing.assert_allclose(found, encoder.encode(images), rtol=0, atol=5e-3)
    assert (about["fingerprint"], about["dim"]) == (encoder.fingerprint(), found.shape[1])


def test_the_command_writes_a_valid_file(sightline, tmp_path):
    Encoder.create("tiny", 8, image_size=32).save_pretrained(tmp_path / "run/encoder")
    file = tmp_path / "made/model.onnx"
    status, out, err = sightline("export", "onnx", tmp_path / "run", "--out", file)
    assert (status, err) == (0, "")
    assert all(fact in out for fact in (str(file), "opset 18", "8 dimensions"))
    onnx.checker.check_model(onnx.load(file), full_check=True)


def test_what_cannot_be_exported_is_refused(check_refused, tmp_path, monkeypatch):
    encoder = Encoder.create("tiny", 8, image_size=32)
    assert_refused(r"a\.pt", export_onnx, encoder, tmp_path / "a.pt")
    assert_refused(r"encoder.*str.*from_pretrained", export_onnx, "run/encoder", tmp_path / "a.onnx")
    check_refused(["export", "onnx", tmp_path / "none", "--out", tmp_path / "a.onnx"], "encoder.json")
    with monkeypatch.context() as patched:
        patched.setattr("sightline.models.inference.MAX_BYTES", 1000)
        assert_refused("'tiny'", export_onnx, encoder, tmp_path / "a.onnx")
    monkeypatch.setattr(sys, "path", [])  # nothing can be found, as where the extra is not installed
    for name in ("onnx", "onnxscript"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert_refused(r"onnx and onnxscript.*'sightline\[onnx\]'", export_onnx, encoder, tmp_path / "a.onnx")
    assert not list(tmp_path.iterdir())
