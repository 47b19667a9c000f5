"""Vectors by ONNX Runtime and OpenVINO are those of torch, made once, and torch stands in where an export fails."""

import copy
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import onnxruntime
import pytest
import torch
from PIL import Image

from refusals import assert_refused
from sightline import Encoder, Whitening
from sightline.data.images import load_image
from sightline.data.transforms import eval_transform
from sightline.models import inference
from sightline.models.inference import onnx_file, open_backend


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))


GREY = torch.full((1, 32, 32, 3), 127, dtype=torch.uint8)


def pictures(n, seed=0):
    rng = np.random.default_rng(seed)
    return [Image.fromarray(rng.integers(0, 256, (20 + n % 3, 30, 3), np.uint8)) for n in range(n)]


def tiny(**options):
    return Encoder.create("tiny", 8, image_size=32, **options).eval()


def assert_as_torch(encoder, images, backend="onnx"):
    found, expected = (encoder.encode(images, backend=one) for one in (backend, "torch"))
    assert len(found) == len(images)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    return found


@pytest.mark.parametrize("backend", ["onnx", "openvino"])
def test_vectors_are_those_of_torch_in_any_number(backend, capsys):
    encoder = tiny()
    for n in (1, 17, 40):
        assert_as_torch(encoder, pictures(n), backend)
    assert capsys.readouterr().err.count("exporting") == 1  # made once, then kept
    assert encoder.encode([], backend=backend).shape == (0, 8)


def test_pooling_whitening_and_adapters_are_exported():
    vectors, adapted = torch.randn(30, 8, generator=torch.Generator().manual_seed(0)), tiny(feature_norm="l2")
    adapted.add_lora(rank=2)
    for weight in adapted.backbone.parameters():
        weight.data += 0.01
    for encoder in (tiny(pooling="mean+max").whitened(Whitening.fit(vectors, 5)), adapted):
        assert_as_torch(encoder, pictures(3))


def test_weights_that_change_are_not_answered_from_the_old_export():
    encoder = tiny()
    before = encoder.encode(pictures(3), backend="onnx")
    with torch.no_grad():
        next(encoder.backbone.parameters()).mul_(-1)
    after = assert_as_torch(encoder, pictures(3))
    assert np.abs(after - before).max() > 1e-3
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


def test_an_export_that_differs_is_refused_and_auto_falls_back_and_says_so(monkeypatch, capsys):
    encoder = tiny()
    monkeypatch.setattr(inference, "LARGEST_DIFFERENCE", -1.0)
    assert_refused("differ from torch's", open_backend, encoder, "onnx")
    assert not onnx_file(encoder).exists()
    for _ in range(2):
        assert open_backend(encoder, "auto").run(GREY).shape == (1, 8)
    said = capsys.readouterr().err
    assert (said.count("so torch does"), said.count("exporting")) == (2, 1)  # each process says it, one tries
    monkeypatch.setattr(inference, "LARGEST_DIFFERENCE", 1e-4)
    monkeypatch.setattr(inference, "__version__", "another")  # which may be able to
    open_backend(encoder, "auto")
    assert onnx_file(encoder).is_file()


def test_a_damaged_export_is_made_again(capsys):
    expected, file = tiny().encode(pictures(3), backend="onnx"), onnx_file(tiny())
    for damaged, damage in [
        (file, lambda raw: raw[:-1] + bytes([raw[-1] ^ 1])),  # in the weights, which ONNX Runtime would not notice
        (file.with_suffix(".json"), lambda raw: raw[:20]),
    ]:
        damaged.write_bytes(damage(damaged.read_bytes()))
        capsys.readouterr()
        for n_exports in (1, 0):
            np.testing.assert_allclose(tiny().encode(pictures(3), backend="onnx"), expected, atol=1e-6)
            assert capsys.readouterr().err.count("exporting") == n_exports


def test_threads_of_onnx_runtime_do_not_spin(monkeypatch):
    found = []
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda file, options, providers: found.append(options))
    inference.onnx_backend("file", None)
    assert found[0].get_session_config_entry("session.intra_op.allow_spinning") == "0"


def test_several_at_once_make_one_export_of_each_encoder(capsys):
    encoders = [tiny(seed=seed) for seed in (0, 0, 1, 1)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda encoder: open_backend(encoder, "onnx").run(GREY).tobytes(), encoders))
    assert capsys.readouterr().err.count("exporting") == 2
    assert [found.index(vectors) for vectors in found] == [0, 0, 2, 2]


def test_where_nothing_can_be_kept_the_export_is_for_one_process(tmp_path, monkeypatch, capsys):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "file/cache"))
    for backend in ("onnx", "auto"):
        found = open_backend(tiny(), backend).run(GREY)
        np.testing.assert_allclose(found, open_backend(tiny(), "torch").run(GREY), atol=1e-5)
    said = capsys.readouterr().err
    assert (said.count("for this process alone"), said.count("so torch does")) == (2, 0)


def test_new_code_of_a_wrapped_module_is_not_answered_from_the_old_export():
    class Mine(torch.nn.Conv2d):
        is_edited = False

        def forward(self, images):
            vectors = super().forward(images).mean((2, 3))
            return vectors.flip(1) if self.is_edited else vectors

    module = Mine(3, 5, 3)
    before = Encoder.wrap(module, 8, name="mine").encode(pictures(3), backend="onnx")
    module.is_edited = True
    after = Encoder.wrap(module, 8, name="mine").encode(pictures(3), backend="onnx")
    np.testing.assert_allclose(after, before[:, ::-1], atol=1e-5)


@pytest.mark.parametrize("backend", ["torch-fp16", "torch-bf16", "torch-compiled"])
def test_torch_in_half_precision_or_compiled_is_held_against_torch(backend, monkeypatch, capsys):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))  # traced, not compiled
    encoder = tiny().whitened(Whitening.fit(torch.randn(30, 8, generator=torch.Generator().manual_seed(0)), 5))
    for n in (1, 9):
        found, expected = (encoder.encode(pictures(n), backend=one) for one in (backend, "torch"))
        np.testing.assert_allclose((found * expected).sum(1), 1, atol=1e-3)
        np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-6)
    assert (np.abs(found - expected).max() > 1e-6) == (backend != "torch-compiled")
    assert capsys.readouterr().err.count("cosine") == 1
    monkeypatch.setattr(inference, "LEAST_COSINE", 1.1)
    assert_refused("cosine", open_backend, encoder, backend)


def test_what_is_not_there_is_named(monkeypatch):
    assert_refused(r"'onx'.*'onnx'", tiny().encode, pictures(1), backend="onx")
    monkeypatch.setattr(inference, "find_spec", lambda name: None)
    assert_refused(r"openvino.*sightline\[openvino\]", open_backend, tiny(), "openvino")
    assert open_backend(tiny(), "auto").run(GREY).shape == (1, 8)


def test_images_that_cannot_be_read_are_all_named(tmp_path):
    for name in ("a.png", "b.png"):
        (tmp_path / name).write_bytes(b"no image")
    pictures(1)[0].save(tmp_path / "c.png")
    message = assert_refused(["a.png", "b.png"], tiny().encode, [tmp_path / name for name in ("a.png", "c.png", "b.png")])
    assert "c.png" not in message


def on_its_side():
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


def test_files_as_people_have_them_give_the_vectors_of_torch(tmp_path):
    picture = pictures(1)[0].resize((90, 60))
    picture.convert("CMYK").save(tmp_path / "cmyk.jpg")
    picture.save(tmp_path / "turned.jpg", exif=on_its_side())
    picture.convert("P").save(tmp_path / "palette.gif", save_all=True, append_images=pictures(2))
    Image.fromarray(np.random.default_rng(0).integers(0, 1 << 16, (50, 70), np.uint16)).save(tmp_path / "deep.png")
    files = sorted(tmp_path.glob("*.*"))
    assert len(files) == 4
    assert_as_torch(tiny(), files)


def test_a_large_jpeg_is_decoded_smaller_upright_or_not(tmp_path):
    smooth = pictures(1)[0].resize((400, 300), Image.Resampling.BICUBIC)  # shorter side: 8 x 37, what it is resized to
    smooth.save(tmp_path / "large.jpg", quality=95)
    smooth.rotate(90, expand=True).save(tmp_path / "turned.jpg", quality=95, exif=on_its_side())
    encoder, transform = tiny(), eval_transform(tiny().settings.preprocessing)
    assert load_image(tmp_path / "large.jpg", None, transform.at_least).size == (100, 75)
    large, turned, whole = encoder.encode([tmp_path / "large.jpg", tmp_path / "turned.jpg", smooth], backend="torch")
    assert 0.999 < large @ whole < 1 - 1e-7
    assert turned @ whole > 0.999


def test_a_pretrained_encoder_by_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    bundled = Encoder.from_pretrained("bundled")
    assert (bundled.dim, bundled.settings.pooling) == (1280, "native")
    assert bundled.settings.preprocessing.interpolation == "bicubic"
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
