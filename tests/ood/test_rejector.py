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


def refuses(message, call):
    """Assert that the call raises an InputError whose message matches."""
    assert_refused(message, call)


def table(n, seed=0, shift=0.0, fingerprint=PRINT, n_classes=8, prefix="i"):
    """Unit vectors about class means that every seed shares."""
    labels = np.arange(n) % n_classes
    means = np.random.default_rng(99).normal(size=(n_classes, 6))
    vectors = (means[labels] + 0.3 * np.random.default_rng(seed).normal(size=(n, 6)) + shift).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    names = {"id": [f"{prefix}{seed}-{n}" for n in range(n)], "path": [f"{n}.png" for n in range(n)]}
    rows = pl.DataFrame(names | {"split": ["test"] * n, "label_0": [f"c{label}" for label in labels]})
    return EmbeddingTable(Manifest(Path("images.csv"), Path("."), rows, 1), vectors, fingerprint)


def joined(gallery, queries):
    """The gallery and some of the queries, which are not to match themselves."""
    rows = pl.concat([gallery.manifest.table, queries.manifest.table[:20]])
    vectors = np.concatenate([gallery.vectors, queries.vectors[:20]])
    return EmbeddingTable(Manifest(Path("g.csv"), Path("."), rows, 1), vectors, PRINT)


def relabelled(table):
    rows = table.manifest.table.with_columns(pl.lit("z").alias("label_0"))
    return EmbeddingTable(Manifest(Path("x.csv"), Path("."), rows, 1), table.vectors, PRINT)


def test_accepts_the_stated_share_and_rejects_what_is_elsewhere():
    rejector = fit_rejector(table(2000), "gmm", tpr=0.9)
    verdicts = rejector.judge(table(2000, seed=1).vectors)
    assert np.mean([verdict.belongs for verdict in verdicts]) == pytest.approx(0.9, abs=0.03)
    outside = rejector.judge(np.random.default_rng(0).normal(size=(200, 6)))
    assert np.mean([verdict.belongs for verdict in outside]) < 0.3
    assert all((v.matched, v.similarity, v.belongs) == (None, None, v.energy <= v.threshold) for v in verdicts)
    assert [withholds(policy, next(v for v in outside if not v.belongs)) for policy in ("reject", "flag", "ignore")] == [
        True,
        False,
        False,
    ]
    assert not withholds("reject", next(v for v in verdicts if v.belongs))
    assert fit_rejector(table(80), "msp", seed=4).scorer.options()["seed"] == 4  # the scorer's too
    assert "seed" not in fit_rejector(table(80), "composition", seed=4, scorers=["gmm"]).scorer.options()


def test_held_out_classes_are_none_of_the_fit(monkeypatch):
    seen = {}

    def fit(scorer, vectors, labels, **options):
        seen["fit"], scorer.width = set(labels.tolist()), vectors.shape[1]
        return scorer

    def calibrate(scorer, vectors, tpr):
        seen["n_held_out"], scorer.threshold = len(vectors), 0.0

    monkeypatch.setattr(ood.Scorer, "fit", fit)
    monkeypatch.setattr(ood.Scorer, "calibrate", calibrate)
    for n_classes, hold_out, n_fitted, n_held_out in (
        (25, "auto", 20, 40),
        (8, "auto", 8, 40),
        (25, "images", 25, 40),
        (4, "classes", 3, 50),
        (150, "auto", 150, 40),  # hardly two images each
    ):
        fit_rejector(table(200, n_classes=n_classes), "gmm", hold_out=hold_out)
        found = len(seen["fit"]), seen["n_held_out"]
        assert found == (n_fitted, n_held_out) or (n_classes == 150 and found[1] == 40)
    plain = table(200, n_classes=25)  # fitted on two kinds of 25 classes: it is still classes that are held out
    kinds = plain.manifest.table.with_columns(
        label_1=pl.when(pl.col("label_0") < "c15").then(pl.lit("a")).otherwise(pl.lit("b"))
    )
    fit_rejector(replace(plain, manifest=replace(plain.manifest, table=kinds, n_levels=2)), "gmm", level=1)
    assert (seen["fit"], seen["n_held_out"]) == ({0, 1}, 40)
    refuses("2 classes or more .* found 1", lambda: fit_rejector(table(50, n_classes=1), "gmm", hold_out="classes"))
    refuses("unknown hold_out 'rows'", lambda: fit_rejector(table(50), "gmm", hold_out="rows"))


def test_a_vector_that_is_not_finite_is_named_by_file_and_id(sightline, tmp_path):
    broken = table(40)
    broken.vectors[3, 1] = np.nan
    refuses(r"images\.csv: .*'i0-3'", lambda: fit_rejector(broken, "knn", k=3))
    fit_rejector(table(40), "knn", k=3).save(tmp_path / "r")
    fine, bad = table(40, seed=1).write(tmp_path / "fine.parquet"), broken.write(tmp_path / "bad.parquet")
    status, _, err = sightline("ood", "evaluate", tmp_path / "r", "--in", fine, "--out-sets", f"n={bad}")
    assert (status, str(bad) in err, "'i0-3'" in err) == (2, True, True)


def test_no_match_is_kept_apart_from_not_belonging():
    rejector = fit_rejector(table(400), "knn", gallery=table(80, seed=5), k=3)
    assert rejector.similarity_acceptance == 0.95
    limit = rejector.similarity_threshold
    vectors = table(3, seed=1).vectors
    verdicts = rejector.judge(vectors, [limit, limit - 1e-6, 1.0])
    assert [verdict.matched for verdict in verdicts] == [True, False, True]
    assert [verdict.similarity for verdict in verdicts] == [limit, limit - 1e-6, 1.0]
    np.testing.assert_allclose([verdict.energy for verdict in verdicts], rejector.scorer.score(vectors))
    refuses("3 queries, got 2", lambda: rejector.judge(vectors, [0.1, 0.2]))


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
    refuses(r"no query of x\.csv has an image of its class in g\.csv", lambda: match_threshold(relabelled(queries), both))


def test_what_is_wrong_is_said_before_anything_is_fitted(monkeypatch):
    def fit(*_, **__):
        raise AssertionError("fitted")

    monkeypatch.setattr(ood.Scorer, "fit", fit)
    refuses(r"tpr .* got 1\.5", lambda: fit_rejector(table(50), "gmm", tpr=1.5))
    refuses("unknown policy 'refuse'", lambda: fit_rejector(table(50), "gmm", policy="refuse"))
    refuses("has an image of its class", lambda: fit_rejector(table(50), "gmm", gallery=relabelled(table(50, seed=1))))
    broken = table(50, seed=1)
    broken.vectors[3, 2] = np.nan
    for wrong in (broken, table(0)):
        for option in ("held_out", "gallery"):
            refuses("not finite|0 vectors", lambda wrong=wrong, option=option: fit_rejector(table(50), **{option: wrong}))


def test_a_place_is_refused_exactly_where_saving_there_would_be(sightline, tmp_path, monkeypatch):
    made = fit_rejector(table(50), "gmm")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").write_text("mine")
    for name in ("file", "full"):
        for call in (check_place, made.save):
            refuses(f"{name}: exists and is not a rejector", lambda call=call, name=name: call(tmp_path / name))
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty", "new"):  # the last one is a rejector by then
        check_place(tmp_path / name)
        made.save(tmp_path / name)
    monkeypatch.setattr(ood.Scorer, "fit", lambda *_, **__: pytest.fail("fitted"))
    file = table(50).write(tmp_path / "fit.parquet")
    status, out, err = sightline("ood", "fit", file, "--out", tmp_path / "full", "--scorer", "gmm")
    assert (status, out, f"{tmp_path / 'full'}: exists and is not a rejector" in err) == (2, "", True)


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


def test_what_does_not_fit(tmp_path):
    refuses("'gmm_std' takes feature maps", lambda: fit_rejector(table(50), "gmm_std"))
    refuses("'gmm_std' takes feature maps", lambda: Rejector(ood.create("gmm_std"), PRINT))
    refuses("has no threshold", lambda: Rejector(ood.create("gmm").fit(table(50).vectors), PRINT))
    foreign = table(50, fingerprint=OTHER)
    refuses(f"encoder {PRINT}, found 50 .* {OTHER}", lambda: fit_rejector(table(50), "gmm", gallery=foreign))
    refuses("level .* 1, got 1", lambda: fit_rejector(table(50), "gmm", level=1))
    bare = table(50).manifest.table.drop("label_0")
    unlabelled = EmbeddingTable(Manifest(Path("x.csv"), Path("."), bare, 0), table(50).vectors, PRINT)
    refuses("level .* 0, got 1", lambda: fit_rejector(unlabelled, "gmm", level=1))
    refuses("labels in both", lambda: fit_rejector(unlabelled, "gmm", gallery=table(50)))
    assert fit_rejector(unlabelled, "gmm").judge(table(2).vectors)
    refuses("2 images or more", lambda: fit_rejector(table(1), "gmm"))
    refuses(r"not a rejector: it has no rejector\.json", lambda: Rejector.load(tmp_path))
    folder = fit_rejector(table(50), "gmm").save(tmp_path / "r")
    stored = json.loads((folder / "rejector.json").read_text())
    for broken, message in (
        ({**stored, "format": 2}, "found 2"),
        ({**stored, "extra": 1}, "extra"),
        ({**stored, "similarity_threshold": {}}, "similarity_threshold"),
        ([1], "rejector.json"),
    ):
        (folder / "rejector.json").write_text(json.dumps(broken))
        refuses(message, lambda: Rejector.load(folder))


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


def test_commands(sightline, tmp_path):
    files = {}
    made = {"fit": table(400), "held": table(200, 1), "far": table(100, 2, shift=4.0), "near": table(90, 3, shift=0.5)}
    for name, part in made.items():
        files[name] = part.write(tmp_path / f"{name}.parquet")
    files["other"] = table(20, fingerprint=OTHER).write(tmp_path / "other.parquet")
    words = [
        "ood",
        "fit",
        files["fit"],
        "--out",
        tmp_path / "rejector",
        "--scorer",
        "heat",
        "--tpr",
        0.9,
        "--policy",
        "flag",
    ]
    small = ["hidden=8", "train_steps=5", 'priors=["gmm"]', "keep=always"]
    words += [word for option in small for word in ("--option", option)]
    status, out, err = sightline(*words, "--gallery-table", files["held"])
    assert status == 0, err
    loaded = Rejector.load(tmp_path / "rejector")
    assert (loaded.policy, loaded.fingerprint, loaded.scorer.options()["keep"]) == ("flag", PRINT, "always")
    shown = f"{loaded.similarity_threshold:.4f}", "90 %"
    assert all(fact in out for fact in shown)

    words = ["ood", "evaluate", tmp_path / "rejector", "--in", files["held"], "--out-sets", f"far={files['far']}"]
    words += ["--out-sets", f"near={files['near']}", "--interval", 0.9]
    status, out, err = sightline(*words, "--json", tmp_path / "r.json", "--plot", tmp_path / "r.svg")
    assert status == 0, err
    lines = out.splitlines()
    assert lines[0].split() == ["set", "auroc", "fpr95", "aupr_out", "aupr_in", "accuracy"]
    assert [line.split()[0] for line in lines[1:4]] == ["far", "near", "mean"]
    assert all(fact in lines[4] for fact in ("200", "100 of far", "90 of near"))
    rejected = np.mean(loaded.scorer.score(made["far"].vectors) > loaded.scorer.threshold)
    assert f"{100 * rejected:.1f} % of far" in lines[5]
    stored = json.loads((tmp_path / "r.json").read_text())
    assert f"{100 * stored['per_set']['far']['auroc']:.1f} [" in lines[1]
    assert stored["level"] == 0.9
    assert "<svg" in (tmp_path / "r.svg").read_text()

    status, out, err = sightline(*words, "--gallery-table", files["fit"], "--far", 0.1)
    assert status == 0, err
    rates = identification_rates(made["held"], made["fit"], {"far": made["far"], "near": made["near"]}, 0.1)
    shown = ", ".join(f"{100 * rate:.1f} % against {name}" for name, rate in rates.items())
    assert out.splitlines()[-1].endswith(shown)
    assert rates["far"] > 0.5

    fit = ["ood", "fit", files["fit"], "--out", tmp_path / "x"]
    for wrong, message in (
        ([*words[:4], files["other"], *words[5:]], OTHER),
        ([*fit, "--scorer", "gnm"], "did you mean 'gmm'"),
        ([*fit, "--option", "seed=3"], "--option seed"),
        ([*words[:5], "--out-sets", "far"], "'far'"),
        ([*words, "--plot", "roc.txt"], "roc.txt"),
        ([*words, "--out-sets", f"far={files['near']}"], "twice"),
        ([*words, "--gallery-table", files["other"]], OTHER),
        ([*words, "--gallery-table", files["fit"], "--far", 1.0], "got 1.0"),
        (["ood", "fit", files["fit"]], "--out"),
    ):
        status, out, err = sightline(*wrong)
        assert (status, out, message in err) == (2, "", True), err
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
