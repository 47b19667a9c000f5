"""Vectors by ONNX Runtime and OpenVINO are those of torch, made once, and torch stands in where an export fails."""

import copy
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from refusals import assert_refused
from sightline import Encoder, InputError
from sightline.data.images import load_image
from sightline.data.transforms import eval_transform
from sightline.models import inference
from sightline.models.heads import Whitening
from sightline.models.inference import onnx_file, open_backend


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))


def pictures(n, seed=0):
    rng = np.random.default_rng(seed)
    return [Image.fromarray(rng.integers(0, 256, (20 + n % 3, 30, 3), np.uint8)) for n in range(n)]


def tiny(**options):
    return Encoder.create("tiny", 8, image_size=32, **options).eval()


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_vectors_are_those_of_torch_in_any_number(backend, capsys):
    encoder = tiny()
    for n in (1, 17, 40):
        found, expected = (encoder.encode(pictures(n), backend=one) for one in (backend, "torch"))
        np.testing.assert_allclose(found, expected, atol=1e-5)
    assert capsys.readouterr().err.count("exporting") == 1  # made once, then kept
    assert encoder.encode([], backend=backend).shape == (0, 8)


def test_pooling_whitening_and_adapters_are_exported():
    vectors = torch.randn(30, 8, generator=torch.Generator().manual_seed(0))
    encoders = [tiny(pooling="mean+max").whitened(Whitening.fit(vectors, 5)), tiny(feature_norm="l2")]
    encoders[1].add_lora(rank=2)
    for weight in encoders[1].backbone.parameters():
        weight.data += 0.01
    for encoder in encoders:
        np.testing.assert_allclose(
            encoder.encode(pictures(3), backend="onnx"), encoder.encode(pictures(3), backend="torch"), atol=1e-5
        )


def test_weights_that_change_are_not_answered_from_the_old_export():
    encoder = tiny()
    before = encoder.encode(pictures(3), backend="onnx")
    with torch.no_grad():
        next(encoder.backbone.parameters()).mul_(-1)
    after = encoder.encode(pictures(3), backend="onnx")
    assert np.abs(after - before).max() > 1e-3
    np.testing.assert_allclose(after, encoder.encode(pictures(3), backend="torch"), atol=1e-5)
    copied = copy.deepcopy(encoder)  # without the session, which cannot be copied
    np.testing.assert_array_equal(copied.encode(pictures(3), backend="onnx"), after)


def test_auto_exports_for_many_images_and_uses_what_is_there(monkeypatch):
    encoder = tiny()
    encoder.encode(pictures(3))
    assert not onnx_file(encoder).exists()
    encoder.encode(pictures(inference.WORTH_EXPORTING))
    assert onnx_file(encoder).is_file()
    opened = []
    monkeypatch.setattr(inference, "onnx_backend", lambda file, *_: opened.append(file) or inference.torch_backend(encoder))
    tiny().encode(pictures(3))
    assert opened == [onnx_file(encoder)]


def test_an_export_that_differs_is_refused_and_auto_falls_back_once(monkeypatch, capsys):
    encoder = tiny()
    monkeypatch.setattr(inference, "LARGEST_DIFFERENCE", -1.0)
    assert_refused("differ from torch's", open_backend, encoder, "onnx")
    assert not onnx_file(encoder).exists()
    for _ in range(2):
        assert open_backend(encoder, "auto").run(torch.zeros(1, 32, 32, 3, dtype=torch.uint8)).shape == (1, 8)
    assert capsys.readouterr().err.count("so torch does") == 1


def test_what_is_not_there_is_named(monkeypatch):
    assert_refused(r"'onx'.*'onnx'", tiny().encode, pictures(1), backend="onx")
    monkeypatch.setattr(inference, "find_spec", lambda name: None)
    assert_refused(r"openvino.*sightline\[openvino\]", open_backend, tiny(), "openvino")
    assert open_backend(tiny(), "auto").run(torch.zeros(1, 32, 32, 3, dtype=torch.uint8)).shape == (1, 8)


def test_images_that_cannot_be_read_are_all_named(tmp_path):
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"no image")
    pictures(1)[0].save(tmp_path / "c.png")
    with pytest.raises(InputError) as refused:
        tiny().encode([tmp_path / name for name in ("a.png", "c.png", "b.png")])
    assert all(name in str(refused.value) for name in ("a.png", "b.png"))
    assert "c.png" not in str(refused.value)


def test_files_as_people_have_them_give_the_vectors_of_torch(tmp_path):
    picture = pictures(1)[0].resize((90, 60))
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    picture.convert("CMYK").save(tmp_path / "cmyk.jpg")
    picture.save(tmp_path / "turned.jpg", exif=exif)
    picture.convert("P").save(tmp_path / "palette.gif", save_all=True, append_images=pictures(2))
    Image.fromarray(np.random.default_rng(0).integers(0, 1 << 16, (50, 70), np.uint16)).save(tmp_path / "deep.png")
    files = sorted(tmp_path.glob("*.*"))
    found, expected = (tiny().encode(files, backend=backend) for backend in ("onnx", "torch"))
    assert len(found) == 4
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_a_large_jpeg_is_decoded_smaller_upright_or_not(tmp_path):
    smooth = pictures(1)[0].resize((400, 300), Image.Resampling.BICUBIC)  # shorter side: 8 x 37, what it is resized to
    exif = Image.Exif()
    exif[0x0112] = 6
    smooth.save(tmp_path / "large.jpg", quality=95)
    smooth.rotate(90, expand=True).save(tmp_path / "turned.jpg", quality=95, exif=exif)
    encoder, transform = tiny(), eval_transform(tiny().settings.preprocessing)
    assert load_image(tmp_path / "large.jpg", None, transform.at_least).size == (100, 75)
    large, turned, whole = encoder.encode([tmp_path / "large.jpg", tmp_path / "turned.jpg", smooth], backend="torch")
    assert 0.999 < large @ whole < 1 - 1e-7
    assert turned @ whole > 0.999


def test_a_pretrained_encoder_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bundled = Encoder.from_pretrained("bundled")
    assert (bundled.dim, bundled.settings.pooling, bundled.settings.preprocessing.interpolation) == (
        1280,
        "native",
        "bicubic",
    )
    tiny().save_pretrained("bundled")  # a folder goes first
    assert Encoder.from_pretrained("bundled").dim == 8
    assert_refused(r"'resnet51'.*did you mean", Encoder.from_pretrained, "timm:resnet51")


def test_a_signal_after_several_encoders_by_openvino_ends_nothing(tmp_path):
    code = """
import gc, os, signal
from PIL import Image
from sightline import Encoder
signal.signal(signal.SIGCHLD, lambda *_: None)
backends = []
for dim in (8, 9, 10):
    backends.append(Encoder.create("tiny", dim, image_size=32).encode([Image.new("RGB", (40, 36))], backend="openvino"))
    gc.collect()
    os.kill(os.getpid(), signal.SIGCHLD)
print(len(backends))
"""
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "3\n"), done.stderr
