"""The commands as a user types them."""

import json
import re
import warnings

import polars as pl
import pytest

from sightline import Encoder, InputError, __version__
from sightline.evaluation.metrics import metric_names


@pytest.fixture
def encoder(tmp_path):
    return Encoder.create("tiny", 8, image_size=32).save_pretrained(tmp_path / "encoder")


def test_version_and_help(sightline):
    assert sightline("--version") == (0, f"sightline {__version__}\n", "")
    status, out, _ = sightline("--help")
    assert status == 0
    assert all(verb in out for verb in ("data", "demo", "embed", "evaluate", "search", "train"))


def test_a_dry_run_prints_the_plan_and_writes_nothing(sightline, image_tree, tiny_recipe, tmp_path):
    words = ["train", "images", f"data.manifest={image_tree}", *tiny_recipe, "memory.size=all", "chunk_size=auto"]
    status, out, _ = sightline(*words, "loss.tau=0.02", "--out", tmp_path / "run", "--dry-run")
    assert status == 0
    told = {name: value.strip() for name, _, value in (line.partition(":") for line in out.splitlines())}
    assert told["manifest"] == str(image_tree)
    assert told["training"] == "60 images, 10 < 3 classes"
    assert told["validation"] == "12 images, 2 < 2 classes"
    assert told["decides"] == "max map@r, every 1 epoch(s)"
    assert (told["memory"], told["chunk size"]) == ("60 items", "16 (auto: half of the free memory)")
    assert told["loss"] == "roadmap (tau=0.02), 0 weights"
    assert told["batches"].startswith("16 images each, ")
    n_batches = int(told["batches"].split()[-3])
    assert told["steps"] == f"{3 * n_batches} in 3 epochs"
    assert told["devices"].startswith("1 process(es) on ")
    assert re.search(r"weights \d+ MB, .* activations \d+ MB, .*: \d+ MB a process", told["memory estimate"])
    assert not (tmp_path / "run").exists()
    status, out, err = sightline(*words, "loss.name=roadmop", "--dry-run")
    assert (status, out) == (2, "")
    assert "did you mean 'roadmap'" in err


def test_a_run_that_was_stopped_names_no_encoder_that_is_not_there(sightline, image_tree, tiny_recipe, tmp_path):
    words = ["train", "images", f"data.manifest={image_tree}", *tiny_recipe, "--out", tmp_path / "run"]
    status, out, err = sightline(*words, "--max-minutes", 0)
    assert (status, out) == (0, "")
    assert "stopped at step 1: go on with --resume" in err
    status, out, err = sightline(*words, "--resume")
    assert (status, out) == (0, f"{tmp_path / 'run/encoder'}\n")
    assert "not as when the run began" not in err


def test_from_a_folder_to_a_search_result(sightline, image_tree, tiny_recipe, tmp_path):
    status, out, _ = sightline("data", "check", image_tree, *tiny_recipe)
    assert (status, "72 images, 2 label levels, no fault" in out, "12 < 3 classes" in out) == (0, True, True)

    run_folder = tmp_path / "run"
    status, out, _ = sightline("train", "images", f"data.manifest={image_tree}", *tiny_recipe, "--out", run_folder)
    assert (status, out.strip().splitlines()[-1]) == (0, str(run_folder / "encoder"))

    table = tmp_path / "images.parquet"
    status, out, _ = sightline("embed", run_folder / "encoder", image_tree, "--out", table, "--workers", 0)
    assert (status, "72 vectors of 16" in out) == (0, True)

    status, out, _ = sightline("evaluate", table, "-k", 1, "-k", 3, "--json", tmp_path / "result.json")
    assert status == 0
    assert [line.split()[0] for line in out.splitlines()] == [*metric_names([1, 3], n_levels=2), "72"]
    stored = json.loads((tmp_path / "result.json").read_text())
    assert f"map@r        {100 * stored['metrics']['map@r']:5.1f}" in out

    asked = ["--metric", "ndcg@5", "--metric", "map_label_1", "--gallery", table, "--interval", 0.9]
    status, out, _ = sightline("evaluate", table, *asked)
    assert (status, [line.split()[0] for line in out.splitlines()][:2]) == (0, ["ndcg@5", "map_label_1"])
    status, _, err = sightline("evaluate", table, "--metric", "mpa")
    assert (status, "unknown metric 'mpa': did you mean 'map'?" in err) == (2, True)

    status, _, err = sightline("evaluate", table, "--split", "tset")
    assert (status, "no image in split 'tset'; it has 'train'" in err) == (2, True)

    query = image_tree / "super0/class00/0.png"
    status, out, _ = sightline("search", query, "--table", table, "--encoder", run_folder / "encoder", "-k", 3)
    first, *hits = out.splitlines()
    assert (status, first, len(hits)) == (0, str(query), 3)
    place, score, path, *labels = hits[0].split()
    assert (place, float(score), path, labels) == ("1", 1.0, str(query), ["class00", "<", "super0"])


def test_embed_takes_one_split_and_images_without_labels(sightline, encoder, image_tree, tmp_path):
    flat = image_tree / "super0/class00"
    status, out, _ = sightline("embed", encoder, flat, "--out", tmp_path / "flat.parquet", "--workers", 0)
    assert (status, "6 vectors of 8" in out) == (0, True)
    status, _, err = sightline("evaluate", tmp_path / "flat.parquet")
    assert (status, "no labels to evaluate by" in err) == (2, True)
    status, _, err = sightline("embed", encoder, flat, "--out", tmp_path / "no.parquet", "--split", "test")
    assert (status, "no image in split 'test'; it has 'train'" in err) == (2, True)
    assert not (tmp_path / "no.parquet").exists()


def test_search_refuses_a_table_of_another_encoder(sightline, encoder, image_tree, tmp_path):
    sightline("embed", encoder, image_tree, "--out", tmp_path / "t.parquet", "--workers", 0)
    other = Encoder.create("tiny", 8, image_size=32, seed=1).save_pretrained(tmp_path / "other")
    query = image_tree / "super0/class00/0.png"
    status, out, err = sightline("search", query, "--table", tmp_path / "t.parquet", "--encoder", other)
    assert (status, out) == (2, "")
    assert "another encoder" in err


def test_prepare_writes_glyphs_and_suggests_the_nearest_name(sightline, tmp_path, monkeypatch):
    from sightline.data.readers import glyphs

    monkeypatch.setitem(glyphs.SIZES, "small", glyphs.GlyphSize(6, 2))
    status, out, _ = sightline("data", "prepare", "glyphs", "--out", tmp_path / "glyphs")
    assert (status, out.strip().splitlines()[-1]) == (0, str(tmp_path / "glyphs/manifest.csv"))
    assert len(pl.read_csv(tmp_path / "glyphs/manifest.csv")) == 12
    status, _, err = sightline("data", "prepare", "glyfs", "--out", tmp_path / "x")
    assert (status, "unknown data set 'glyfs': did you mean 'glyphs'?" in err) == (2, True)


class TestMistakes:
    """One message, status 2, no traceback, nothing written."""

    @pytest.fixture
    def assert_complains(self, sightline, tmp_path):
        def complain(words, *phrases):
            before = sorted(tmp_path.rglob("*"))
            status, _, err = sightline(*words)
            assert status == 2
            assert "Traceback" not in err
            for phrase in phrases:
                assert phrase in err
            assert sorted(tmp_path.rglob("*")) == before

        return complain

    @pytest.fixture
    def manifest(self, image_tree, tmp_path):
        """Writes a CSV of two good rows and the given ones."""

        def write(*rows, header="path,split,label"):
            good = [f"{image_tree}/super0/class00/{i}.png,train,a" for i in range(2)]
            (tmp_path / "m.csv").write_text("\n".join([header, *good, *rows]) + "\n")
            return tmp_path / "m.csv"

        return write

    def test_a_missing_column(self, assert_complains, manifest):
        assert_complains(
            ["data", "check", manifest(header="path,split,name")], "m.csv: no column 'label'; the header has 'path'"
        )

    def test_an_unknown_split_and_an_empty_label_together(self, assert_complains, manifest):
        file = manifest("x.png,trian,b", "y.png,test,")
        assert_complains(["data", "check", file], "2 faults", "line 4: split is 'trian'", "line 5: label is empty")

    def test_a_path_that_does_not_exist(self, assert_complains, manifest, tiny_recipe, tmp_path):
        file = manifest("gone.png,train,a", "lost.png,train,a")
        assert_complains(["data", "check", file], "gone.png: no such file", "lost.png: no such file")
        words = ["train", "images", f"data.manifest={file}", *tiny_recipe, "data.val_fraction=0", "sampler.batch_size=4"]
        assert_complains([*words, "--out", tmp_path / "run"], "gone.png: no such file")

    def test_an_image_that_does_not_decode(self, assert_complains, encoder, manifest, tmp_path):
        (tmp_path / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
        file = manifest("bad.png,train,a")
        assert_complains(["data", "check", file], "bad.png: not a readable image")
        for workers in (0, 1):
            words = ["embed", encoder, file, "--out", tmp_path / "t.parquet", "--workers", workers]
            assert_complains(words, "bad.png: not a readable image")

    def test_a_misspelt_key_of_a_recipe(self, assert_complains, tmp_path):
        recipe = tmp_path / "mine.toml"
        recipe.write_text('[data]\nmanifest = "images"\n[optimizer]\nlearning_rat = 1e-3\n[los]\nname = "sup_ap"\n')
        assert_complains(
            ["train", recipe], "unknown key 'optimizer.learning_rat'", "unknown key 'los': did you mean 'loss'?"
        )

    def test_a_lonely_class(self, assert_complains, manifest, image_tree, tiny_recipe, tmp_path):
        file = manifest(f"{image_tree}/super1/class01/0.png,train,lonely")
        words = ["train", "images", f"data.manifest={file}", *tiny_recipe, "sampler.per_class=2", "data.val_fraction=0"]
        assert_complains([*words, "--out", tmp_path / "run"], "1 of 2 training classes are unusable", "'lonely'")

    def test_an_encoder_of_another_version(self, assert_complains, encoder, image_tree, tmp_path):
        settings = json.loads((encoder / "encoder.json").read_text())
        (encoder / "encoder.json").write_text(json.dumps(settings | {"format": 99}))
        words = ["embed", encoder, image_tree, "--out", tmp_path / "t.parquet"]
        assert_complains(words, "an encoder of format 99; this version of Sightline reads 1")

    def test_files_that_are_not_what_they_should_be(self, assert_complains, image_tree, tmp_path):
        (tmp_path / "t.parquet").write_text("no table")
        assert_complains(["evaluate", tmp_path / "t.parquet"], "t.parquet: cannot be read as an embedding table")
        assert_complains(["evaluate", tmp_path / "none.parquet"], "none.parquet: no such file")
        assert_complains(["embed", tmp_path / "none", image_tree, "--out", tmp_path / "x"], "not an encoder folder")
        assert_complains(["train", "imagse"], "neither a .toml file nor a shipped recipe: did you mean 'images'?")

    def test_a_place_that_cannot_be_written_to(self, assert_complains, encoder, image_tree, tmp_path):
        (tmp_path / "file").write_text("mine")
        words = ["embed", encoder, image_tree, "--workers", 0, "--out", tmp_path / "file/t.parquet"]
        assert_complains(words, f"sightline: {tmp_path}/file: ")


def test_a_warning_is_one_line_and_those_of_libraries_are_not_shown(sightline, monkeypatch):
    def warn(*_, **__):
        warnings.warn("only 3 images", stacklevel=1)
        warnings.warn("a library speaks to programmers", DeprecationWarning, stacklevel=1)
        raise InputError("no such thing")

    monkeypatch.setattr("sightline.data.manifest.read_manifest", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert sightline("data", "stats", "x.csv") == (2, "", "sightline: only 3 images\nsightline: no such thing\n")
