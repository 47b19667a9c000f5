"""A pooling from another package, in a recipe and in the saved encoder."""

import pytest

from sightline import Encoder
from sightline.errors import InputError

CODE = '''
from torch import nn

from sightline.models.pooling import positions

class Median(nn.Module):
    """Median over positions."""

    def __init__(self, n_prefix_tokens: int = 0) -> None:
        super().__init__()
        self.n_prefix_tokens = n_prefix_tokens

    def forward(self, features):
        return positions(features, self.n_prefix_tokens).median(2).values
'''
RELOAD = "import sys; from sightline import Encoder; print(type(Encoder.from_pretrained(sys.argv[1]).pooling).__name__)"


def test_a_pooling_of_another_package_trains_and_loads_by_its_name(other_package, image_tree, tiny_recipe, tmp_path):
    python = other_package(CODE, "sightline.poolings", "median", "Median")
    recipe = [f"data.manifest={image_tree}", *tiny_recipe, "model.pooling=median", "schedule.epochs=1"]
    trained = python("-m", "sightline", "train", "images", *recipe, "--out", tmp_path / "run")
    assert trained.returncode == 0, trained.stderr
    reloaded = python("-c", RELOAD, tmp_path / "run" / "encoder")
    assert reloaded.stdout.strip() == "Median", reloaded.stderr
    with pytest.raises(InputError, match="'median'"):  # this process does not have the package
        Encoder.from_pretrained(tmp_path / "run" / "encoder")
