"""The rejector: bound to an encoder, saved in a folder of its own; and the commands that make and measure it."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from sightline import EmbeddingTable, Encoder, InputError, Manifest, ood
from sightline.evaluation.detection import identification_rates
from sightline.ood.rejector import Rejector, check_place, fit_rejector, match_threshold, withholds

PRINT, OTHER = "a" * 32, "b" * 32


def refuses(message, call):
    """Assert that the call raises an InputError whose message matches."""
    with pytest.raises(InputError, match=message):
        call()


def table(n, seed=0, shift=0.0, fingerprint=PRINT, n_classes=8, prefix="i"):
    """Unit vectors about class means that every seed shares."""
    labels = np.arange(n) % n_classes
    means = np.random.default_rng(99).normal(size=(n_classes, 6))
    vectors = (means[labels] + 0.3 * np.random.default_rng(seed).normal(size=(n, 6)) + shift).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    rows = pl.DataFrame(
        {
            "id": [f"{prefix}{seed}-{place}" for place in range(n)],
            "path": [f"{place}.png" for place in range(n)],
            "split": ["test"] * n,
            "label_0": [f"c{label}" for label in labels],
        }
    )
    return EmbeddingTable(Manifest(Path("images.csv"), Path("."), rows, 1), vectors, fingerprint)


def joined(gallery, queries):
    """The gallery and some of the queries, which are not to match themselves."""
    rows = pl.concat([gallery.manifest.table, queries.manifest.table[:20]])
    vectors = np.concatenate([gallery.vectors, queries.vectors[:20]])
    return EmbeddingTable(Manifest(Path("g.csv"), Path("."), rows, 1), vectors, PRINT)


def relabelled(table):
    rows = table.manifest.table.with_columns(pl.lit("z").alias("label_0"))
    return EmbeddingTable(Manifest(Path("x.csv"), Path("."), rows, 1), table.vectors, PRINT)


def test_accepts_the_stated_share_and_refuses_what_is_elsewhere():
    rejector = fit_rejector(table(2000), "gmm", tpr=0.9)
    verdicts = rejector.judge(table(2000, seed=1).vectors)
    assert np.mean([verdict.belongs for verdict in verdicts]) == pytest.approx(0.9, abs=0.03)
    outside = rejector.judge(np.random.default_rng(0).normal(size=(200, 6)))
    assert np.mean([verdict.belongs for verdict in outside]) < 0.3
    assert all(v.matched is None and v.similarity is None and v.similarity_threshold is None for v in verdicts)
    assert all(v.belongs == (v.energy <= v.threshold) for v in verdicts)


def test_a_vector_that_is_not_finite_is_named_by_file_and_id(sightline, tmp_path):
    broken = table(40)
    broken.vectors[3, 1] = np.nan
    message = r"the vector of 'i0-3' has values that are not finite"
    refuses(rf"images\.csv: {message}", lambda: fit_rejector(broken, "knn", k=3))
    fit_rejector(table(40), "knn", k=3).save(tmp_path / "r")
    fine, bad = table(40, seed=1).write(tmp_path / "fine.parquet"), broken.write(tmp_path / "bad.parquet")
    status, _, err = sightline("ood", "evaluate", tmp_path / "r", "--in", fine, "--out-sets", f"n={bad}")
    assert status == 2
    assert f"{bad}: {message}" in err


def test_no_match_is_kept_apart_from_not_belonging():
    rejector = fit_rejector(table(400), "knn", gallery=table(80, seed=5), k=3)
    assert rejector.similarity_acceptance == 0.95
    limit = rejector.similarity_threshold
    vectors = table(3, seed=1).vectors
    verdicts = rejector.judge(vectors, [limit, limit - 1e-6, 1.0])
    assert [verdict.matched for verdict in verdicts] == [True, False, True]
    assert [verdict.similarity for verdict in verdicts] == [limit, limit - 1e-6, 1.0]
    np.testing.assert_allclose([verdict.energy for verdict in verdicts], rejector.scorer.score(vectors))
    refuses(r"one for each of the 3 queries is needed, found 2", lambda: rejector.judge(vectors, [0.1, 0.2]))


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
    refuses(r"tpr is 1\.5", lambda: fit_rejector(table(50), "gmm", tpr=1.5))
    refuses("unknown policy 'refuse'", lambda: fit_rejector(table(50), "gmm", policy="refuse"))
    refuses("has an image of its class", lambda: fit_rejector(table(50), "gmm", gallery=relabelled(table(50, seed=1))))
    broken = table(50, seed=1)
    broken.vectors[3, 2] = np.nan
    for wrong in (broken, table(0)):
        with pytest.raises(InputError, match=r"not finite|0 vectors"):
            fit_rejector(table(50), "gmm", held_out=wrong)
        with pytest.raises(InputError, match=r"not finite|0 vectors"):
            fit_rejector(table(50), "gmm", gallery=wrong)


def test_a_place_is_refused_exactly_where_saving_there_would_be(tmp_path):
    made = fit_rejector(table(50), "gmm")
    (tmp_path / "file").write_text("mine")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note.txt").write_text("mine")
    for name in ("file", "full"):
        said = []
        for refuses in (check_place, made.save):
            with pytest.raises(InputError, match="exists and is not a rejector; it is left as it is") as caught:
                refuses(tmp_path / name)
            said.append(str(caught.value))
        assert said[0] == said[1]
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty", "new"):  # the last one is a rejector by then
        check_place(tmp_path / name)
        made.save(tmp_path / name)


def test_fit_refuses_its_folder_before_it_fits(sightline, tmp_path, monkeypatch):
    monkeypatch.setattr(ood.Scorer, "fit", lambda *_, **__: pytest.fail("fitted"))
    file = table(50).write(tmp_path / "fit.parquet")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "note.txt").write_text("mine")
    status, out, err = sightline("ood", "fit", file, "--out", tmp_path / "mine", "--scorer", "gmm")
    assert (status, out) == (2, "")
    assert f"{tmp_path / 'mine'}: exists and is not a rejector; it is left as it is" in err


def test_seed_is_the_scorers_too():
    assert fit_rejector(table(80), "ssd", seed=4).scorer.options()["seed"] == 4
    assert "seed" not in fit_rejector(table(80), "composition", seed=4, scorers=["gmm"]).scorer.options()


def test_policies():
    rejector = fit_rejector(table(300), "gmm")
    inside, outside = rejector.judge(np.stack([table(1).vectors[0], -table(1).vectors[0]]))
    assert (inside.belongs, outside.belongs) == (True, False)
    assert [withholds(policy, outside) for policy in ("reject", "flag", "ignore")] == [True, False, False]
    assert not withholds("reject", inside)
    refuses("unknown policy 'refuse'", lambda: fit_rejector(table(300), "gmm", policy="refuse"))


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
    with pytest.raises(InputError, match=f"fitted on vectors of encoder {encoder.fingerprint()}, these are of {OTHER}"):
        Rejector.load(folder, OTHER)
    made.save(folder / "rejector")  # again, in its place
    assert sorted(file.name for file in (folder / "rejector").iterdir()) == [
        "rejector.json",
        "scorer.json",
        "scorer.safetensors",
    ]


def test_what_does_not_fit(tmp_path):
    refuses("a rejector judges vectors; scorer 'gmm_std' needs feature maps", lambda: fit_rejector(table(50), "gmm_std"))
    refuses("has no threshold yet", lambda: Rejector(ood.create("gmm").fit(table(50).vectors), PRINT))
    refuses("a rejector judges vectors; scorer 'gmm_std'", lambda: Rejector(ood.create("gmm_std"), PRINT))
    with pytest.raises(InputError, match=f"50 vectors of encoder {OTHER}; vectors of encoder {PRINT}"):
        fit_rejector(table(50), "gmm", gallery=table(50, fingerprint=OTHER))
    refuses("level is 1; the table has 1 label levels", lambda: fit_rejector(table(50), "gmm", level=1))
    bare = table(50).manifest.table.drop("label_0")
    unlabelled = EmbeddingTable(Manifest(Path("x.csv"), Path("."), bare, 0), table(50).vectors, PRINT)
    refuses("level is 1; the table has 0 label levels", lambda: fit_rejector(unlabelled, "gmm", level=1))
    assert fit_rejector(unlabelled, "gmm").judge(table(2).vectors)
    refuses("2 or more are needed", lambda: fit_rejector(table(1), "gmm"))
    refuses(r"not a rejector: it has no rejector\.json", lambda: Rejector.load(tmp_path))
    folder = fit_rejector(table(50), "gmm").save(tmp_path / "r")
    stored = json.loads((folder / "rejector.json").read_text())
    for broken, message in (
        ({**stored, "format": 2}, "of format 2"),
        ({**stored, "extra": 1}, "not a rejector's settings"),
        ({**stored, "similarity_threshold": {}}, "similarity_threshold"),
        ([1], "rejector.json"),
    ):
        (folder / "rejector.json").write_text(json.dumps(broken))
        with pytest.raises(InputError, match=message):
            Rejector.load(folder)


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
        *["--scorer", "heat", "--tpr", "0.9", "--policy", "flag"],
    ]
    small = ["hidden=8", "epochs=1", "n_chains=16", "n_steps=1", 'priors=["gmm"]', "start=data"]
    words += [word for option in small for word in ("--option", option)]
    status, out, err = sightline(*words, "--gallery-table", files["held"])
    assert status == 0, err
    assert "heat, energies up to" in out
    assert "are a match (90 %)" in out
    loaded = Rejector.load(tmp_path / "rejector")
    assert (loaded.policy, loaded.fingerprint, loaded.scorer.options()["start"]) == ("flag", PRINT, "data")

    words = ["ood", "evaluate", tmp_path / "rejector", "--in", files["held"], "--out-sets", f"far={files['far']}"]
    words += ["--out-sets", f"near={files['near']}", "--interval", 0.9]
    status, out, err = sightline(*words, "--json", tmp_path / "r.json", "--plot", tmp_path / "r.svg")
    assert status == 0, err
    lines = out.splitlines()
    assert lines[0].split() == ["set", "auroc", "fpr95", "aupr_out", "aupr_in", "accuracy"]
    assert [line.split()[0] for line in lines[1:4]] == ["far", "near", "mean"]
    assert all(fact in lines[4] for fact in ("200", "100 of far, 90 of near"))
    assert lines[5].startswith("refused: ")
    stored = json.loads((tmp_path / "r.json").read_text())
    assert f"{100 * stored['per_set']['far']['auroc']:.1f} [" in lines[1]
    assert stored["level"] == 0.9
    assert "<svg" in (tmp_path / "r.svg").read_text()

    status, out, err = sightline(*words, "--gallery-table", files["fit"], "--far", 0.1)
    assert status == 0, err
    rates = identification_rates(made["held"], made["fit"], {"far": made["far"], "near": made["near"]}, 0.1)
    shown = ", ".join(f"{100 * rate:.1f} % against {name}" for name, rate in rates.items())
    assert out.splitlines()[-1] == f"identified where 10 % of a set may be matched: {shown}"
    assert rates["far"] > 0.5

    status, _, err = sightline(*words[:4], files["other"], *words[5:])
    assert (status, f"these are of {OTHER}" in err) == (2, True)
    status, _, err = sightline("ood", "fit", files["fit"], "--out", tmp_path / "x", "--scorer", "gnm")
    assert (status, "did you mean 'gmm'" in err) == (2, True)
    assert not (tmp_path / "x").exists()
    status, _, err = sightline("ood", "evaluate", tmp_path / "rejector", "--in", files["held"], "--out-sets", "far")
    assert (status, "'far': name=value is needed" in err) == (2, True)
    for wrong, message in (
        (["--plot", "roc.txt"], "--plot roc.txt: a file that ends in .svg or .png is needed"),
        (["--out-sets", f"far={files['near']}"], "a name is given twice"),
        (["--gallery-table", files["other"]], f"these are of {OTHER}"),
        (["--gallery-table", files["fit"], "--far", 1.0], "1.0"),
    ):
        status, out, err = sightline(*words, *wrong)
        assert (status, out, message in err) == (2, "", True), err
    status, _, err = sightline("ood", "fit", files["fit"], "--out", tmp_path / "x", "--option", "seed=3")
    assert (status, "--option seed" in err) == (2, True)
