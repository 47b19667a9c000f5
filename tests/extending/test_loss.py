"""A loss from another package, in the list, in a recipe and in the run's card."""

import json

CODE = '''
import torch
from torch import nn

class Margin(nn.Module):
    """Contrastive loss with a margin."""

    def __init__(self, margin: float = 0.3) -> None:
        super().__init__()
        self.margin = margin

    def forward(self, embeddings, labels):
        scores = embeddings @ embeddings.T
        same = labels[:, None] == labels
        return torch.where(same, 1 - scores, (scores - self.margin).clamp(min=0)).mean()
'''


def test_a_loss_of_another_package_trains_by_its_name(other_package, image_tree, tiny_recipe, tmp_path):
    python = other_package(CODE, "sightline.losses", "my_margin", "Margin")
    recipe = [f"data.manifest={image_tree}", *tiny_recipe, "loss.name=my_margin", "schedule.epochs=1"]
    command = ["-m", "sightline", "train", "images", *recipe, "--out", tmp_path / "run"]
    refused = python(*command, "loss.margni=0.4")
    assert (refused.returncode, "margni" in refused.stderr, "'margin'" in refused.stderr) == (2, True, True)
    assert not (tmp_path / "run").exists()
    trained = python(*command, "loss.margin=0.4")
    assert trained.returncode == 0, trained.stderr
    stored = json.loads((tmp_path / "run" / "recipe.json").read_text())
    assert (stored["loss"]["name"], stored["loss"]["margin"]) == ("my_margin", 0.4)
    assert "my_margin" in (tmp_path / "run" / "encoder" / "README.md").read_text()
