"""The rejector, bound to an encoder and saved in a folder; and the commands that fit and evaluate it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from refusals import assert_refused
from sightline import EmbeddingTable, Encoder, Manifest, ood
from sightline.evaluation.detection import identification_rates
from sightline.ood.rejector import Rejector, check_place, fit_rejector, match_threshold, withholds

PRINT, OTHER = "a" * 32, "b" * 32


def table(n, seed=0, shift=0.0, fingerprint=PRINT, n_classes=8, prefix="i"):
    """Unit vectors about class means that every seed shares."""
    labels = np.arange(n) % n_classes
    means = np.random.default_rng(99).normal(size=(n_classes, 6))
    vectors = (means[labels] + 0.3 * np.random.default_rng(seed).normal(size=(n, 6)) + shift).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    names = {"id": [f"{prefix}{seed}-{n}" for n in range(n)], "path": [f"{n}.png" for n in range(n)]}
    rows = pl.DataFrame(names | {"split": ["test"] * n, "label_0": [f"c{label}" for label in labels]})
    return EmbeddingTable(Manifest(Path("images.csv"), Path("."), rows, 1), vectors, fingerprint)


def with_rows(rows, vectors, file="x.csv"):
    return EmbeddingTable(Manifest(Path(file), Path("."), rows, int("label_0" in rows)), vectors, PRINT)


def joined(gallery, queries):
    """The gallery and some of the queries, which are not to match themselves."""
    rows = pl.concat([gallery.manifest.table, queries.manifest.table[:20]])
    return with_rows(rows, np.concatenate([gallery.vectors, queries.vectors[:20]]), "g.csv")


def relabelled(table):
    return with_rows(table.manifest.table.with_columns(pl.lit("z").alias("label_0")), table.vectors)


def broken(n):
    """A table whose fourth vector is not finite."""
    made = table(n)
    made.vectors[3, 1] = np.nan
    return made


def test_accepts_the_stated_share_and_rejects_what_is_elsewhere():
    rejector = fit_rejector(table(2000), "gmm", tpr=0.9)
    verdicts = rejector.judge(table(2000, seed=1).vectors)
    assert np.mean([verdict.belongs for verdict in verdicts]) == pytest.approx(0.9, abs=0.03)
    outside = rejector.judge(np.random.default_rng(0).normal(size=(200, 6)))
    assert np.mean([verdict.belongs for verdict in outside]) < 0.3
    assert all((v.matched, v.similarity, v.belongs) == (None, None, v.energy <= v.threshold) for v in verdicts)
    inside, refused = (next(v for v in [*verdicts, *outside] if v.belongs == belongs) for belongs in (True, False))
    assert [withholds(policy, refused) for policy in ("reject", "flag", "ignore")] == [True, False, False]
    assert not withholds("reject", inside)
    assert fit_rejector(table(80), "msp", seed=4).scorer.options()["seed"] == 4  # the scorer's too
    assert "seed" not in fit_rejector(table(80), "composition", seed=4, scorers=["gmm"]).scorer.options()


@pytest.fixture
def fitted(monkeypatch):
    """Fit nothing; note the labels to fit on, and the number of vectors held out."""
    seen = {}

    def fit(scorer, inputs, labels, **options):
        seen["labels"], scorer.width = set(labels.tolist()), inputs["vectors"].shape[1]
        return scorer

    def calibrate(scorer, inputs, tpr):
        seen["n_held_out"], scorer.threshold = len(inputs["vectors"]), 0.0

    monkeypatch.setattr(ood.Scorer, "fit", fit)
    monkeypatch.setattr(ood.Scorer, "calibrate", calibrate)
    return seen


def test_held_out_classes_are_none_of_the_fit(fitted):
    for n_classes, hold_out, n_fitted, n_held_out in (
        (25, "auto", {20}, 40),
        (8, "auto", {8}, 40),
        (25, "images", {25}, 40),
        (4, "classes", {3}, 50),
        (150, "auto", range(151), 40),  # hardly two images each
    ):
        fit_rejector(table(200, n_classes=n_classes), "gmm", hold_out=hold_out)
        assert (len(fitted["labels"]) in n_fitted, fitted["n_held_out"]) == (True, n_held_out)
    plain = table(200, n_classes=25)  # fitted on two kinds of 25 classes: it is still classes that are held out
    kind = pl.when(pl.col("label_0") < "c15").then(pl.lit("a")).otherwise(pl.lit("b"))
    manifest = replace(plain.manifest, table=plain.manifest.table.with_columns(label_1=kind), n_levels=2)
    fit_rejector(replace(plain, manifest=manifest), "gmm", level=1)
    assert fitted == {"labels": {0, 1}, "n_held_out": 40}


def test_what_is_wrong_is_said_before_anything_is_fitted(fitted):
    foreign, gallery = table(50, fingerprint=OTHER), table(50, seed=1)
    bare = with_rows(table(50).manifest.table.drop("label_0"), table(50).vectors)
    for rows, options, facts in (
        (table(50), {"tpr": 1.5}, r"tpr .* got 1\.5"),
        (table(50), {"policy": "refuse"}, "unknown policy 'refuse'"),
        (table(50), {"hold_out": "rows"}, "unknown hold_out 'rows'"),
        (table(50, n_classes=1), {"hold_out": "classes"}, "2 classes or more .* found 1"),
        (table(50), {"gallery": relabelled(gallery)}, "has an image of its class"),
        (table(50), {"gallery": foreign}, f"encoder {PRINT}, found 50 .* {OTHER}"),
        (table(50), {"gallery": broken(50)}, "not finite"),
        (table(50), {"gallery": table(0)}, "0 vectors"),
        (table(50), {"held_out": broken(50)}, "not finite"),
        (table(50), {"held_out": table(0)}, "0 vectors"),
        (broken(50), {}, r"images\.csv: .*'i0-3'"),
        (table(50), {"level": 1}, "level .* 1, got 1"),
        (bare, {"level": 1}, "level .* 0, got 1"),
        (bare, {"gallery": table(50)}, "labels in both"),
        (table(1), {}, "2 images or more"),
        (table(50), {"scorer": "gmm_std"}, "takes feature maps, the table has"),
    ):
        assert_refused(facts, fit_rejector, rows, **{"scorer": "gmm"} | options)
    assert fitted == {}


def test_no_match_is_kept_apart_from_not_belonging():
    rejector = fit_rejector(table(400), "knn", gallery=table(80, seed=5), k=3)
    assert rejector.similarity_acceptance == 0.95
    limit, vectors = rejector.similarity_threshold, table(3, seed=1).vectors
    verdicts = rejector.judge(vectors, [limit, limit - 1e-6, 1.0])
    assert [(one.matched, one.similarity) for one in verdicts] == [(True, limit), (False, limit - 1e-6), (True, 1.0)]
    np.testing.assert_allclose([verdict.energy for verdict in verdicts], rejector.scorer.score(vectors))
    assert_refused("3 queries, got 2", rejector.judge, vectors, [0.1, 0.2])


def test_match_threshold_by_definition():
    queries = table(60, seed=1)
    both = joined(table(50, seed=2), queries)
    best = []
    for query_id, label, z in zip(queries.ids, queries.manifest.table["label_0"], queries.vectors, strict=True):
        same = zip(both.ids, both.manifest.table["label_0"], both.vectors, strict=True)
        best.append(max(float(z @ g) for item_id, other, g in same if other == label and item_id != query_id))
    found = match_threshold(queries, both, 0.9)
    assert found == pytest.approx(np.quantile(best, 0.1, method="lower"), abs=1e-6)
    assert np.mean(np.array(best) >= found - 1e-6) >= 0.9
    assert_refused(r"no query of x\.csv has an image of its class in g\.csv", match_threshold, relabelled(queries), both)


def test_a_place_is_refused_exactly_where_saving_there_would_be(check_refused, tmp_path, monkeypatch):
    made = fit_rejector(table(50), "gmm")
    (tmp_path / "file").write_text("mine")
    for name in ("full", "empty"):
        (tmp_path / name).mkdir()
    (tmp_path / "full" / "note.txt").write_text("mine")
    for name in ("file", "full"):
        for call in (check_place, made.save):
            assert_refused(f"{name}: exists and is not a rejector", call, tmp_path / name)
    for name in ("new", "empty", "new"):  # the last one is a rejector by then
        check_place(tmp_path / name)
        made.save(tmp_path / name)
    monkeypatch.setattr(ood.Scorer, "fit", lambda *_, **__: pytest.fail("fitted"))
    words = ["ood", "fit", table(50).write(tmp_path / "fit.parquet"), "--scorer", "gmm", "--out", tmp_path / "full"]
    check_refused(words, f"{tmp_path / 'full'}: exists and is not a rejector")


def test_saved_inside_an_encoder_and_bound_to_it(tmp_path):
    encoder = Encoder.create("tiny", 6, image_size=32)
    folder = encoder.save_pretrained(tmp_path / "encoder")
    made = fit_rejector(table(300, fingerprint=encoder.fingerprint()), "gmm", policy="flag", gallery=None)
    made.save(folder / "rejector")
    assert Encoder.from_pretrained(folder).fingerprint() == encoder.fingerprint()
    for place in (folder, folder / "rejector"):
        loaded = Rejector.load(place, encoder.fingerprint())
        assert (loaded.policy, loaded.similarity_threshold) == ("flag", None)
        assert loaded.judge(table(5).vectors) == made.judge(table(5).vectors)
    assert_refused(f"{encoder.fingerprint()}, .* {OTHER}", Rejector.load, folder, OTHER)
    made.save(folder / "rejector")  # again, in its place
    assert {file.name for file in (folder / "rejector").iterdir()} == {"rejector.json", "scorer.json", "scorer.safetensors"}


def test_what_is_not_fitted_and_folders_that_are_no_rejector(tmp_path):
    assert_refused("'energy' takes logits", Rejector, ood.create("energy", inputs="logits"), PRINT)
    assert_refused("has no threshold", Rejector, ood.create("gmm").fit(table(50).vectors), PRINT)
    bare = with_rows(table(50).manifest.table.drop("label_0"), table(50).vectors)
    rejector = fit_rejector(bare, "gmm")
    assert rejector.judge(table(2).vectors)
    assert_refused(r"not a rejector: it has no rejector\.json", Rejector.load, tmp_path)
    folder = rejector.save(tmp_path / "r")
    stored = json.loads((folder / "rejector.json").read_text())
    for content, facts in (
        (stored | {"format": 2}, "found 2"),
        (stored | {"extra": 1}, "extra"),
        (stored | {"similarity_threshold": {}}, "similarity_threshold"),
        ([1], "rejector.json"),
    ):
        (folder / "rejector.json").write_text(json.dumps(content))
        assert_refused(facts, Rejector.load, folder)


def test_identification_by_definition():
    queries, unknown = table(60, 1), table(40, 3, shift=0.7, prefix="u")
    both = joined(table(50, 2, n_classes=6), queries)
    labels, own = (np.array(one.manifest.table["label_0"].to_list()) for one in (both, queries))

    def ranked(table):  # cosines, without those of an image with itself
        return np.where(np.array(table.ids)[:, None] == both.ids, -2, table.vectors.astype(float) @ both.vectors.T)

    limit = sorted(ranked(unknown).max(1), reverse=True)[4]
    scores, has_match = ranked(queries), ((own[:, None] == labels) & (np.array(queries.ids)[:, None] != both.ids)).any(1)
    known = (scores.max(1) > limit) & (labels[scores.argmax(1)] == own)
    found = identification_rates(queries, both, {"u": unknown}, far=0.1)
    assert found == {"u": pytest.approx(known[has_match].mean())}
    assert 0 < found["u"] < 1


def test_commands(sightline, check_refused, tmp_path):
    made = {"fit": table(400), "held": table(200, 1), "far": table(100, 2, shift=4.0), "near": table(90, 3, shift=0.5)}
    made |= {"other": table(20, fingerprint=OTHER), "bad": broken(40)}
    files = {name: part.write(tmp_path / f"{name}.parquet") for name, part in made.items()}
    fit = ["ood", "fit", files["fit"], "--out", tmp_path / "rejector", "--scorer", "heat", "--tpr", 0.9, "--policy", "flag"]
    small = ["hidden=8", "train_steps=5", 'priors=["gmm"]', "keep=always"]
    fit += [word for option in small for word in ("--option", option)]
    status, out, err = sightline(*fit, "--gallery-table", files["held"])
    assert status == 0, err
    loaded = Rejector.load(tmp_path / "rejector")
    assert (loaded.policy, loaded.fingerprint, loaded.scorer.options()["keep"]) == ("flag", PRINT, "always")
    assert all(fact in out for fact in (f"{loaded.similarity_threshold:.4f}", "90 %"))

    words = ["ood", "evaluate", tmp_path / "rejector", "--in", files["held"], "--out-sets", f"far={files['far']}"]
    words += ["--out-sets", f"near={files['near']}", "--interval", 0.9]
    words_once = [*words, "--json", tmp_path / "r.json", "--plot", tmp_path / "r.svg"]
    status, out, err = sightline(*words_once, "--gallery-table", files["fit"], "--far", 0.1)
    assert status == 0, err
    lines = out.splitlines()
    assert lines[0].split() == ["set", "auroc", "fpr95", "aupr_out", "aupr_in", "accuracy"]
    assert [line.split()[0] for line in lines[1:4]] == ["far", "near", "mean"]
    assert all(fact in lines[4] for fact in ("200", "100 of far", "90 of near"))
    rejected = np.mean(loaded.scorer.score(made["far"].vectors) > loaded.scorer.threshold)
    assert f"{100 * rejected:.1f} % of far" in lines[5]
    rates = identification_rates(made["held"], made["fit"], {"far": made["far"], "near": made["near"]}, 0.1)
    assert lines[-1].endswith(", ".join(f"{100 * rate:.1f} % against {name}" for name, rate in rates.items()))
    assert rates["far"] > 0.5
    stored = json.loads((tmp_path / "r.json").read_text())
    assert f"{100 * stored['per_set']['far']['auroc']:.1f} [" in lines[1]
    assert stored["level"] == 0.9
    assert "<svg" in (tmp_path / "r.svg").read_text()

    fit = ["ood", "fit", files["fit"], "--out", tmp_path / "x"]
    for wrong, *facts in (
        ([*words[:4], files["other"], *words[5:]], OTHER),
        ([*words[:5], "--out-sets", f"n={files['bad']}"], files["bad"], "'i0-3'"),
        ([*fit, "--scorer", "gnm"], "did you mean 'gmm'"),
        ([*fit, "--option", "seed=3"], "--option seed"),
        ([*words[:5], "--out-sets", "far"], "'far'"),
        ([*words, "--plot", "roc.txt"], "roc.txt"),
        ([*words, "--out-sets", f"far={files['near']}"], "twice"),
        ([*words, "--gallery-table", files["other"]], OTHER),
        ([*words, "--gallery-table", files["fit"], "--far", 1.0], "got 1.0"),
        (["ood", "fit", files["fit"]], "--out"),
    ):
        check_refused(wrong, *facts)
    assert not (tmp_path / "x").exists()


def test_quantile_is_the_share_of_calibration_images_with_a_lower_energy(tmp_path):
    held_out, queries = table(200, seed=1), table(40, seed=2).vectors
    rejector = fit_rejector(table(300), "gmm", held_out=held_out)
    below = [float(np.mean(rejector.scorer.score(held_out.vectors) < one)) for one in rejector.scorer.score(queries)]
    loaded = Rejector.load(rejector.save(tmp_path / "new"))
    assert [verdict.quantile for verdict in loaded.judge(queries)] == below
    furthest = loaded.judge(-held_out.vectors[:1])[0]
    assert (furthest.quantile, "every image" in furthest.typicality) == (1, True)
    words = replace(furthest, quantile=0.99961).typicality  # rounded down: 100 % would mean every image
    assert re.findall(r"[\d.]+ %", words) == ["99.9 %"]
    rejector.scorer.calibrate(np.tile(held_out.vectors, (10, 1)))  # more than are kept: to 0.1 %
    np.testing.assert_allclose([verdict.quantile for verdict in rejector.judge(queries)], below, atol=2e-3)
    rejector.scorer.calibration = None  # as an earlier version saved it
    assert Rejector.load(rejector.save(tmp_path / "old")).judge(queries)[0].quantile is None
