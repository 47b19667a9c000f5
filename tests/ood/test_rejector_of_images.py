"""Rejectors that take more than vectors: tables and galleries with inputs of scorers, search, service, report."""

import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from refusals import assert_refused
from sightline import EmbeddingTable, Encoder, embed_manifest, ood
from sightline.data.manifest import read_manifest
from sightline.gallery.gallery import Gallery
from sightline.gallery.ingest import index_images
from sightline.gallery.query import QueryOptions, ask, query
from sightline.ood.heat import ALL_PRIORS
from sightline.ood.rejector import Rejector, fit_rejector

pytestmark = pytest.mark.filterwarnings("ignore:.*are few for")
KINDS = ("features", "feature maps", "vectors")
PRIORS = [
    {"name": "gmm_pooled", "n_components": 6, "shrinkage": "auto"},
    {"name": "gmm_std", "shrinkage": "auto"},
    "energy",
]


@pytest.fixture(scope="module")
def encoder():
    made = Encoder.create("tiny", 8, image_size=32)
    made.backend = "torch"
    return made


@pytest.fixture(scope="module")
def table(encoder, image_tree):
    return embed_manifest(encoder, read_manifest(image_tree), scorer_inputs=True)


@pytest.fixture(scope="module")
def rejector(table):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about few items
        return fit_rejector(table, "heat", hold_out="images", policy="flag", priors=PRIORS)


@pytest.fixture
def folder(encoder, image_tree, tmp_path, rejector):
    with Gallery.create(tmp_path / "gallery", encoder) as made:
        index_images(made, encoder, read_manifest(image_tree))
    rejector.save(tmp_path / "gallery" / "rejector")
    return tmp_path / "gallery"


@pytest.fixture
def photo(tmp_path):
    Image.fromarray(np.random.default_rng(5).integers(0, 256, (36, 40, 3), np.uint8)).save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


def test_a_table_keeps_the_inputs_of_scorers(table, encoder, tmp_path):
    read = EmbeddingTable.read(table.write(tmp_path / "t.parquet"))
    assert (read.inputs.keys(), read.manifest.table.columns) == (table.inputs.keys(), table.manifest.table.columns)
    for kind, rows in encoder.scorer_inputs(table.manifest.paths()).items():
        np.testing.assert_allclose(read.scorer_inputs(KINDS)[kind], rows, atol=1e-6)
    part = read.where(read.manifest.table["id"] == table.ids[7])
    np.testing.assert_array_equal(part.inputs["features"], table.inputs["features"][7:8])
    broken = {**table.inputs, "features": table.inputs["features"] + 1}
    stored = EmbeddingTable(table.manifest, table.vectors, table.fingerprint, broken).write(tmp_path / "other.parquet")
    assert not np.array_equal(EmbeddingTable.read(stored).inputs["features"], read.inputs["features"])
    broken["features"][3, 0] = np.nan
    assert_refused(repr(table.ids[3]), EmbeddingTable(table.manifest, table.vectors, "a", broken).check_finite)
    assert_refused("'maps' of shape", EmbeddingTable, table.manifest, table.vectors, "a", {"maps": table.vectors})
    plain = EmbeddingTable(table.manifest, table.vectors, table.fingerprint)
    assert_refused("takes features and feature maps, .* --scorer-inputs", plain.scorer_inputs, KINDS)


def test_heat_takes_all_three_priors_where_the_table_has_them(table):
    plain = EmbeddingTable(table.manifest, table.vectors, table.fingerprint)
    small = {"hidden": 4, "train_steps": 2}
    assert fit_rejector(plain, "heat", **small).needs == ("vectors",)
    whole = fit_rejector(table, "heat", **small)
    assert (whole.needs, whole.scorer.options()["priors"]) == (KINDS, list(ALL_PRIORS))
    assert_refused("takes feature maps, the table has", fit_rejector, plain, "gmm_std")
    assert_refused("'energy' takes logits", fit_rejector, table, "energy", inputs="logits")


def test_a_report_shows_the_energies(rejector, table, tmp_path):
    pytest.importorskip("matplotlib")
    from sightline.report.subject import needs_inputs, read_outliers

    folder = rejector.save(tmp_path / "r")
    assert (needs_inputs(folder), needs_inputs(None)) == (True, False)
    np.testing.assert_array_equal(read_outliers(folder, table).inside, rejector.energies(table))
    plain = EmbeddingTable(table.manifest, table.vectors, table.fingerprint)
    assert_refused("--scorer-inputs", read_outliers, folder, plain)
    by_label = fit_rejector(table, "gmm", per_label=1, tpr=0.7, hold_out="images", shrinkage="auto")
    found = read_outliers(by_label.save(tmp_path / "l"), plain)
    refused = [not verdict.belongs for verdict in by_label.judge(table.vectors)]
    np.testing.assert_array_equal(found.inside > found.threshold + 1e-9, refused)


def test_search_judges_images_by_all_inputs_and_items_by_their_id(folder, encoder, rejector, photo, table):
    inside = table.manifest.paths()[4]
    expected = rejector.scorer.score(encoder.scorer_inputs([photo, inside]))
    with Gallery.open(folder, read_only=True) as gallery:
        found = gallery.search_images([photo, inside, table.ids[9]], encoder=encoder, reject=True)
        verdicts = [answer.verdict for answer in found]
        np.testing.assert_allclose([verdict.energy for verdict in verdicts[:2]], expected, rtol=1e-4)
        assert (verdicts[0].belongs, verdicts[1].belongs) == (expected[0] <= verdicts[0].threshold, True)
        assert (verdicts[2].belongs, verdicts[2].energy, verdicts[2].quantile) == (True, None, None)
        judge = gallery.rejector()
        assert (judge.needs, judge.needs_images) == (KINDS, True)
        assert_refused(
            "features and feature maps as well as vectors",
            query,
            gallery,
            table.vectors[:2],
            QueryOptions(1),
            rejector=judge,
        )
        assert ask(gallery, [table.ids[9]], QueryOptions(1), rejector=judge)[0].verdict.belongs


def test_service(folder, photo, rejector, encoder, table):
    pytest.importorskip("fastapi")
    from starlette.testclient import TestClient

    from sightline.serve.app import create_app
    from sightline.serve.settings import read_settings

    settings = read_settings(given={"galleries": [folder], "backend": "torch"}, environ={})
    with TestClient(create_app(settings), base_url="http://127.0.0.1:8000") as client:
        body = client.post("/v1/search", files={"image": photo.read_bytes()}).json()
        (expected,) = rejector.scorer.score(encoder.scorer_inputs([photo]))
        assert body["verdict"]["energy"] == pytest.approx(expected, rel=1e-4)
        by_id = client.post("/v1/search/id", json={"id": table.ids[3]}).json()["verdict"]
        assert (by_id["belongs"], by_id["energy"]) == (True, None)
        vector = {"vector": table.vectors[0].tolist()}
        refused = client.post("/v1/search/vector", json=vector)
        assert (refused.status_code, "a vector is not enough" in refused.text) == (422, True)
        assert client.post("/v1/search/vector", json=vector | {"policy": "ignore"}).json()["verdict"] is None
        fit_rejector(EmbeddingTable(table.manifest, table.vectors, table.fingerprint), "knn", k=3).save(folder / "rejector")
        assert client.post("/v1/search/vector", json=vector).json()["verdict"]["energy"] is not None
        assert client.post("/v1/search", files={"image": photo.read_bytes()}).json()["verdict"]["energy"] is not None


def test_commands(sightline, folder, encoder, image_tree, tmp_path, photo):
    model = encoder.save_pretrained(tmp_path / "encoder")
    status, out, err = sightline(
        "embed", model, image_tree, "--out", tmp_path / "t.parquet", "--scorer-inputs", "--backend", "torch"
    )
    assert (status, "feature maps of 32" in out) == (0, True), err
    small = ["--scorer", "heat", "--option", "hidden=4", "--option", "train_steps=2", "--hold-out", "images"]
    for words in (["--gallery", folder], [tmp_path / "t.parquet", "--out", tmp_path / "r"]):
        status, out, err = sightline("ood", "fit", *words, *small)
        assert (status, "gmm_std: no residual" in out) == (0, True), err
    one, other = Rejector.load(folder), Rejector.load(tmp_path / "r")
    assert one.scorer.threshold == pytest.approx(other.scorer.threshold, rel=1e-4)
    words = [
        "ood",
        "evaluate",
        tmp_path / "r",
        "--in",
        tmp_path / "t.parquet",
        "--out-sets",
        f"same={tmp_path / 't.parquet'}",
    ]
    status, out, err = sightline(*words)
    assert (status, " 50.0 " in out) == (0, True), err
    status, out, err = sightline("search", photo, "--gallery", folder, "--reject", "--backend", "torch")
    assert (status, str(photo) in out) == (0, True), err
    with Gallery.open(folder) as gallery:
        gallery.add(["bare"], np.ones((1, 8)) / 8**0.5, [{}])
    status, _, err = sightline("ood", "fit", "--gallery", folder, *small)
    assert (status, "'bare'" in err, "priors=" in err) == (2, True, True)
    assert sightline("ood", "fit", "--gallery", folder, *small, "--option", 'priors=["gmm"]')[0] == 0


def test_principal_components_are_an_option_that_changes_nothing_if_all_are_kept():
    rng = np.random.default_rng(0)
    data, queries = rng.normal(size=(300, 12)) * np.geomspace(1, 0.05, 12), rng.normal(size=(50, 12))
    plain, whole, part = (ood.create("gmm", n_components=k).fit(data, np.arange(300) % 3) for k in (None, 12, 4))
    np.testing.assert_array_equal(plain.score(queries), whole.score(queries))
    centred = data / np.linalg.norm(data, axis=1, keepdims=True)
    centre = centred.mean(0)
    directions = np.linalg.svd(centred - centre)[2][:4]
    unit = queries / np.linalg.norm(queries, axis=1, keepdims=True) - centre
    left_out = np.linalg.norm(unit - unit @ directions.T @ directions, axis=1)
    found = part.features(torch.from_numpy(queries)).numpy()
    np.testing.assert_allclose(np.abs(found[:, :4]), np.abs(unit @ directions.T), atol=1e-9)
    np.testing.assert_allclose(found[:, 4], left_out, atol=1e-7)
    reduced = ood.create("gmm", normalise=False).fit(part.features(torch.from_numpy(data)), np.arange(300) % 3)
    np.testing.assert_allclose(part.score(queries), reduced.score(found), rtol=1e-6)


def test_networks_of_parts_share_the_components(tmp_path):
    rng = np.random.default_rng(0)
    data = (rng.normal(size=(400, 10)) * np.geomspace(1, 0.1, 10)).astype("f4")
    made = ood.create("heat", priors=[{"name": "gmm", "n_components": 3}], hidden=8, train_steps=20, keep="always").fit(
        data
    )
    again = ood.load(made.save(tmp_path / "h"))
    np.testing.assert_array_equal(again.score(data), made.score(data))
    (tmp_path / "old").mkdir()
    plain = ood.create("gmm").fit(data)
    tensors = plain.tensors()
    del tensors["basis"]
    other = ood.create("gmm")
    other.restore(tensors)
    other.width = 10
    np.testing.assert_array_equal(other.score(data), plain.score(data))
