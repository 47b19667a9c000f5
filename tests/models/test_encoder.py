import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from torch.testing import assert_close

from sightline.data.dataset import ImageDataset
from sightline.data.transforms import Preprocessing, eval_transform
from sightline.errors import InputError
from sightline.models import encoder as encoder_module
from sightline.models.backbones import batch_norms
from sightline.models.encoder import SETTINGS_FILE, WEIGHTS_FILE, Encoder


def tiny(**options) -> Encoder:
    return Encoder.create("tiny", **{"embedding_dim": 8, "image_size": 24} | options)


def picture(seed: int, width: int = 40, height: int = 30) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def images(n_images: int = 4, side: int = 24) -> torch.Tensor:
    return torch.randn(n_images, 3, side, side, generator=torch.Generator().manual_seed(0))


def complaint(action, *arguments, **options) -> str:
    with pytest.raises(InputError) as caught:
        action(*arguments, **options)
    return str(caught.value)


def assert_same_bits(one, other) -> None:
    assert_close(one, other, rtol=0, atol=0)


# Made


@pytest.mark.parametrize(
    ("backbone", "pooling", "embedding_dim", "dim"),
    [
        ("tiny", "gem", 8, 8),
        ("tiny", "max", None, 32),
        ("test_resnet", "avg", 8, 8),
        ("test_vit", "gem", None, 64),
        ("test_vit", "cls", 8, 8),
        ("test_vit2", "avg", 8, 8),
        ("test_mambaout", "gem", 8, 8),
    ],
)
def test_any_backbone_gives_unit_vectors(backbone, pooling, embedding_dim, dim):
    encoder = Encoder.create(backbone, embedding_dim, pooling, image_size=64).eval()
    vectors = encoder(images(side=64))
    assert encoder.dim == dim
    assert vectors.shape == (4, dim)
    assert_close(vectors.norm(dim=1), torch.ones(4))
    assert vectors.std(0).max() > 0  # not the same for all


def test_the_bundled_encoder():
    encoder = Encoder.create("tf_efficientnet_lite0", weights="bundled")
    assert encoder.settings.preprocessing == Preprocessing(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    assert encoder.dim == 512
    flower, temple = (load_sample_image(name) for name in ("flower.jpg", "china.jpg"))
    one, cut, mirrored, other = encoder.encode([flower, flower[10:, 20:], np.ascontiguousarray(flower[:, ::-1]), temple])
    assert np.isfinite(one).all()
    assert min(one @ cut, one @ mirrored) > 0.8
    assert one @ other < 0.4


@pytest.mark.parametrize(("image_size", "resize"), [(224, 256), (32, 37), (448, 512)])
def test_the_shorter_side_is_an_eighth_longer_than_the_square_unless_told(image_size, resize):
    assert tiny(image_size=image_size).settings.preprocessing.resize == resize
    assert tiny(image_size=image_size, resize=image_size).settings.preprocessing.resize == image_size


def test_random_weights_follow_from_the_seed_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = tiny(seed=3)
    assert_same_bits(torch.get_rng_state(), before)
    torch.rand(10)
    assert tiny(seed=3).fingerprint() == first.fingerprint()
    assert tiny(seed=4).fingerprint() != first.fingerprint()


def test_the_head_is_drawn_from_the_seed_where_the_backbone_is_not(tmp_path):
    source = Encoder.create("test_resnet", image_size=64)
    weights = {name: tensor.contiguous() for name, tensor in source.backbone.state_dict().items()}
    encoder_module.save_file(weights, tmp_path / "w.safetensors")
    one, other = (
        Encoder.create("test_resnet", weights=str(tmp_path / "w.safetensors"), image_size=64, seed=seed) for seed in (1, 2)
    )
    assert_same_bits(dict(one.backbone.state_dict()), weights)
    assert_same_bits(dict(other.backbone.state_dict()), weights)
    assert not torch.equal(one.head.projection.weight, other.head.projection.weight)


@pytest.mark.parametrize("backbone", ["tiny", "test_resnet", "test_vit2"])
def test_the_class_token_is_refused_where_there_is_none(backbone):
    message = complaint(Encoder.create, backbone, pooling="cls", image_size=64)
    assert message == f"pooling 'cls' needs a class token, backbone {backbone!r} has none"


def test_an_image_size_that_the_backbone_cannot_take_is_refused_at_once():
    message = complaint(Encoder.create, "test_vit3", image_size=64)
    assert message.startswith("backbone 'test_vit3' takes no images of 64 x 64 pixels: ")
    assert Encoder.create("test_vit3", image_size=160).dim == 512


def test_a_new_encoder_is_ready_to_be_trained():
    encoder = tiny(freeze_batch_norm="none")
    assert all(module.training for module in encoder.modules())
    assert all(not parameter.is_inference() for parameter in encoder.parameters())


# Frozen batch norm


def running_statistics(encoder: Encoder) -> list[torch.Tensor]:
    return [tensor.clone() for layer in batch_norms(encoder) for tensor in (layer.running_mean, layer.running_var)]


def trained_a_step(freeze_batch_norm: str, backbone: str = "tiny") -> Encoder:
    encoder = Encoder.create(backbone, 8, image_size=64, freeze_batch_norm=freeze_batch_norm)
    encoder.eval()
    encoder.train()
    learning = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    optimizer = torch.optim.SGD(learning, lr=1.0)
    encoder(images(side=64))[:, 0].sum().backward()
    optimizer.step()
    return encoder


@pytest.mark.parametrize("backbone", ["tiny", "test_efficientnet"])
@pytest.mark.parametrize("freeze_batch_norm", ["stats", "all"])
def test_frozen_statistics_are_the_same_bits_after_a_step(freeze_batch_norm, backbone):
    fresh = Encoder.create(backbone, 8, image_size=64)
    encoder = trained_a_step(freeze_batch_norm, backbone)
    assert_same_bits(running_statistics(encoder), running_statistics(fresh))
    assert not torch.equal(encoder.head.projection.weight, fresh.head.projection.weight)  # it did learn


def test_statistics_move_where_nothing_is_frozen():
    moved, fresh = running_statistics(trained_a_step("none")), running_statistics(tiny())
    assert len(moved) == 6
    assert not any(torch.equal(one, other) for one, other in zip(moved, fresh, strict=True))


@pytest.mark.parametrize(("freeze_batch_norm", "learns"), [("none", True), ("stats", True), ("all", False)])
def test_batch_norm_weights_learn_unless_all_is_frozen(freeze_batch_norm, learns):
    encoder = trained_a_step(freeze_batch_norm)
    layers = batch_norms(encoder)
    assert len(layers) == 3
    for layer in layers:
        for parameter in (layer.weight, layer.bias):
            assert parameter.requires_grad == learns
            assert (parameter.grad is not None) == learns
    assert encoder.backbone.layers[0][0].weight.grad is not None


def test_the_backbone_can_be_kept_from_learning_and_let_go():
    encoder = tiny(freeze_batch_norm="all")
    encoder.allow_gradients(backbone=False)
    assert not any(parameter.requires_grad for parameter in encoder.backbone.parameters())
    assert all(parameter.requires_grad for parameter in encoder.head.parameters())
    assert encoder.pooling.power.requires_grad
    encoder.allow_gradients(backbone=True)
    learning = {name for name, parameter in encoder.backbone.named_parameters() if parameter.requires_grad}
    assert learning == {f"layers.{number}.0.weight" for number in range(3)}


# Encode


@pytest.fixture
def files(tmp_path):
    paths = [tmp_path / f"{number}.png" for number in range(6)]
    for number, path in enumerate(paths):
        picture(number).save(path)
    return paths


def test_paths_words_images_and_arrays_keep_their_order(files):
    encoder = tiny()
    expected = encoder(torch.stack([eval_transform(encoder.settings.preprocessing)(picture(n)) for n in range(6)]))
    mixed = [files[0], str(files[1]), picture(2), np.asarray(picture(3)), picture(4).convert("RGBA"), files[5]]
    vectors = encoder.encode(mixed, batch_size=4)
    assert vectors.dtype == np.float32
    assert_close(torch.from_numpy(vectors), expected.detach(), rtol=0, atol=1e-5)


def test_arrays_of_grey_and_of_four_channels():
    encoder = tiny()
    grey = np.random.default_rng(0).integers(0, 256, (30, 40), dtype=np.uint8)
    opaque = np.dstack([grey, grey, grey, np.full_like(grey, 255)])
    one, two, three = encoder.encode([grey, np.dstack([grey] * 3), opaque])
    np.testing.assert_allclose(two, one, atol=1e-6)
    np.testing.assert_allclose(three, one, atol=1e-6)


@pytest.mark.parametrize(
    ("backbone", "batch_size"), [("tiny", 1), ("tiny", 2), ("tiny", 5), ("tiny", 100), ("test_vit", 4)]
)
def test_the_batch_size_does_not_matter(files, backbone, batch_size):
    encoder = Encoder.create(backbone, 8, image_size=32)
    np.testing.assert_allclose(encoder.encode(files, batch_size=batch_size), encoder.encode(files), atol=1e-5, rtol=0)


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_worker_processes_do_not_matter(files):
    encoder = tiny()
    np.testing.assert_array_equal(encoder.encode(files, batch_size=2, n_workers=2), encoder.encode(files, batch_size=2))


@pytest.mark.parametrize("mode", [True, False])
def test_the_mode_is_what_it_was_and_no_statistics_move(files, mode):
    encoder = tiny(freeze_batch_norm="none").train(mode)
    before = encoder.fingerprint()
    encoder.encode(files)
    assert all(module.training == mode for module in encoder.modules())
    assert encoder.fingerprint() == before


def test_the_mode_is_what_it_was_after_an_error(tmp_path):
    encoder = tiny().train()
    complaint(encoder.encode, [tmp_path / "none.png"])
    assert encoder.training


def test_frozen_batch_norms_are_still_frozen_afterwards(files):
    encoder = tiny(freeze_batch_norm="stats").train()
    encoder.encode(files)
    assert encoder.training
    assert not any(layer.training for layer in batch_norms(encoder))


def test_no_images_give_no_vectors():
    assert tiny().encode([]).shape == (0, 8)


def test_a_data_set_is_encoded_in_its_order(files):
    encoder = tiny()
    dataset = ImageDataset(files, eval_transform(encoder.settings.preprocessing))
    np.testing.assert_array_equal(encoder.encode_dataset(dataset, batch_size=4), encoder.encode(files, batch_size=4))


@pytest.mark.parametrize(
    "single", ["a.png", Path("a.png"), picture(0), np.asarray(picture(0)), np.zeros((5, 5, 4), np.uint8)]
)
def test_a_single_image_is_refused(single):
    assert complaint(tiny().encode, single).startswith("encode takes a list of images, found a single ")


def test_a_stack_of_arrays_is_a_list_of_images():
    stack = np.stack([np.asarray(picture(number)) for number in range(3)])
    np.testing.assert_array_equal(tiny().encode(stack), tiny().encode(list(stack)))


@pytest.mark.parametrize(
    "array",
    [
        np.zeros((4, 4, 3), np.float32),
        np.zeros((4, 4, 3), np.int64),
        np.zeros((3, 4, 5), np.uint8),
        np.zeros((4,), np.uint8),
        np.zeros((0, 4, 3), np.uint8),
        np.zeros((2, 4, 4, 3), np.uint8),
    ],
)
def test_an_array_that_is_no_image_is_refused(array):
    message = complaint(tiny().encode, [picture(0), array])
    assert message == (f"image 1: uint8 (H, W), (H, W, 3) or (H, W, 4) is needed, found {array.dtype} {array.shape}")


def test_all_broken_images_are_named(files, tmp_path):
    (tmp_path / "text.png").write_text("text")
    mixed = [files[0], tmp_path / "text.png", files[1], tmp_path / "none.png"]
    message = complaint(tiny().encode, mixed, batch_size=2)
    assert message.startswith("images: 2 faults\n")
    assert f"{tmp_path / 'text.png'}: not a readable image" in message
    assert f"{tmp_path / 'none.png'}: no such file" in message


def test_progress_goes_to_standard_error(files, capfd):
    tiny().encode(files)
    assert capfd.readouterr() == ("", "")
    tiny().encode(files, show_progress=True)
    out, err = capfd.readouterr()
    assert (out, "Embedding" in err) == ("", True)


# Fingerprint


def test_the_fingerprint_changes_with_any_weight_or_statistic():
    encoder = tiny(freeze_batch_norm="none")
    seen = {encoder.fingerprint()}
    tensors = [tensor for name, tensor in encoder.state_dict().items() if not name.endswith("num_batches_tracked")]
    for tensor in tensors:
        tensor[(-1,) * tensor.ndim] += 1e-3
        seen.add(encoder.fingerprint())
    assert len(seen) == len(tensors) + 1


@pytest.mark.parametrize(
    "options",
    [
        {"resize": 30},
        {"image_size": 25, "resize": 27},
        {"pooling": "avg"},
        {"embedding_dim": None},
    ],
)
def test_the_fingerprint_changes_with_the_settings(options):
    assert tiny(**options).fingerprint() != tiny().fingerprint()


def test_the_fingerprint_changes_with_the_colours():
    encoder = tiny()
    preprocessing = encoder.settings.preprocessing.model_copy(update={"mean": (0.5, 0.5, 0.5)})
    other = Encoder(encoder.settings.model_copy(update={"preprocessing": preprocessing}), encoder.backbone)
    other.load_state_dict(encoder.state_dict())
    assert other.fingerprint() != encoder.fingerprint()


def test_the_fingerprint_does_not_depend_on_mode_gradients_or_layout():
    encoder = tiny()
    expected = encoder.fingerprint()
    encoder.eval()
    encoder.allow_gradients(backbone=False)
    assert encoder.fingerprint() == expected
    assert encoder.to(memory_format=torch.contiguous_format).fingerprint() == expected


# Saved and loaded


@pytest.mark.parametrize(
    ("backbone", "pooling", "embedding_dim", "freeze"),
    [
        ("tiny", "gem", 8, "stats"),
        ("tiny", "max", None, "none"),
        ("test_vit", "cls", 8, "all"),
        ("test_efficientnet", "avg", 8, "all"),
    ],
)
def test_what_is_loaded_is_what_was_saved(tmp_path, files, backbone, pooling, embedding_dim, freeze):
    encoder = Encoder.create(backbone, embedding_dim, pooling, image_size=32, resize=40, freeze_batch_norm=freeze, seed=7)
    with torch.no_grad():
        for tensor in encoder.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(0.01)
    assert encoder.save_pretrained(tmp_path / "made" / "encoder") == tmp_path / "made" / "encoder"
    loaded = Encoder.from_pretrained(str(tmp_path / "made" / "encoder"))
    assert loaded.settings == encoder.settings
    assert loaded.fingerprint() == encoder.fingerprint()
    assert not loaded.training
    np.testing.assert_array_equal(loaded.encode(files), encoder.encode(files))
    learning = [name for name, parameter in encoder.named_parameters() if parameter.requires_grad]
    assert [name for name, parameter in loaded.named_parameters() if parameter.requires_grad] == learning


def test_an_encoder_is_a_folder_of_two_files_without_pickle(tmp_path):
    folder = tiny().save_pretrained(tmp_path / "encoder")
    assert sorted(path.name for path in folder.iterdir()) == ["README.md", SETTINGS_FILE, WEIGHTS_FILE]
    assert list(tmp_path.iterdir()) == [folder]
    described = json.loads((folder / SETTINGS_FILE).read_text())
    assert (described["format"], described["backbone"], described["embedding_dim"]) == (1, "tiny", 8)
    assert described["fingerprint"] == tiny().fingerprint()


def test_loading_draws_nothing_from_the_global_generator(tmp_path):
    folder = tiny().save_pretrained(tmp_path / "encoder")
    before = torch.get_rng_state()
    Encoder.from_pretrained(folder)
    assert_same_bits(torch.get_rng_state(), before)


def test_saving_changes_nothing(tmp_path):
    encoder = tiny(freeze_batch_norm="none")
    expected = encoder.fingerprint()
    encoder.save_pretrained(tmp_path / "encoder")
    assert encoder.fingerprint() == expected
    assert encoder.training


def test_a_rejector_in_the_folder_is_kept_if_it_is_of_the_same_encoder(tmp_path):
    encoder = tiny()
    encoder.save_pretrained(tmp_path / "e")
    (tmp_path / "e" / "rejector").mkdir()
    (tmp_path / "e" / "rejector" / "rejector.json").write_text(json.dumps({"fingerprint": encoder.fingerprint()}))
    (tmp_path / "e" / "rejector" / "scorer.json").write_text("fitted")
    encoder.save_pretrained(tmp_path / "e")
    assert (tmp_path / "e" / "rejector" / "scorer.json").read_text() == "fitted"
    tiny(embedding_dim=4).save_pretrained(tmp_path / "e")
    assert not (tmp_path / "e" / "rejector").exists()


def test_an_encoder_is_replaced_and_an_empty_folder_filled(tmp_path):
    folder = tmp_path / "encoder"
    folder.mkdir()
    for seed in (1, 2):
        tiny(seed=seed).save_pretrained(folder)
        assert Encoder.from_pretrained(folder).fingerprint() == tiny(seed=seed).fingerprint()
    assert list(tmp_path.iterdir()) == [folder]


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "a.txt").write_text("mine")
    assert complaint(tiny().save_pretrained, folder) == f"{folder}: exists and is not an encoder; it is left as it is"
    assert [path.read_text() for path in folder.iterdir()] == ["mine"]
    assert list(tmp_path.iterdir()) == [folder]


@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
@pytest.mark.parametrize("moment", ["weights", "settings", "the swap"])
def test_an_interrupted_save_leaves_the_old_encoder(tmp_path, monkeypatch, moment, error):
    folder = tiny(seed=1).save_pretrained(tmp_path / "encoder")

    def fail(*_, **__):
        raise error

    if moment == "weights":
        monkeypatch.setattr(encoder_module, "save_file", fail)
    elif moment == "settings":
        monkeypatch.setattr(Path, "write_text", fail)
    else:
        monkeypatch.setattr("sightline.files._exchange", fail)
    with pytest.raises(type(error)):
        tiny(seed=2).save_pretrained(folder)
    monkeypatch.undo()
    assert list(tmp_path.iterdir()) == [folder]
    assert Encoder.from_pretrained(folder).fingerprint() == tiny(seed=1).fingerprint()


# What is not an encoder


@pytest.fixture
def folder(tmp_path):
    return tiny().save_pretrained(tmp_path / "encoder")


def refused(folder: Path) -> str:
    return complaint(Encoder.from_pretrained, folder)


def described_as(folder: Path, **changes) -> Path:
    settings = json.loads((folder / SETTINGS_FILE).read_text())
    (folder / SETTINGS_FILE).write_text(json.dumps(settings | changes))
    return folder


def test_a_folder_that_is_not_there_or_lacks_a_file(folder):
    assert refused(folder / "none") == f"{folder / 'none'}: not an encoder folder: it has no {SETTINGS_FILE}"
    (folder / WEIGHTS_FILE).unlink()
    assert refused(folder) == f"{folder}: not an encoder folder: it has no {WEIGHTS_FILE}"


@pytest.mark.parametrize("version", [0, 2, "1", None])
def test_another_format_is_refused(folder, version):
    message = refused(described_as(folder, format=version))
    assert message == f"{folder}: an encoder of format {version!r}; this version of Sightline reads 1"


def test_changed_weights_are_refused(folder):
    tensors = encoder_module.load_file(folder / WEIGHTS_FILE)
    tensors["head.projection.bias"][0] += 1e-3
    encoder_module.save_file(tensors, folder / WEIGHTS_FILE)
    fingerprint = tiny().fingerprint()
    assert refused(folder) == f"{folder}: weights or settings were changed: the fingerprint is not {fingerprint}"


@pytest.mark.parametrize(
    "changes",
    [
        {"preprocessing": Preprocessing(crop=24, resize=28).model_dump()},
        {"fingerprint": "0" * 32},
        {"fingerprint": None},
        {"pooling": "avg"},
        {"embedding_dim": 9},
        {"backbone": "test_resnet"},
        {"backbone": "no such model"},
        {"pooling": "no such pooling"},
    ],
)
def test_changed_settings_are_refused(folder, changes):
    assert refused(described_as(folder, **changes))


@pytest.mark.parametrize("changes", [{"dropout": 0.1}, {"embedding_dim": "many"}, {"preprocessing": {"crop": 1}}])
def test_settings_of_another_kind_are_refused(folder, changes):
    assert refused(described_as(folder, **changes)).startswith(f"{folder / SETTINGS_FILE}: not an encoder's settings: ")


@pytest.mark.parametrize("content", [b"", b"{", b"[1, 2]", b"3", b'"text"', b"null", b"\xff\xfe"])
def test_settings_that_are_no_json_object_are_refused(folder, content):
    (folder / SETTINGS_FILE).write_bytes(content)
    assert refused(folder).startswith(f"{folder / SETTINGS_FILE}: ")


@pytest.mark.parametrize("name", [SETTINGS_FILE, WEIGHTS_FILE])
@pytest.mark.parametrize("target", ["outside", "/dev/zero", "itself"])
def test_links_in_an_encoder_folder_are_not_followed(folder, tmp_path, name, target):
    (folder / name).rename(tmp_path / "outside")
    (folder / name).symlink_to(
        tmp_path / "outside" if target == "outside" else folder / name if target == "itself" else target
    )
    assert name in refused(folder)


def test_a_card_that_is_a_link_is_not_read(folder, tmp_path):
    (folder / "README.md").rename(tmp_path / "outside.md")
    (folder / "README.md").symlink_to(tmp_path / "outside.md")
    assert Encoder.from_pretrained(folder).card is None


@pytest.mark.parametrize("changes", [{"embedding_dim": 10**9}, {"whitening_dim": 10**9}, {"embedding_dim": -1}])
def test_vectors_of_absurd_length_are_refused_before_they_take_memory(folder, changes):
    assert next(iter(changes)) in refused(described_as(folder, **changes))


@pytest.mark.parametrize("kept", [0, 5, 200, -10])
def test_truncated_weights_are_refused(folder, kept):
    (folder / WEIGHTS_FILE).write_bytes((folder / WEIGHTS_FILE).read_bytes()[:kept])
    assert refused(folder).startswith(f"{folder / WEIGHTS_FILE}: not the weights of this encoder: ")


def test_weights_of_another_encoder_are_refused(folder, tmp_path):
    other = Encoder.create("test_resnet", 8, image_size=64).save_pretrained(tmp_path / "other")
    shutil.copy(other / WEIGHTS_FILE, folder / WEIGHTS_FILE)
    assert refused(folder).startswith(f"{folder / WEIGHTS_FILE}: not the weights of this encoder: ")


def test_what_a_killed_save_left_behind_is_no_hindrance(tmp_path):
    encoder = Encoder.create("tiny", 8, image_size=32)
    left = tmp_path / ".encoder.saving"
    (left / "new").mkdir(parents=True)
    (left / "new/model.safetensors").write_bytes(b"half")
    (left / "old").mkdir()
    folder = encoder.save_pretrained(tmp_path / "encoder")
    assert Encoder.from_pretrained(folder).fingerprint() == encoder.fingerprint()
    assert [path.name for path in tmp_path.iterdir()] == ["encoder"]
