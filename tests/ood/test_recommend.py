"""The recommended scorer: the one that a comparison by hand picks, from in-distribution images alone."""

from importlib import import_module
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.metrics import roc_auc_score

from sightline import EmbeddingTable, InputError, Manifest, ood
from sightline.ood.recommend import recommend
from sightline.ood.rejector import Rejector, fit_rejector

module = import_module("sightline.ood.recommend")  # its function has the name in the package


def table(vectors, labels):
    names = {"id": [str(n) for n in range(len(vectors))], "path": ["a.png"] * len(vectors)}
    rows = pl.DataFrame(names | {"split": ["test"] * len(vectors)})
    if labels is not None:
        rows = rows.with_columns(pl.Series("label_0", [f"c{label}" for label in labels]))
    return EmbeddingTable(Manifest(Path("i.csv"), Path("."), rows, int(labels is not None)), vectors.astype("f4"), "a" * 32)


def pairs(n=1200, n_classes=24):
    """Each class in two small clouds on opposite sides: its mean says nothing, its neighbours do."""
    rng = np.random.default_rng(0)
    labels, side = np.arange(n) % n_classes, rng.choice([-1, 1], n)
    return side[:, None] * rng.normal(size=(n_classes, 5))[labels] + 0.03 * rng.normal(size=(n, 5)), labels


def clouds(n=900, n_classes=9):
    rng = np.random.default_rng(0)
    labels = np.arange(n) % n_classes
    skew = np.linalg.qr(rng.normal(size=(24, 24)))[0] * np.geomspace(0.02, 2, 24)
    return rng.normal(size=(n_classes, 24))[labels] + rng.normal(size=(n, 24)) @ skew.T, labels


@pytest.fixture(autouse=True)
def without_heat(monkeypatch):
    monkeypatch.setattr(module, "CANDIDATES", module.CANDIDATES[:-1])


def members(recommended):
    """The scorers that make it up."""
    if recommended.name != "composition":
        return [recommended.name]
    return [member["name"] for member in recommended.options["scorers"]]


def test_neighbours_where_classes_are_no_clouds_and_gaussians_where_they_are():
    in_pairs, in_clouds = recommend(table(*pairs())), recommend(table(*clouds()))
    assert "knn" in members(in_pairs)[0]
    assert members(in_clouds)[0].startswith("gmm")
    assert list(in_pairs.auroc.values()) == sorted(in_pairs.auroc.values(), reverse=True)
    assert in_pairs.auroc["knn, k=5"] > in_pairs.auroc["gmm"] + 20
    assert "held-out classes" in in_pairs.reason
    assert recommend(table(*clouds())) == in_clouds
    assert "clusters" in recommend(table(clouds()[0], None)).reason


def test_the_mean_of_the_best_unless_one_alone_is_better(monkeypatch):
    rng = np.random.default_rng(0)
    monkeypatch.setattr(module, "CANDIDATES", (("gmm", {}), ("gmm", {"k": 1}), ("energy", {}), ("knn", {"k": 5})))
    for gaps, expected in (((2.0, 1.9, 2.0, 2.0), ["gmm", "energy", "knn"]), ((3.0, 2.9, 0.0, 0.0), ["gmm"])):
        of = dict(zip(("gmm", "gmm, k=1", "energy", "knn, k=5"), gaps, strict=True))
        energies = {shown: [[rng.normal(size=300), rng.normal(gap, 1, 300)] for _ in range(3)] for shown, gap in of.items()}
        made = {shown: (shown.split(",")[0], {"of": shown}) for shown in of}
        found = module._chosen(made, energies, "classes")
        assert sorted(members(found)) == sorted(expected)
        assert max(found.auroc.values()) > 50
        if len(expected) > 1:  # the mean of independent ones is better than each
            assert next(iter(found.auroc)).startswith("mean of")


def test_what_is_fitted_accepted_and_held_out_at_two_levels():
    plain = table(*clouds(n_classes=90))
    kinds = plain.manifest.table.with_columns(
        label_1=pl.col("label_0").str.slice(0, 2) + (pl.col("label_0").str.slice(2) > "4").cast(pl.String),
        label_2=pl.col("label_0").str.slice(0, 2),
    )
    given = EmbeddingTable(Manifest(Path("i.csv"), Path("."), kinds, 3), plain.vectors, "a" * 32)
    labels = given.manifest.labels()
    groupings, what = module._groupings(given.vectors, labels, 0)
    assert ([int(groups.max()) + 1 for groups in groupings], what) == ([10, 18], "classes")
    finest, place = labels[:, 0], {row.tobytes(): n for n, row in enumerate(given.vectors)}
    for groups in groupings:
        held_out = set()
        for fold in module._folds({"vectors": given.vectors}, labels, 2, groups, 3, np.random.default_rng(0)):
            parts = [
                np.array([place[row.tobytes()] for row in rows["vectors"]])
                for rows in (fold.fitted, fold.inside, fold.outside[0])
            ]
            assert sorted(np.concatenate(parts)) == list(range(len(given)))
            assert not set(groups[parts[2]]) & set(groups[np.concatenate(parts[:2])])
            assert not set(finest[parts[1]]) & set(finest[parts[0]])
            assert fold.labels.tolist() == labels[parts[0], 2].tolist()
            held_out |= set(groups[parts[2]])
        assert held_out == set(groups)


def test_blends_have_the_covariance_of_the_images_and_no_class():
    (vectors, labels), rng = clouds(6000), np.random.default_rng(0)
    found = module._blends({"vectors": vectors}, labels, rng)["vectors"]
    assert len(found) == pytest.approx(6000 * 8 / 9, rel=0.05)
    np.testing.assert_allclose(found.mean(0), vectors.mean(0), atol=0.15)
    assert np.trace(np.cov(found.T)) == pytest.approx(np.trace(np.cov(vectors.T)), rel=0.1)
    assert len(module._blends({"vectors": vectors}, 0 * labels, rng)["vectors"]) == 0


def test_auroc_is_scikit_learns():
    rng = np.random.default_rng(0)
    inside, *outside = rng.normal(size=70).round(1), rng.normal(1, 1, 50).round(1), rng.normal(2, 1, 30).round(1)
    expected = [roc_auc_score([0] * 70 + [1] * len(far), np.concatenate([inside, far])) for far in outside]
    assert module._auroc(inside, *outside) == pytest.approx(100 * np.mean(expected))


def test_scorers_of_images_are_compared_where_the_table_has_their_inputs(monkeypatch):
    plain = table(*clouds())
    inputs = {"features": plain.vectors, "feature maps": plain.vectors[:, :8] ** 2}
    given = EmbeddingTable(plain.manifest, plain.vectors, plain.fingerprint, inputs)
    monkeypatch.setattr(module, "OF_IMAGES", module.OF_IMAGES[:2])
    assert {f"gmm_{kind}, n_components=128, shrinkage=auto" for kind in ("pooled", "std")} < recommend(given).auroc.keys()
    assert not any("std" in shown for shown in recommend(plain).auroc)


def test_relative_is_the_difference_of_two_mixtures(tmp_path):
    vectors, labels = clouds()
    made = ood.create("gmm_relative").fit(vectors, labels)
    both = [ood.create("gmm", components=kind).fit(vectors, labels).score(vectors) for kind in ("classes", "one")]
    np.testing.assert_allclose(made.score(vectors), both[0] - both[1], rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(ood.load(made.save(tmp_path / "r")).score(vectors), made.score(vectors))
    with pytest.raises(InputError, match="differentiable, 'gmm_relative' is not"):
        ood.create("heat", priors=["gmm_relative"])


def test_auto_is_the_default_of_a_rejector(tmp_path):
    rejector = fit_rejector(table(*pairs()))
    loaded = Rejector.load(rejector.save(tmp_path / "r"))
    assert loaded.scorer.name in ("composition", "soft_knn", "knn")
    assert "knn" in loaded.advice
    assert loaded.scorer.options() == rejector.scorer.options()


def test_what_does_not_fit():
    few = recommend(table(*clouds(40, 4)))
    assert (few.name, few.options, "40 images" in few.reason) == ("gmm", {"shrinkage": "auto"}, True)
    with pytest.raises(InputError, match="option 'k' requires a scorer by name"):
        fit_rejector(table(*clouds()), k=3)
