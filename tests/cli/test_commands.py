"""The commands as a user types them."""

import json
import shlex
import warnings

import pytest

from sightline import Encoder, InputError, __version__
from sightline.evaluation.metrics import metric_names


def test_version(sightline):
    assert sightline("--version") == (0, f"sightline {__version__}\n", "")


@pytest.fixture
def train_words(image_tree, tiny_recipe):
    return ["train", "images", f"data.manifest={image_tree}", *tiny_recipe]


def test_a_dry_run_prints_the_plan_and_writes_nothing(sightline, check_refused, train_words, image_tree, tmp_path):
    words = [*train_words, "memory.size=all", "chunk_size=auto"]
    status, out, _ = sightline(*words, "loss.tau=0.02", "--out", tmp_path / "run", "--dry-run")
    plan = {name: value.strip() for name, _, value in (line.partition(":") for line in out.splitlines())}
    assert (status, plan["manifest"], plan["memory"]) == (0, str(image_tree), "60 items")
    assert (plan["training"], plan["validation"]) == ("60 images, 10 < 3 classes", "12 images, 2 < 2 classes")
    assert "roadmap (tau=0.02)" in plan["loss"]
    assert plan["steps"].split()[0] == str(3 * int(plan["batches"].split()[-3]))
    assert {"decides", "chunk size", "devices", "memory estimate"} <= plan.keys()
    assert not (tmp_path / "run").exists()
    check_refused([*words, "loss.name=roadmop", "--dry-run"], "'roadmap'")


@pytest.mark.parametrize(("module", "option"), [("run", []), ("tune", ["--tune", "1m"])])
@pytest.mark.parametrize("has_begun", [False, True])
def test_ctrl_c_prints_what_to_type_next(sightline, tmp_path, monkeypatch, module, option, has_begun):
    def interrupted(recipe, out, *_):
        if has_begun:
            out.mkdir()
        raise KeyboardInterrupt

    monkeypatch.setattr(f"sightline.training.{module}.{'train' if module == 'run' else module}", interrupted)
    words = ["train", "images", f"data.manifest={tmp_path}/my photos", *option, "--out", str(tmp_path / "run")]
    status, out, err = sightline(*words)
    assert (status, out) == (130, "")
    assert shlex.split(err.partition(": sightline ")[2]) == ([*words, "--resume"] if has_begun else words)


def test_from_a_folder_to_a_search_result(sightline, check_refused, train_words, image_tree, tmp_path):
    status, out, _ = sightline("data", "check", image_tree, *train_words[3:])
    assert (status, "72 images, 2 label levels, no fault" in out, "12 < 3 classes" in out) == (0, True, True)
    run_folder, table = tmp_path / "run", tmp_path / "images.parquet"
    status, out, err = sightline(*train_words, "--out", run_folder, "--max-minutes", 0)  # stopped, then resumed
    assert (status, out, "--resume" in err) == (0, "", True)
    status, out, err = sightline(*train_words, "--out", run_folder, "--resume")
    assert (status, out, "environment changed" in err) == (0, f"{run_folder / 'encoder'}\n", False)
    status, out, _ = sightline("embed", run_folder / "encoder", image_tree, "--out", table, "--workers", 0)
    assert (status, "72 vectors of 16" in out) == (0, True)

    status, out, _ = sightline("evaluate", table, "-k", 1, "-k", 3, "--json", tmp_path / "result.json")
    assert [line.split()[0] for line in out.splitlines()] == [*metric_names([1, 3], n_levels=2), "72"]
    stored = json.loads((tmp_path / "result.json").read_text())
    assert f"map@r        {100 * stored['metrics']['map@r']:5.1f}" in out
    asked = ["--metric", "ndcg@5", "--metric", "map_label_1", "--gallery", table, "--interval", 0.9]
    status, out, _ = sightline("evaluate", table, *asked)
    assert (status, [line.split()[0] for line in out.splitlines()][:2]) == (0, ["ndcg@5", "map_label_1"])

    query = image_tree / "super0/class00/0.png"
    status, out, _ = sightline("search", query, "--table", table, "--encoder", run_folder / "encoder", "-k", 3)
    first, *hits = out.splitlines()
    assert (status, first, len(hits)) == (0, str(query), 3)
    place, score, path, *labels = hits[0].split()
    assert (place, float(score), path, labels) == ("1", 1.0, str(query), ["class00", "<", "super0"])

    other = Encoder.create("tiny", 16, image_size=32, seed=1).save_pretrained(tmp_path / "other")
    check_refused(["evaluate", table, "--metric", "mpa"], "'mpa'", "'map'")
    check_refused(["evaluate", table, "--split", "tset"], "'tset'", "'train'")
    check_refused(["search", query, "--table", table, "--encoder", other], "another encoder")


def test_embed_finds_out_that_it_may_not_write_before_it_reads_an_image(sightline, encoder, image_tree, monkeypatch):
    monkeypatch.setattr("sightline.models.embed.embed_manifest", None)
    status, _, err = sightline("embed", encoder, image_tree, "--out", "/proc/table.parquet")
    assert (status, err) == (2, "sightline: /proc/table.parquet: No such file or directory\n")


def test_embed_takes_images_without_labels(sightline, check_refused, encoder, image_tree, tmp_path):
    flat = image_tree / "super0/class00"
    status, out, _ = sightline("embed", encoder, flat, "--out", tmp_path / "flat.parquet", "--workers", 0)
    assert (status, "6 vectors of 8" in out) == (0, True)
    check_refused(["evaluate", tmp_path / "flat.parquet"], "flat.parquet", "labels")


def test_what_is_at_fault_is_refused_and_nothing_is_written(check_refused, encoder, train_words, image_tree, tmp_path):
    def manifest(name, *rows):
        good = [f"{image_tree}/super0/class00/{i}.png,train,a" for i in range(2)]
        (tmp_path / name).write_text("\n".join(["path,split,label", *good, *rows]) + "\n")
        return tmp_path / name

    bad, recipe, table = manifest("bad.csv", "bad.png,train,a"), tmp_path / "mine.toml", ["--out", tmp_path / "t.parquet"]
    (tmp_path / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    recipe.write_text('[data]\nmanifest = "images"\n[optimizer]\nlearning_rat = 1e-3\n[los]\nname = "sup_ap"\n')
    gone = manifest("gone.csv", "gone.png,train,a", "lost.png,train,a")
    lonely = manifest("lonely.csv", f"{image_tree}/super1/class01/0.png,train,lonely")
    faulty = manifest("faulty.csv", "x.png,trian,b", "y.png,test,")
    training = [*train_words, "data.val_fraction=0", "--out", tmp_path / "run"]
    broken = tmp_path / "no.parquet"
    broken.write_text("no table")
    before = sorted(tmp_path.rglob("*"))
    for words, facts in (
        (["data", "check", faulty], ["2 faults", "line 4", "'trian'", "line 5", "label"]),
        (["data", "check", bad], ["bad.png"]),
        ([*training, f"data.manifest={gone}", "sampler.batch_size=4"], ["gone.png", "lost.png"]),
        ([*training, f"data.manifest={lonely}", "sampler.per_class=2"], ["1 of 2", "'lonely'"]),
        (["train", recipe], ["'optimizer.learning_rat'", "'los'", "'loss'"]),
        (["train", "imagse"], ["'images'"]),
        (["train", "images", "data.manifest=x", "--tune", "soon"], ["--tune", "'soon'", "30m"]),
        (["embed", encoder, bad, *table, "--workers", 0], ["bad.png"]),
        (["embed", encoder, bad, *table, "--workers", 1], ["bad.png"]),
        (["embed", tmp_path / "none", image_tree, *table], ["none", "encoder"]),
        (["embed", encoder, image_tree, "--out", recipe / "t.parquet"], [f"sightline: {recipe}: "]),
        (["evaluate", broken], ["no.parquet", "embedding table"]),
        (["benchmark", "s.toml", "--out", tmp_path / "out", "--tables", "--repeat"], ["--tables", "--repeat"]),
    ):
        check_refused(words, *facts)
        assert sorted(tmp_path.rglob("*")) == before


def test_a_warning_is_one_line_and_those_of_libraries_are_not_shown(sightline, monkeypatch):
    def warn(*_, **__):
        warnings.warn("only 3 images", stacklevel=1)
        warnings.warn("for programmers", DeprecationWarning, stacklevel=1)
        raise InputError("no such thing")

    monkeypatch.setattr("sightline.data.manifest.read_manifest", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert sightline("data", "stats", "x.csv") == (2, "", "sightline: only 3 images\nsightline: no such thing\n")
