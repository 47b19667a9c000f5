"""A small set with splits, three levels and a column to query by."""

from pathlib import Path

import polars as pl
import pytest

VENDORS = ("apple", "google", "twitter", "facebook", "red", "blue")


@pytest.fixture(scope="session")
def noise(image_tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A manifest of 12 classes of 6 images below 3 parents below 1; read it, do not write to it."""
    root = tmp_path_factory.mktemp("noise")
    (root / "tree").symlink_to(image_tree)
    rows = []
    for place, folder in enumerate(sorted(image_tree.glob("*/*"))):
        split = ("train", "test", "train", "val")[place % 4]
        for item, file in enumerate(sorted(folder.iterdir())):
            path = f"tree/{file.relative_to(image_tree)}"
            rows.append((path, split, folder.name, folder.parent.name, "noise", VENDORS[item]))
    table = pl.DataFrame(rows, ["path", "split", "label_0", "label_1", "label_2", "vendor"], orient="row")
    table.write_csv(root / "manifest.csv")
    return root / "manifest.csv"
