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


@pytest.fixture
def check_nothing_written(check_refused, tmp_path):
    """As `check_refused`; and nothing is written."""

    def run(words, *facts):
        before = sorted(tmp_path.rglob("*"))
        check_refused(words, *facts)
        assert sorted(tmp_path.rglob("*")) == before

    return run


def test_manifests_images_and_recipes_with_faults(check_nothing_written, encoder, train_words, image_tree, tmp_path):
    def manifest(*rows, header="path,split,label"):
        good = [f"{image_tree}/super0/class00/{i}.png,train,a" for i in range(2)]
        (tmp_path / "m.csv").write_text("\n".join([header, *good, *rows]) + "\n")
        return tmp_path / "m.csv"

    def training(file, *overrides):
        return [*train_words, f"data.manifest={file}", "data.val_fraction=0", *overrides, "--out", tmp_path / "run"]

    check_nothing_written(["data", "check", manifest(header="path,split,name")], "m.csv", "'label'", "'path'")
    faulty = manifest("x.png,trian,b", "y.png,test,")
    check_nothing_written(["data", "check", faulty], "2 faults", "line 4", "'trian'", "line 5", "label")
    gone = manifest("gone.png,train,a", "lost.png,train,a")
    check_nothing_written(training(gone, "sampler.batch_size=4"), "gone.png", "lost.png")
    lonely = manifest(f"{image_tree}/super1/class01/0.png,train,lonely")
    check_nothing_written(training(lonely, "sampler.per_class=2"), "1 of 2", "'lonely'")
    (tmp_path / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n broken")
    file = manifest("bad.png,train,a")
    check_nothing_written(["data", "check", file], "bad.png")
    for workers in (0, 1):
        check_nothing_written(["embed", encoder, file, "--out", tmp_path / "t.parquet", "--workers", workers], "bad.png")
    recipe = tmp_path / "mine.toml"
    recipe.write_text('[data]\nmanifest = "images"\n[optimizer]\nlearning_rat = 1e-3\n[los]\nname = "sup_ap"\n')
    check_nothing_written(["train", recipe], "'optimizer.learning_rat'", "'los'", "'loss'")
    check_nothing_written(["train", "imagse"], "'images'")
    check_nothing_written(["train", "images", "data.manifest=x", "--tune", "soon"], "--tune", "'soon'", "30m")


def test_files_that_are_not_what_they_should_be_and_options_that_contradict(check_nothing_written, image_tree, tmp_path):
    own = Encoder.create("tiny", 8, image_size=32).save_pretrained(tmp_path / "own")
    (own / "encoder.json").write_text(json.dumps(json.loads((own / "encoder.json").read_text()) | {"format": 99}))
    (tmp_path / "t.parquet").write_text("no table")
    for words, facts in (
        (["evaluate", tmp_path / "t.parquet"], ["t.parquet", "embedding table"]),
        (["evaluate", tmp_path / "none.parquet"], ["none.parquet"]),
        (["embed", tmp_path / "none", image_tree, "--out", tmp_path / "x"], ["none", "encoder"]),
        (["embed", own, image_tree, "--out", tmp_path / "t.parquet/t.parquet"], [f"sightline: {tmp_path}/t.parquet: "]),
        (["embed", own, image_tree, "--out", tmp_path / "x.parquet"], ["99"]),
        (["benchmark", "s.toml", "--out", tmp_path / "out", "--tables", "--repeat"], ["--tables", "--repeat"]),
    ):
        check_nothing_written(words, *facts)


def test_a_warning_is_one_line_and_those_of_libraries_are_not_shown(sightline, monkeypatch):
    def warn(*_, **__):
        warnings.warn("only 3 images", stacklevel=1)
        warnings.warn("for programmers", DeprecationWarning, stacklevel=1)
        raise InputError("no such thing")

    monkeypatch.setattr("sightline.data.manifest.read_manifest", warn)
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        assert sightline("data", "stats", "x.csv") == (2, "", "sightline: only 3 images\nsightline: no such thing\n")
