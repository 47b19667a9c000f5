"""The steps as a user types them."""

import polars as pl
import pytest
from typer.testing import CliRunner

from sightline.cli.hierarchy import app
from sightline.data.manifest import read_manifest
from sightline.embedding.table import EmbeddingTable
from sightline.errors import InputError


def run(*words):
    done = CliRunner().invoke(app, [str(word) for word in words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


def test_from_images_to_a_manifest_with_levels(image_tree, tmp_path):
    manifest = read_manifest(image_tree)
    table = manifest.table.with_columns(path=pl.Series([str(path) for path in manifest.paths()])).drop("label_1")
    flat = tmp_path / "flat.csv"
    table.write_csv(flat)
    manifest = read_manifest(flat)
    vectors = manifest.labels()[:, [0]] % 3 == [[0, 1, 2]]
    images = EmbeddingTable(manifest, vectors.astype("float32"), "test").write(tmp_path / "t.parquet")
    folder = tmp_path / "work"
    assert "12 labels, 0 with a category" in run("collect", folder, flat)
    assert "12 labels kept, 0 dropped" in run("clean", folder, "--text", "name")
    assert "12 vectors of 3" in run("embed", folder, "--images", images, "--text-weight", 0)
    assert "3 groups" in run("cluster", folder, "-k", 3)
    run("review", folder, "--csv")
    out = run("apply", folder, flat, "--out", tmp_path / "new.csv")
    assert "72 images, 2 label levels" in out
    found = read_manifest(tmp_path / "new.csv")
    true = read_manifest(image_tree)
    assert len({*zip(found.labels()[:, 1].tolist(), true.labels()[:, 1].tolist(), strict=True)}) == 3
    edited = pl.read_csv(folder / "review.csv").with_columns(group_1=pl.lit("all"))
    edited.write_csv(folder / "edited.csv")
    run("apply", folder, flat, "--out", tmp_path / "one.csv", "--review", folder / "edited.csv")
    assert {*read_manifest(tmp_path / "one.csv").table["label_1"]} == {"all"}
    with pytest.raises(InputError, match=r"conflicts\.csv: 12 texts on which the reviews differ"):
        run(
            "apply",
            folder,
            flat,
            "--out",
            tmp_path / "x.csv",
            "--review",
            folder / "edited.csv",
            "--review",
            folder / "review.csv",
        )
    assert not (tmp_path / "x.csv").exists()


def test_a_table_of_categories(tmp_path):
    (tmp_path / "l.csv").write_text("label,category\n1,Church\n2,church building\n3,Wikimedia category\n")
    assert "3 labels, 3 with a category" in run("collect", tmp_path / "work", tmp_path / "l.csv")
    out = run("clean", tmp_path / "work")
    assert "2 labels kept, 1 dropped" in out
    assert "1 says nothing" in out


def test_the_command_is_there():
    from sightline.cli.main import app as whole

    assert "hierarchy" in [group.name for group in whole.registered_groups]
