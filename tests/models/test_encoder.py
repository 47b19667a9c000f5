import json
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from PIL import Image
from torch.testing import assert_close

from refusals import assert_refused
from sightline.data.transforms import Preprocessing, eval_transform
from sightline.models import encoder as encoder_module
from sightline.models.backbones import batch_norms
from sightline.models.encoder import SETTINGS_FILE, WEIGHTS_FILE, Encoder
from sightline.models.heads import Whitening


def tiny(**options) -> Encoder:
    return Encoder.create("tiny", **{"embedding_dim": 8, "image_size": 24} | options)


def picture(seed: int, width: int = 40, height: int = 30) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def images(n_images: int = 4, side: int = 24) -> torch.Tensor:
    return torch.randn(n_images, 3, side, side, generator=torch.Generator().manual_seed(0))


def running_statistics(encoder: Encoder) -> list[torch.Tensor]:
    return [tensor.clone() for layer in batch_norms(encoder) for tensor in (layer.running_mean, layer.running_var)]


def trained_a_step(freeze_batch_norm: str, backbone: str = "tiny") -> Encoder:
    encoder = Encoder.create(backbone, 8, image_size=64, freeze_batch_norm=freeze_batch_norm).eval().train()
    optimizer = torch.optim.SGD([weight for weight in encoder.parameters() if weight.requires_grad], lr=1.0)
    encoder(images(side=64))[:, 0].sum().backward()
    optimizer.step()
    return encoder


@pytest.mark.parametrize(("backbone", "frozen"), [("tiny", "stats"), ("test_efficientnet", "all"), ("tiny", "none")])
def test_frozen_statistics_are_the_same_bits_after_a_step(backbone, frozen):
    fresh, encoder = Encoder.create(backbone, 8, image_size=64), trained_a_step(frozen, backbone)
    pairs = list(zip(running_statistics(encoder), running_statistics(fresh), strict=True))
    assert pairs
    assert all(torch.equal(one, other) == (frozen != "none") for one, other in pairs)
    assert {layer.weight.grad is not None for layer in batch_norms(encoder)} == {frozen != "all"}
    assert not torch.equal(encoder.head.projection.weight, fresh.head.projection.weight)  # it did learn


def test_the_backbone_can_be_kept_from_learning_and_let_go():
    encoder = tiny(freeze_batch_norm="all")
    encoder.allow_gradients(backbone=False)
    assert not any(parameter.requires_grad for parameter in encoder.backbone.parameters())
    assert all(parameter.requires_grad for parameter in encoder.head.parameters())
    assert encoder.pooling.power.requires_grad
    encoder.allow_gradients(backbone=True)
    learning = {name for name, parameter in encoder.backbone.named_parameters() if parameter.requires_grad}
    assert learning == {f"layers.{number}.0.weight" for number in range(3)}


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(6)]
    for number, path in enumerate(paths):
        picture(number).save(path)
    return paths


def test_paths_words_images_and_arrays_keep_their_order(files):
    encoder = tiny()
    expected = encoder(torch.stack([eval_transform(encoder.settings.preprocessing)(picture(n)) for n in range(6)]))
    array = np.asarray(picture(3))
    mixed = [files[0], str(files[1]), picture(2), array, picture(4).convert("RGBA"), torch.tensor(np.asarray(picture(5)))]
    vectors = encoder.encode(mixed, batch_size=4)
    assert vectors.dtype == np.float32
    assert_close(torch.from_numpy(vectors), expected.detach(), rtol=0, atol=1e-5)
    grey, stack = array[..., 0], np.stack([array, array])
    one, two, three = encoder.encode([grey, np.dstack([grey] * 3), np.dstack([grey] * 3 + [np.full_like(grey, 255)])])
    np.testing.assert_allclose([two, three], [one, one], atol=1e-6)
    np.testing.assert_array_equal(encoder.encode(stack), encoder.encode(list(stack)))
    assert encoder.encode([]).shape == (0, 8)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_worker_processes_and_a_progress_bar_do_not_matter(files, capfd):
    encoder = tiny()
    expected = encoder.encode(files, batch_size=2)
    assert capfd.readouterr() == ("", "")
    np.testing.assert_array_equal(encoder.encode(files, batch_size=2, n_workers=2, show_progress=True), expected)
    out, err = capfd.readouterr()  # OpenVINO's threads, where another test has started them, say something at a fork
    assert ("Embedding" in out, "Embedding" in err) == (False, True)


@pytest.mark.parametrize("mode", [True, False])
def test_the_mode_is_what_it_was_and_no_statistics_move(files, mode):
    encoder = tiny(freeze_batch_norm="none").train(mode)
    before = encoder.fingerprint()
    encoder.encode(files)
    assert_refused("none", encoder.encode, ["none.png"])
    assert all(module.training == mode for module in encoder.modules())
    assert encoder.fingerprint() == before
    frozen = tiny(freeze_batch_norm="stats").train()
    frozen.encode(files)
    assert not any(layer.training for layer in batch_norms(frozen))


def test_the_fingerprint_changes_with_any_weight_or_statistic():
    encoder = tiny(freeze_batch_norm="none")
    assert encoder.eval().to(memory_format=torch.contiguous_format).fingerprint() == encoder.train().fingerprint()
    assert tiny(freeze_batch_norm="none", seed=0).fingerprint() == encoder.fingerprint() != tiny(seed=1).fingerprint()
    for options in ({"resize": 30}, {"stretch": True}, {"pooling": "avg"}, {"embedding_dim": None}):
        assert tiny(**options).fingerprint() != encoder.fingerprint()
    seen = {encoder.fingerprint()}
    tensors = [tensor for name, tensor in encoder.state_dict().items() if not name.endswith("num_batches_tracked")]
    for tensor in tensors:
        tensor[(-1,) * tensor.ndim] += 1e-3
        seen.add(encoder.fingerprint())
    assert len(seen) == len(tensors) + 1


@pytest.mark.parametrize(
    ("backbone", "pooling", "embedding_dim", "freeze"),
    [("tiny", "max", None, "none"), ("test_vit", "cls", 8, "stats"), ("test_efficientnet", "avg", 8, "all")],
)
def test_what_is_loaded_is_what_was_saved(tmp_path, files, backbone, pooling, embedding_dim, freeze):
    encoder = Encoder.create(backbone, embedding_dim, pooling, image_size=32, resize=40, freeze_batch_norm=freeze, seed=7)
    for tensor in encoder.state_dict().values():
        if tensor.is_floating_point():
            tensor.add_(0.01)
    folder = tmp_path / "made" / "encoder"
    assert encoder.save_pretrained(folder) == folder
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", SETTINGS_FILE, WEIGHTS_FILE]
    before = torch.get_rng_state()
    loaded = Encoder.from_pretrained(str(folder))
    assert torch.equal(torch.get_rng_state(), before)
    assert (loaded.settings, loaded.fingerprint()) == (encoder.settings, encoder.fingerprint())
    assert not loaded.training
    np.testing.assert_array_equal(loaded.encode(files), encoder.encode(files))
    learning = [[name for name, one in model.named_parameters() if one.requires_grad] for model in (loaded, encoder)]
    assert learning[0] == learning[1]


def test_a_rejector_in_the_folder_is_kept_if_it_is_of_the_same_encoder(tmp_path):
    encoder, rejector = tiny(), tmp_path / "e" / "rejector"
    encoder.save_pretrained(tmp_path / "e")
    rejector.mkdir()
    (rejector / "rejector.json").write_text(json.dumps({"fingerprint": encoder.fingerprint()}))
    (rejector / "scorer.json").write_text("fitted")
    encoder.save_pretrained(tmp_path / "e")
    assert (rejector / "scorer.json").read_text() == "fitted"
    tiny(embedding_dim=4).save_pretrained(tmp_path / "e")
    assert not rejector.exists()


@pytest.mark.parametrize(
    ("moment", "error"),
    [
        ("sightline.models.encoder.save_file", OSError("disk full")),
        ("pathlib.Path.write_text", KeyboardInterrupt()),
        ("sightline.files._exchange", KeyboardInterrupt()),
    ],
)
def test_an_interrupted_save_leaves_the_old_encoder(tmp_path, moment, error):
    folder = tiny(seed=1).save_pretrained(tmp_path / "encoder")
    with patch(moment, side_effect=error), pytest.raises(type(error)):
        tiny(seed=2).save_pretrained(folder)
    assert list(tmp_path.iterdir()) == [folder]
    assert Encoder.from_pretrained(folder).fingerprint() == tiny(seed=1).fingerprint()


def test_what_cannot_be_made_encoded_saved_or_loaded_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "text.toml").write_text("mine")
    assert_refused(["'cls'", "'test_vit2'"], Encoder.create, "test_vit2", pooling="cls", image_size=64)
    assert_refused(["resize", "20", "24"], tiny, resize=20)
    encoder = tiny()
    for images, *facts in (
        ("a.png", "str"),
        (picture(0), "Image"),
        (np.zeros((5, 5, 4), np.uint8), "ndarray"),
        ([picture(0), np.zeros((4, 4, 3))], "image 1", "float64"),
        ([np.zeros((3, 4, 5), np.uint8)], "image 0", "(3, 4, 5)"),
        ([np.zeros((0, 4, 3), np.uint8)], "image 0", "(0, 4, 3)"),
        ([picture(0), "photos/text.toml", "none.png"], "2 faults", "text.toml", "none.png"),
    ):
        assert_refused(facts, encoder.encode, images, 2)
    assert_refused([str(tmp_path / "photos")], encoder.save_pretrained, tmp_path / "photos")
    assert [path.read_text() for path in (tmp_path / "photos").iterdir()] == ["mine"]
    assert_refused([SETTINGS_FILE], Encoder.from_pretrained, tmp_path / "none")


def changed_weights(folder: Path) -> None:
    tensors = encoder_module.load_file(folder / WEIGHTS_FILE)
    tensors["head.projection.bias"][0] += 1e-3
    encoder_module.save_file(tensors, folder / WEIGHTS_FILE)


def linked(folder: Path, name: str, target: Path | None) -> None:
    (folder / name).rename(folder.parent / "outside")
    (folder / name).symlink_to(target or folder.parent / "outside")


@pytest.mark.parametrize(
    ("damage", "fact"),
    [
        (lambda folder: (folder / WEIGHTS_FILE).unlink(), WEIGHTS_FILE),
        (lambda folder: (folder / WEIGHTS_FILE).write_bytes((folder / WEIGHTS_FILE).read_bytes()[:200]), WEIGHTS_FILE),
        (changed_weights, "fingerprint"),
        (lambda folder: linked(folder, SETTINGS_FILE, None), SETTINGS_FILE),
        (lambda folder: linked(folder, WEIGHTS_FILE, Path("/dev/zero")), WEIGHTS_FILE),
        (lambda folder: (folder / SETTINGS_FILE).write_bytes(b"{"), SETTINGS_FILE),
        (lambda folder: (folder / SETTINGS_FILE).write_bytes(b"[1, 2]"), SETTINGS_FILE),
        ({"format": 2}, "format 2"),
        ({"fingerprint": None}, "fingerprint"),
        ({"preprocessing": Preprocessing(crop=24, resize=28).model_dump()}, "fingerprint"),
        ({"backbone": "test_resnet"}, WEIGHTS_FILE),
        ({"backbone": "no such model"}, "no such model"),
        ({"pooling": "no such pooling"}, "no such pooling"),
        ({"dropout": 0.1}, "dropout"),
        ({"embedding_dim": 10**9}, "embedding_dim"),  # before it takes memory
        ({"whitening_dim": 10**9}, "whitening_dim"),
        ({"module": {"factory": "os:system"}}, "'os'"),
        ({"module": {"factory": None}}, "factory"),
    ],
)
def test_a_damaged_folder_is_refused(tmp_path, damage, fact):
    folder = tiny().save_pretrained(tmp_path / "encoder")
    if callable(damage):
        damage(folder)
    else:
        settings = json.loads((folder / SETTINGS_FILE).read_text())
        (folder / SETTINGS_FILE).write_text(json.dumps(settings | damage))
    assert_refused([str(folder), fact], Encoder.from_pretrained, folder)


@pytest.mark.parametrize("embedding_dim", [8, None])
def test_a_whitened_encoder_gives_what_whitening_its_vectors_gives(tmp_path, embedding_dim):
    plain, pictures = tiny(embedding_dim=embedding_dim), [picture(seed) for seed in range(40)]
    before, vectors = plain.fingerprint(), torch.from_numpy(plain.encode(pictures))
    whitening = Whitening.fit(vectors, dim=5)
    whitened = plain.whitened(whitening)
    loaded = Encoder.from_pretrained(whitened.save_pretrained(tmp_path / "whitened"))
    assert (loaded.dim, plain.dim) == (5, embedding_dim or 32)
    np.testing.assert_allclose(loaded.encode(pictures), whitening(vectors).numpy(), rtol=0, atol=1e-5)
    assert plain.fingerprint() == before != whitened.fingerprint() == loaded.fingerprint()
    assert plain.whitened(Whitening.fit(vectors, dim=5, power=0.5)).fingerprint() != whitened.fingerprint()
    assert "whitened" in loaded._repr_html_()
    whitened.train()(images())[0, 0].backward()
    assert next(whitened.backbone.parameters()).grad.abs().sum() > 0
    assert "head.whitening.weight" not in dict(whitened.named_parameters())
    assert_refused(["already"], whitened.whitened, whitening)
    assert_refused(["6"], tiny(embedding_dim=6).whitened, whitening)
