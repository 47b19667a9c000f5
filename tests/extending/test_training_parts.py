"""A loss, a pooling and a tracker from another package, by their names in a recipe and in what its run leaves."""

import json

from refusals import assert_refused
from sightline import Encoder

CODE = '''
import torch
from torch import nn

from sightline.models.pooling import positions

class Margin(nn.Module):
    """Contrastive loss with a margin."""

    def __init__(self, margin: float = 0.3) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, embeddings, labels):
        scores = embeddings @ embeddings.T
        same = labels[:, None] == labels
        return torch.where(same, 1 - scores, (scores - self.margin).clamp(min=0)).mean()

class Median(nn.Module):
    """Median over positions."""

    def __init__(self, n_prefix_tokens: int = 0) -> None:
        super().__init__()
        self.n_prefix_tokens = n_prefix_tokens

    def forward(self, features):
        return positions(features, self.n_prefix_tokens).median(2).values

class Lines:
    """One line of text a step."""

    def __init__(self, folder, step):
        self.file = (folder / "lines.txt").open("a")

    def write(self, step, values):
        print(step, *sorted(values), file=self.file)

    def close(self):
        self.file.close()
'''
ADDED = {
    "losses": "my_margin = others:Margin",
    "poolings": "median = others:Median",
    "trackers": "lines = others:Lines",
}
RELOAD = "import sys; from sightline import Encoder; print(type(Encoder.from_pretrained(sys.argv[1]).pooling).__name__)"


def test_a_loss_a_pooling_and_a_tracker_of_another_package_train(other_package, image_tree, tiny_recipe, tmp_path):
    python, run = other_package(CODE, **ADDED), tmp_path / "run"
    names = ["loss.name=my_margin", "model.pooling=median", 'loggers=["lines"]', "schedule.epochs=1"]
    command = ["-m", "sightline", "train", "images", f"data.manifest={image_tree}", *tiny_recipe, *names, "--out", run]
    refused = python(*command, "loss.margni=0.4", status=2)
    assert "margni" in refused.stderr
    assert "'margin'" in refused.stderr
    assert not run.exists()
    python(*command, "loss.margin=0.4")
    stored = json.loads((run / "recipe.json").read_text())
    assert (stored["loss"]["name"], stored["loss"]["margin"]) == ("my_margin", 0.4)
    assert "my_margin" in (run / "encoder" / "README.md").read_text()
    assert any("loss" in line for line in (run / "lines.txt").read_text().splitlines())
    assert python("-c", RELOAD, run / "encoder").stdout.strip() == "Median"
    assert_refused("'median'", Encoder.from_pretrained, run / "encoder")  # this process does not have the package
