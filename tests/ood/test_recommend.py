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
    module = import_module("sightline.ood.recommend")  # its function has the name in the package
    monkeypatch.setattr(module, "CANDIDATES", module.CANDIDATES[:-1])


def test_neighbours_where_classes_are_no_clouds_and_gaussians_where_they_are():
    in_pairs, in_clouds = recommend(table(*pairs())), recommend(table(*clouds()))
    assert "knn" in in_pairs.name
    assert in_clouds.name == "gmm"
    assert list(in_pairs.auroc.values()) == sorted(in_pairs.auroc.values(), reverse=True)
    assert in_pairs.auroc[next(iter(in_pairs.auroc))] > in_pairs.auroc["gmm"] + 20
    assert "held-out classes" in in_pairs.reason
    assert recommend(table(*clouds())) == in_clouds
    assert "clusters" in recommend(table(clouds()[0], None)).reason


def test_images_to_accept_are_of_new_classes_where_categories_are_held_out(monkeypatch):
    module, seen = import_module("sightline.ood.recommend"), []
    monkeypatch.setattr(module, "_auroc", lambda *given: seen.append(given) or 50.0)
    plain = table(*clouds(n_classes=90))
    kinds = plain.manifest.table.with_columns(label_1=pl.col("label_0").str.slice(0, 2))  # c0 to c9
    recommend(EmbeddingTable(Manifest(Path("i.csv"), Path("."), kinds, 2), plain.vectors, "a" * 32), level=1)
    _, _, _, labels, outside, tested, *_ = seen[0]
    assert len(np.unique(labels)) == 9 + 1
    names = kinds["label_0"].to_numpy()
    assert not set(names[tested]) & set(names[~tested])
    assert 0.1 < tested[~outside].mean() < 0.3


def test_auroc_is_scikit_learns():
    module = import_module("sightline.ood.recommend")
    (vectors, labels), rng = clouds(300), np.random.default_rng(0)
    outside, tested = labels > 5, rng.random(300) < 0.4
    ours = module._auroc("knn", {"k": 3}, {"vectors": vectors}, labels, outside, tested, 0, False)
    scorer = ood.create("knn", k=3).fit(vectors[~outside & ~tested])
    chosen = outside | tested
    assert ours == pytest.approx(100 * roc_auc_score(outside[chosen], scorer.score(vectors[chosen])))


def test_scorers_of_images_compete_where_the_table_has_their_inputs(monkeypatch):
    module = import_module("sightline.ood.recommend")
    monkeypatch.setattr(module, "CANDIDATES", module.CANDIDATES[:1])
    monkeypatch.setattr(module, "OF_IMAGES", module.OF_IMAGES[:2])
    plain = table(*clouds())
    inputs = {"features": plain.vectors, "feature maps": plain.vectors[:, :8] ** 2}
    given = EmbeddingTable(plain.manifest, plain.vectors, plain.fingerprint, inputs)
    of_images = {f"gmm_{kind}, n_components=128, shrinkage=auto" for kind in ("pooled", "std")}
    assert recommend(given).auroc.keys() == {"gmm", *of_images}
    assert recommend(plain).auroc.keys() == {"gmm"}


def test_auto_is_the_default_of_a_rejector(tmp_path):
    rejector = fit_rejector(table(*pairs()))
    loaded = Rejector.load(rejector.save(tmp_path / "r"))
    assert "knn" in loaded.scorer.name
    assert loaded.advice.startswith(loaded.scorer.name)
    assert loaded.scorer.options() == rejector.scorer.options()


def test_what_does_not_fit():
    few = recommend(table(*clouds(40, 4)))
    assert (few.name, few.options, "40 images" in few.reason) == ("gmm", {"shrinkage": "auto"}, True)
    with pytest.raises(InputError, match="option 'k' requires a scorer by name"):
        fit_rejector(table(*clouds()), k=3)
