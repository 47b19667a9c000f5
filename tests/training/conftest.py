"""What tests of training share: recipes for a tiny network, and one finished run of it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sightline import Recipe, read_recipe, train


@pytest.fixture(scope="session")
def recipe_with(image_tree: Path, tiny_recipe: list[str]) -> Callable[..., Recipe]:
    """Read the tiny recipe with more overrides."""

    def read(*overrides: str, manifest: Path = image_tree) -> Recipe:
        return read_recipe("images", [f"data.manifest={manifest}", *tiny_recipe, *overrides])

    return read


@pytest.fixture(scope="session")
def plain_run(recipe_with: Callable[..., Recipe], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished run of the tiny recipe; for reading only."""
    folder = tmp_path_factory.mktemp("plain") / "run"
    train(recipe_with(), folder)
    return folder
