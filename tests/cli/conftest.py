"""What the commands of galleries share: an encoder on disk, and images that may be written to."""

import shutil

import pytest

from sightline.models.encoder import Encoder


@pytest.fixture(scope="module")
def encoder(tmp_path_factory):
    return Encoder.create("tiny", 8, image_size=32).save_pretrained(tmp_path_factory.mktemp("e") / "encoder")


@pytest.fixture
def images(image_tree, tmp_path):
    return shutil.copytree(image_tree, tmp_path / "home" / "images")
