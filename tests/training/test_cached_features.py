"""Features on disk: computed once, keyed by network, transform and image, resumable and never half written."""

import os
import re
import shutil
from pathlib import Path

import polars as pl
import pytest
import torch
from torch.testing import assert_close

from refusals import assert_refused
from sightline import Encoder, read_manifest
from sightline.data.dataset import ImageDataset
from sightline.data.transforms import eval_transform, train_transform
from sightline.models.stages import UpperEncoder
from sightline.training.cached_features import cache_features, cache_folder


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache/features"


class Learner(UpperEncoder):
    """Counts the images that its resting part sees."""

    def __init__(self, seed=0, n_stages=1):
        super().__init__(Encoder.create("tiny", 8, image_size=16, resize=18, seed=seed), f"upper:{n_stages}")
        self.n_images = 0

    @property
    def preprocessing(self):
        return self.encoder.settings.preprocessing

    def resting(self, images):
        self.n_images += len(images)
        return super().resting(images)


@pytest.fixture
def manifest(image_tree):
    return read_manifest(image_tree)


def test_features_are_those_of_the_transformed_images_in_float16(manifest):
    learner = Learner()
    features = cache_features(learner, manifest, learner.preprocessing)
    assert (len(features), features.shape) == (len(manifest), (16, 4, 4))
    images = ImageDataset.of(manifest, eval_transform(learner.preprocessing))
    expected = learner.resting(torch.stack([images[place] for place in (5, 0)]))
    assert_close(features.read([5, 0], [0, 0]), expected.half().float(), rtol=0, atol=1e-3)


def test_what_is_on_disk_is_not_computed_again(image_tree, tmp_path, capsys):
    manifest, learner = read_manifest(shutil.copytree(image_tree, tmp_path / "tree")), Learner()
    first = cache_features(learner, manifest, learner.preprocessing)
    assert learner.n_images == len(manifest) + 1  # one to find the shape out
    cache_features(learner, manifest, learner.preprocessing, show_progress=True)
    assert learner.n_images == len(manifest) + 2
    assert re.search(r"\b0 images to compute\n$", capsys.readouterr().err), "and there is no bar of nothing"
    before = first.read([3], [0])
    os.truncate(first.files[3], 10)  # as after a power cut
    os.utime(Path(manifest.paths()[7]), ns=(1, 1))  # changed since
    changed = cache_features(learner, manifest, learner.preprocessing)
    assert learner.n_images == len(manifest) + 3 + 2
    assert [one for one in range(len(first)) if changed.files[one] != first.files[one]] == [7]
    assert_close(changed.read([3], [0]), before, rtol=0, atol=1e-3)


def test_another_network_transform_or_number_of_views_has_files_of_its_own(manifest, cache):
    learner = Learner()
    seen, random = learner.preprocessing, train_transform(learner.preprocessing)
    cases = [(learner, seen, 1), (Learner(seed=1), seen, 1), (Learner(n_stages=2), seen, 1), (learner, random, 1)]
    cases += [(learner, seen.model_copy(update={"resize": 20}), 1), (learner, random, 2)]
    made = {cache_features(network, manifest, *rest).files[0] for network, *rest in cases}
    assert len(made) == len(cases) == len(list(cache.iterdir()))


def test_views_of_an_image_differ_and_depend_on_neither_others_nor_folders(image_tree, manifest, tmp_path, monkeypatch):
    learner = Learner()
    moved = shutil.copytree(image_tree, tmp_path / "moved", copy_function=shutil.copy)  # with other dates
    found = [
        cache_features(learner, images, train_transform(learner.preprocessing), 3).read(range(9), [2] * 9)
        for images in (manifest, read_manifest(moved))
    ]
    assert learner.n_images > 2 * 3 * len(manifest)  # computed twice
    assert_close(*found, atol=0, rtol=0)
    learner = Learner()
    transform = train_transform(learner.preprocessing)
    views = cache_features(learner, manifest, transform, n_views=3).read([4, 4, 4, 4], [0, 1, 2, 3])
    assert not torch.equal(views[0], views[1])
    assert_close(views[3], views[0], rtol=0, atol=0)  # counted from the first again
    monkeypatch.setenv("SIGHTLINE_CACHE", str(tmp_path / "other"))
    alone = cache_features(learner, manifest.where(pl.int_range(pl.len()) == 4), transform, n_views=3)
    assert_close(alone.read([0, 0], [1, 2]), views[1:3], rtol=0, atol=1e-3)


def test_features_that_do_not_fit_are_found_before_the_work_and_the_folder_is_named(manifest, monkeypatch, tmp_path):
    learner = Learner()
    with torch.no_grad():
        learner.encoder.backbone.layers[1][1].bias.add_(1e6)
    assert_refused(["float16", str(manifest.paths()[0])], cache_features, learner, manifest, learner.preprocessing)
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 10})())
    learner = Learner()
    assert_refused("SIGHTLINE_CACHE", cache_features, learner, manifest, learner.preprocessing)
    assert learner.n_images == 1
    monkeypatch.delenv("SIGHTLINE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_folder() == tmp_path / "sightline/features"
