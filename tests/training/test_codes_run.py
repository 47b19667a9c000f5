"""Training on several codes an image: resumed, in two processes, held out, sampled, and what a recipe may not say."""

import numpy as np
import polars as pl
import pytest
from PIL import Image
from run_files import assert_close_logs, assert_same_run, in_two_processes, logged

from refusals import assert_refused
from sightline import read_manifest, train
from sightline.labels.code_column import code_lists, read_codes
from sightline.training.prepare import plan_run, prepare_run
from sightline.training.recipe import read_recipe, recipe_as_toml
from sightline.training.run_folder import load_checkpoint

CODED = ["data.codes=codes", "loss={name='happier'}", "validation.metric=h_ap", "data.val_fraction=0.3"]


def write_code_images(folder, n_images=72, n_codes=12, seed=0):
    """``images.csv`` and blurred patches of noise: a code by the picture, one of 9.1, every third another one."""
    rng = np.random.default_rng(seed)
    bases = rng.integers(0, 256, (n_codes, 8, 8, 3))
    rows = []
    for number in range(n_images):
        own, other = number % n_codes, int(rng.integers(n_codes))
        pixels = np.clip(bases[own] + rng.integers(-60, 60, bases[own].shape), 0, 255).astype(np.uint8)
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize((40, 36), Image.Resampling.BILINEAR).save(folder / f"{number}.png")
        codes = [f"{1 + own // 6}.{1 + own // 3 % 2}.{own % 3 + 1}", f"9.1.{number % 2 + 1}"]
        codes += [f"{1 + other // 6}.{1 + other // 3 % 2}.{other % 3 + 1}"] if number % 3 == 0 and other != own else []
        rows.append((f"{number}.png", "train", ";".join(codes)))
    pl.DataFrame(rows, ["path", "split", "codes"], orient="row").write_csv(folder / "images.csv")
    return folder / "images.csv"


@pytest.fixture(scope="module")
def coded(tmp_path_factory):
    return write_code_images(tmp_path_factory.mktemp("codes"))


@pytest.fixture
def recipe_on(recipe_with, coded):
    return lambda *overrides: recipe_with(*CODED, *overrides, manifest=coded)


def test_a_run_in_chunks_with_a_memory_resumes_to_the_last_bit_and_is_the_same_in_two_processes(
    recipe_on, coded, tiny_recipe, tmp_path
):
    more = ["memory.size=40", "chunk_size=4", "schedule.epochs=2", "codes.alpha=2", "codes.code_weights=idf"]
    recipe = recipe_on(*more)
    train(recipe, tmp_path / "whole")
    train(recipe, tmp_path / "stopped", max_minutes=0)
    assert load_checkpoint(tmp_path / "stopped/last.pt")[0].step == 1
    train(recipe, tmp_path / "stopped", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")
    assert 0 < logged(tmp_path / "whole", "val/h_ap")[0] <= 1
    words = ["train", "images", f"data.manifest={coded}", *tiny_recipe, *CODED, *more, "--out", tmp_path / "two"]
    in_two_processes("-m", "sightline", *words)
    assert_close_logs(tmp_path / "whole", tmp_path / "two")


def test_every_image_of_a_batch_meets_another_with_a_code_of_its_own_and_no_code_held_out_is_trained_on(recipe_on, coded):
    parts = prepare_run(recipe_on())
    trained, held_out = (code_lists(part, "codes") for part in (parts.train_part, parts.val_part))
    gone = {code for codes in held_out for code in codes} - {code for codes in trained for code in codes}
    assert all(gone & {*codes} for codes in held_out)
    assert len(trained) + len(held_out) == len(read_manifest(coded, labelled=False))
    for batch in parts.sampler.batches(0):
        for item in batch:
            assert sum(bool({*trained[item]} & {*trained[other]}) for other in batch) >= 4
    assert [len(table) for table in parts.loss.loss.parameters()] == [len({c for one in trained for c in one}), 5, 3]
    assert "codes" in plan_run(recipe_on())


def test_images_without_a_shared_code_are_refused_or_left_out(recipe_on, coded, tmp_path):
    table = pl.read_csv(coded).with_columns(path=str(coded.parent) + "/" + pl.col("path"))
    assert len(prepare_run(recipe_on("data.val_fraction=0")).train_part) == len(table)  # all find three others
    alone = table[:1].with_columns(codes=pl.lit("7.7.7"), path=pl.lit(str(coded.parent / "1.png")), id=pl.lit("one more"))
    pl.concat([table.with_columns(id="path"), alone.select("path", "split", "codes", "id")]).write_csv(tmp_path / "m.csv")
    overrides = [f"data.manifest={tmp_path / 'm.csv'}", "data.val_fraction=0"]
    assert_refused(["m.csv", "7.7.7", "per_class=4", "skip_small"], prepare_run, recipe_on(*overrides))
    parts = prepare_run(recipe_on(*overrides, "sampler.skip_small_classes=true"))
    assert len(parts.train_part) == len(table)
    assert sorted({place for batch in parts.sampler.batches(0) for place in batch})[-1] < len(table)


def test_what_a_recipe_says_of_codes_is_checked_before_anything_is_written(recipe_on, recipe_with, coded, tmp_path):
    (tmp_path / "tree.csv").write_text("child,parent\n9.1.1,9.1\n")
    for facts, overrides in (
        (["images.csv", "line 2", "'1.1.1' is not in", "tree.csv"], [f"codes.tree={tmp_path / 'tree.csv'}"]),
        (["images.csv", "'tags'", "'codes'"], ["data.codes=tags"]),
        (["codes.alpha"], ["loss.alpha=2"]),
        (["queries_at_once"], ["loss={name='sup_ap', queries_at_once=4}"]),
        (["proxies='means'"], ["loss.proxies=means"]),
        (["level", "3"], ["codes.level=3"]),
        (["level_weights"], ["codes.level_weights=[0.5, 0.2, 1.0]"]),
        (["codes"], ["loss={name='csl'}"]),
        (["map_label_3"], ["validation.metric=map_label_3"]),
        (["val_fraction"], ["data.val_fraction=0.001"]),
    ):
        recipe = recipe_on(*overrides)
        assert_refused(facts, train, recipe, tmp_path / "run")
        assert not (tmp_path / "run").exists()
    assert_refused(["codes.alpha", "data.codes"], train, recipe_with("codes.alpha=2"), tmp_path / "run")


def test_weights_by_code_and_lists_in_parquet_are_read_and_a_recipe_is_written_as_it_was(recipe_on, coded, tmp_path):
    lists = read_codes(read_manifest(coded, labelled=False), "codes").table.with_columns(
        path=str(coded.parent) + "/" + pl.col("path")
    )
    lists.drop("id").write_parquet(tmp_path / "lists.parquet")
    weights = ["codes.code_weights={'9'=0.5}", "codes.auxiliary={'1.1.2'='1.1.1'}", "codes.auxiliary_weight=0.9"]
    recipe = recipe_on(*weights, f"data.manifest={tmp_path / 'lists.parquet'}")
    (tmp_path / "again.toml").write_text(recipe_as_toml(recipe))
    assert read_recipe(tmp_path / "again.toml") == recipe
    of_text, of_lists = (prepare_run(one) for one in (recipe_on(*weights), recipe))
    np.testing.assert_array_equal(of_text.labels, of_lists.labels)
    worth = [one.loss.loss.codes.pairs.rows(np.arange(5)) for one in (of_text, of_lists)]
    np.testing.assert_array_equal(*worth)
