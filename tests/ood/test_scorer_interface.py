"""What all scorers share: blocks, saving, calibration, and what each refuses."""

import contextlib
import json
import math
import warnings

import numpy as np
import pytest
import torch

import sightline as sl
from sightline import InputError, ood

FAST_HEAT = {"hidden": 16, "epochs": 2, "n_steps": 2, "n_chains": 32}


def model(images):
    return images.flatten(1)[:, :4]


OPTIONS = {
    "knn": {"k": 5},
    "heat": FAST_HEAT | {"priors": ["gmm", {"name": "energy", "scale": 8.0}]},
    "composition": {"scorers": ["gmm", {"name": "knn", "k": 3}, {"name": "heat", **FAST_HEAT}], "beta": -1.0},
    "odin": {"model": model, "temperature": 10.0},
}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    labels = np.arange(1200) % 4
    return rng.normal(size=(4, 8))[labels] + 0.5 * rng.normal(size=(1200, 8)), labels


def given(scorer, vectors):
    if scorer.needs == ("feature maps",):
        return vectors.reshape(len(vectors), 2, 2, 2)
    return vectors.reshape(len(vectors), 2, 2, 2) if scorer.needs == ("images",) else vectors


def fitted(name, data, dtype=np.float64):
    scorer = ood.create(name, **OPTIONS.get(name, {}))
    return scorer.fit(given(scorer, data[0].astype(dtype)), data[1])


def test_the_table_has_every_scorer():
    asked = ["msp", "maxlogit", "energy", "odin", "kl_matching", "react", "dice", "mahalanobis", "ssd", "knn", "residual"]
    assert ood.list_scorers() == sorted([*asked, "vim", "gmm", "gmm_std", "heat", "composition", "soft_knn"])
    assert sl.ood is ood


@pytest.mark.parametrize("name", ood.list_scorers())
def test_blocks_order_seeds_and_large_inputs(name, data):
    scorer = fitted(name, data)
    inputs = given(scorer, data[0])
    scores = scorer.score(inputs)  # 1,200 items: two blocks
    assert scores.shape == (1200,)
    assert scores.dtype == np.float64
    order = np.random.default_rng(1).permutation(1200)
    np.testing.assert_allclose(scorer.score(inputs[order]), scores[order], rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(scorer.score(inputs[:1]), scores[:1], rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(fitted(name, data).score(inputs), scores)
    assert np.isfinite(scorer.score(1e4 * inputs[:50])).all()
    assert scorer.score(inputs[:0]).shape == (0,)


@pytest.mark.parametrize("name", ood.list_scorers())
def test_saved_and_loaded_scores_the_same(name, data, tmp_path):
    scorer = fitted(name, data, np.float32)
    inputs = given(scorer, data[0].astype(np.float32))
    scorer.calibrate(inputs[:500], tpr=0.9)
    folder = scorer.save(tmp_path / "scorer")
    assert sorted(file.name for file in folder.iterdir()) == ["scorer.json", "scorer.safetensors"]
    loaded = ood.load(folder, **({"model": model} if name == "odin" else {}))
    np.testing.assert_array_equal(loaded.score(inputs), scorer.score(inputs))
    assert (loaded.threshold, loaded.acceptance) == (scorer.threshold, 0.9)
    np.testing.assert_array_equal(loaded.is_outlier(inputs), scorer.score(inputs) > scorer.threshold)
    again = scorer.save(folder)  # one that is there is replaced
    assert again == folder
    assert list(tmp_path.iterdir()) == [folder]
    if scorer.needs == ("vectors",):
        with pytest.raises(InputError, match="8 dimensions, found 7"):
            loaded.score(inputs[:, :7])


def test_calibration_accepts_the_stated_share(data):
    scorer = fitted("gmm", data)
    energies = scorer.score(data[0][:997])
    assert scorer.calibrate(data[0][:997], 0.95) == pytest.approx(np.quantile(energies, 0.95))
    threshold = scorer.calibrate(data[0][:997], 0.95, method="higher")
    assert (energies <= threshold).mean() >= 0.95
    assert (energies < threshold).mean() < 0.95
    assert scorer.is_outlier(data[0][:997]).mean() <= 0.05


def test_calibration_numbers_of_the_specification():
    energies = np.array([0.1, 0.4, 0.35, 0.8, 0.2, 0.5, 0.3, 0.6, 0.25, 0.45])
    scorer = ood.create("maxlogit", inputs="logits").fit(-energies[:, None])
    assert scorer.calibrate(-energies[:, None]) == pytest.approx(0.71)
    assert scorer.calibrate(-energies[:, None], method="higher") == pytest.approx(0.8)
    assert scorer.is_outlier(-np.array([[0.8], [0.81]])).tolist() == [False, True]


def test_fit_forgets_the_threshold(data):
    scorer = fitted("gmm", data)
    scorer.calibrate(data[0])
    assert scorer.fit(data[0]).threshold is None


def test_labels_in_levels_are_the_finest(data):
    levels = np.stack([data[1], data[1] // 2], 1)
    np.testing.assert_array_equal(
        ood.create("gmm").fit(data[0], levels).score(data[0]), ood.create("gmm").fit(data[0], data[1]).score(data[0])
    )


def test_half_precision_and_integers_are_scored_as_floats(data):
    scorer = fitted("gmm", data, np.float32)
    half = torch.from_numpy(data[0]).half()
    np.testing.assert_array_equal(scorer.score(half), scorer.score(half.float()))


def test_several_needs_are_given_by_name(data, tmp_path):
    vectors, labels = data
    scorer = ood.create("heat", priors=["gmm", "gmm_std", "energy"], **FAST_HEAT)
    assert scorer.needs == ("vectors", "feature maps")
    both = {"vectors": vectors, "feature maps": vectors.reshape(-1, 2, 2, 2)}
    assert scorer.fit(both, labels).score(both).shape == (1200,)
    with pytest.raises(InputError, match="needs vectors and feature maps: give each by its name in a dict"):
        scorer.score(vectors)
    with pytest.raises(InputError, match="'heat' needs feature maps, found 'vectors'"):
        scorer.score({"vectors": vectors})
    with pytest.raises(InputError, match="one of each for every item is needed, found 3 vectors, 1200 feature maps"):
        scorer.score(both | {"vectors": vectors[:3]})
    for one in (scorer, ood.load(scorer.save(tmp_path / "scorer"))):
        np.testing.assert_array_equal(one.score(both), scorer.score(both))
        with pytest.raises(InputError, match="fitted on vectors of 8 dimensions, found 7"):
            one.score(both | {"vectors": vectors[:, :7]})
        with pytest.raises(InputError, match="fitted on feature maps of 2 dimensions, found 8"):
            one.score(both | {"feature maps": vectors[:, :, None, None]})


def test_a_network_with_tied_layers_is_saved_and_loaded(data, tmp_path):
    scorer = ood.create("heat", tie_hidden=True, **FAST_HEAT).fit(*data)
    loaded = ood.load(scorer.save(tmp_path / "scorer"))
    np.testing.assert_array_equal(loaded.score(data[0]), scorer.score(data[0]))
    assert loaded.members[0].network[2] is loaded.members[0].network[8]


def test_a_function_cannot_be_saved(data, tmp_path):
    scorer = ood.create("composition", scorers=[{"name": "odin", "model": model}])
    scorer.fit(data[0].reshape(-1, 2, 2, 2))
    with pytest.raises(InputError, match="'composition' has an option that cannot be saved"):
        scorer.save(tmp_path / "scorer")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gnm", {}, "unknown scorer 'gnm': did you mean 'gmm'"),
        ("knn", {"j": 3}, "scorer 'knn' has no option 'j'"),
        ("knn", {"k": 0}, "k is 0"),
        ("knn", {"k": 2.5}, r"k .*2\.5"),
        ("knn", {"bank_size": "all"}, "bank_size .*all"),
        ("ssd", {"supervised": 1}, "supervised .*1"),
        ("energy", {"scale": True}, "scale .*True"),
        ("gmm", {"components": 2.0}, r"components .*string or .*integer.* 2\.0"),
        ("heat", {"step": [1.0]}, r"step is \[1\.0\]; two numbers are needed"),
        ("heat", {"step": 5}, "step .*5"),
        ("heat", {"noise": ["a", "b"]}, r"noise .*\['a', 'b'\]"),
        ("heat", {"noise": [1.0, math.nan]}, r"noise \(1\.0, nan\); 0 or more"),
        ("heat", {"input_noise": math.nan}, "input_noise nan; 0 or more"),
        ("heat", {"beta": math.nan}, "beta is not a number"),
        ("composition", {"beta": math.nan}, "beta is not a number"),
        ("gmm", {"components": "class"}, "did you mean 'classes'"),
        ("gmm", {"components": 0}, "components is 0"),
        ("gmm", {"weights": "count"}, "did you mean 'counts'"),
        ("gmm", {"shrinkage": -1.0}, "shrinkage is -1"),
        ("gmm", {"shrinkage": "much"}, "shrinkage .*auto.*much"),
        ("gmm", {"shrinkage": None}, "shrinkage .*auto.*None"),
        ("energy", {"temperature": 0.0}, "temperature is 0"),
        ("energy", {"temperature": math.nan}, "temperature is nan"),
        ("energy", {"scale": math.nan}, "scale is nan"),
        ("vim", {"scale": -1.0}, "scale is -1"),
        ("msp", {"n_clusters": 0}, "n_clusters is 0"),
        ("odin", {"model": model, "temperature": math.nan}, "temperature is nan"),
        ("energy", {"stand_in": "proxies"}, "unknown stand_in 'proxies'"),
        ("soft_knn", {"scale": 0.0}, "scale is 0"),
        ("react", {"quantile": 1.5}, "quantile is 1.5"),
        ("dice", {"percentile": 100.0}, "percentile is 100"),
        ("odin", {}, "'odin' needs model"),
        ("heat", {"priors": "gmm"}, "priors .*gmm"),
        ("heat", {"priors": 5}, "priors .*5"),
        ("heat", {"priors": [5]}, "priors .*5"),
        ("heat", {"priors": [{"k": 3}]}, "has no name"),
        ("heat", {"priors": [{"name": "odin", "model": model}]}, "prior 'odin' has no gradient"),
        ("heat", {"priors": ["heat"]}, "priors: 'heat'"),
        ("heat", {"weight": 0.0}, "weight is 0"),
        ("heat", {"temperature": -1.0}, "temperature is -1"),
        ("heat", {"temperature": "high"}, "temperature .*auto.*high"),
        ("heat", {"temperature": None}, "temperature .*auto.*None"),
        ("heat", {"start": "priors"}, "did you mean 'prior'"),
        ("heat", {"negatives": "init"}, "unknown negatives"),
        ("heat", {"decay": "cubic"}, "unknown decay"),
        ("heat", {"epochs": -1}, "epochs is -1"),
        ("composition", {"scorers": []}, r"scorers is \[\]"),
    ],
)
def test_options_that_do_not_fit(name, options, message):
    with pytest.raises(InputError, match=message):
        ood.create(name, **options)


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("gmm", np.zeros((3, 2, 2)), r"'gmm' needs vectors \(N, D\), found shape \(3, 2, 2\)"),
        ("gmm_std", np.zeros((3, 2)), r"needs feature maps \(N, C, H, W\) or \(N, T, C\), found shape \(3, 2\)"),
        ("gmm", np.array([[1.0, 2], [np.nan, 0], [np.inf, 0]]), "row 1 has values that are not finite, and 2 rows"),
        ("gmm", np.ones((5, 3)), "do not differ within their classes"),
        ("gmm", np.zeros((0, 3)), "no items to fit on"),
        ("gmm", np.ones((1, 3)), "needs 2 items or more"),
        ("knn", np.ones((5, 3)), "k is 50, the fit set has 5 items"),
        ("residual", np.ones((5, 1)), "n_principal is 0"),
        ("residual", np.ones((5, 4)), "'residual': the vectors lie in the leading directions: lower n_principal"),
        ("vim", np.ones((5, 4)), "'vim': the vectors lie in the leading directions: lower n_principal"),
        ("gmm", np.ones((5, 0)), r"'gmm' needs vectors \(N, D\), found shape \(5, 0\)"),
        ("gmm", [["a", "b"]], r"'gmm' needs vectors \(N, D\), found no numbers in rows"),
        ("gmm", [[1.0, 2.0], [3.0]], r"'gmm' needs vectors \(N, D\), found no numbers in rows"),
    ],
)
def test_inputs_that_do_not_fit(name, inputs, message):
    with pytest.raises(InputError, match=message):
        ood.create(name).fit(inputs)


def test_a_classifier_of_another_width_one_class_and_missing_labels(data):
    vectors, labels = data
    narrow = ood.Classifier(torch.zeros(3, 7), torch.zeros(3))
    with pytest.raises(InputError, match="takes vectors of 7 dimensions, these have 8"):
        ood.create("energy").fit(vectors, classifier=narrow)
    with pytest.raises(InputError, match=r"weight \(C, D\) and a bias \(C,\)"):
        ood.Classifier(torch.zeros(3, 7), torch.zeros(4))
    with pytest.raises(InputError, match="of no use to a scorer that is given logits"):
        ood.create("msp", inputs="logits").fit(vectors, classifier=narrow)
    with pytest.raises(InputError, match="'msp' needs 2 classes or more, there is one"):
        ood.create("msp").fit(vectors, np.zeros(1200))
    assert np.isfinite(ood.create("energy").fit(vectors, np.zeros(1200)).score(vectors)).all()
    with pytest.raises(InputError, match="prototypes need labels"):
        ood.create("energy", stand_in="prototypes").fit(vectors)
    with pytest.raises(InputError, match="needs labels"):
        ood.create("ssd", supervised=True).fit(vectors)
    with pytest.raises(InputError, match=r"one for each of the 1200 items is needed, found shape \(3,\)"):
        ood.create("gmm").fit(vectors, labels[:3])
    with pytest.raises(InputError, match="labels: that of item 7 is not a number"):
        ood.create("gmm").fit(vectors, np.where(np.arange(1200) == 7, np.nan, labels))
    with pytest.raises(InputError, match="labels: all are to be words, or all numbers"):
        ood.create("gmm").fit(vectors, [None, *["a"] * 1199])
    for seed in (-1, 1 << 32):
        with pytest.raises(InputError, match=f"seed is {seed}; k-means takes 0 to 4294967295"):
            ood.create("energy", seed=seed).fit(vectors)


def test_what_is_not_finite_is_refused_and_never_belongs(data):
    vectors, labels = data
    with pytest.raises(InputError, match="weight or bias has values that are not finite"):
        ood.Classifier(torch.full((3, 8), torch.nan), torch.zeros(3))
    huge = ood.Classifier(torch.full((3, 8), 1e308, dtype=torch.float64), torch.zeros(3).double())
    with pytest.raises(InputError, match="'energy': 1200 of 1200 items have an energy that is not finite"):
        ood.create("energy").fit(np.abs(vectors) + 1, classifier=huge).calibrate(np.abs(vectors) + 1)
    with pytest.raises(InputError, match="scorer 'energy' gives items of the fit set energies that are not finite"):
        ood.create("composition", scorers=["gmm", "energy"]).fit(np.abs(vectors) + 1, labels, huge)
    scorer = ood.create("mahalanobis").fit(vectors, labels)
    scorer.calibrate(vectors)
    far = np.full((1, 8), 1e200)
    assert not np.isfinite(scorer.score(far)).any()
    assert scorer.is_outlier(far).tolist() == [True]


def test_fewer_items_than_dimensions_works_and_warns():
    vectors = np.random.default_rng(0).normal(size=(20, 40))
    with pytest.warns(UserWarning, match="20 items in 1 component.* for 40 dimensions; shrinkage 1e-06 fills in"):
        scorer = ood.create("gmm").fit(vectors)
    assert np.isfinite(scorer.score(vectors)).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(InputError, match="cannot be inverted; raise shrinkage"):
            ood.create("gmm", shrinkage=0.0).fit(vectors)


@pytest.mark.parametrize("name", ["residual", "vim"])
def test_fewer_items_than_dimensions_leave_some_that_do_not_vary(name):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(20, 64))
    with pytest.warns(UserWarning, match=f"'{name}': 20 items for 64 dimensions, 10 of which are taken to vary"):
        scorer = ood.create(name).fit(vectors, np.arange(20) % 2)
    outside = scorer.residual(torch.from_numpy(vectors)).mean()
    assert 0.1 < outside < scorer.residual(torch.from_numpy(rng.normal(size=(20, 64)))).mean()
    with pytest.raises(InputError, match="lie in the leading directions: lower n_principal"):
        ood.create(name, n_principal=32).fit(vectors, np.arange(20) % 2)


def test_a_dimension_that_never_varies_is_filled_in():
    vectors = np.random.default_rng(0).normal(size=(200, 4))
    vectors[:, 2] = 0
    scorer = ood.create("mahalanobis").fit(vectors)
    assert np.isfinite(scorer.score(vectors)).all()
    assert scorer.score(vectors[:1] + np.array([0, 0, 1, 0]))[0] > 1e5


def test_what_is_not_there_yet(data):
    with pytest.raises(InputError, match="'gmm' is not fitted yet"):
        ood.create("gmm").score(data[0])
    with pytest.raises(InputError, match="'gmm' is not fitted yet"):
        ood.create("gmm").save("nowhere")
    with pytest.raises(InputError, match="has no threshold yet"):
        fitted("gmm", data).is_outlier(data[0])
    with pytest.raises(InputError, match=r"tpr is 1\.5"):
        fitted("gmm", data).calibrate(data[0], tpr=1.5)
    with pytest.raises(InputError, match="no items to calibrate on"):
        fitted("gmm", data).calibrate(data[0][:0])


@pytest.mark.parametrize("seed", range(30))
def test_a_flipped_bit_is_found_or_changes_nothing(seed, data, tmp_path):
    scorer = fitted("gmm", data)
    folder = scorer.save(tmp_path / "scorer")
    generator = np.random.default_rng(seed)
    file = folder / ("scorer.json" if seed % 2 else "scorer.safetensors")
    stored = bytearray(file.read_bytes())
    stored[generator.integers(len(stored))] ^= 1 << int(generator.integers(8))
    file.write_bytes(stored)
    with contextlib.suppress(InputError):
        again = ood.load(folder)
        queries = generator.normal(size=(5, scorer.width))
        np.testing.assert_array_equal(again.score(queries), scorer.score(queries))
        assert again.threshold == scorer.threshold


def test_folders_that_are_no_scorer(data, tmp_path):
    with pytest.raises(InputError, match=r"not a scorer: it has no scorer\.json"):
        ood.load(tmp_path)
    (tmp_path / "note.txt").write_text("mine")
    with pytest.raises(InputError, match="exists and is not a scorer"):
        fitted("gmm", data).save(tmp_path)
    folder = fitted("gmm", data).save(tmp_path / "scorer")
    stored = json.loads((folder / "scorer.json").read_text())
    del stored["checksum"]  # as in folders that were written before there was one
    (folder / "scorer.json").write_text(json.dumps(stored | {"format": 99}))
    with pytest.raises(InputError, match="of format 99"):
        ood.load(folder)
    (folder / "scorer.json").write_text(json.dumps(stored | {"name": "knn", "options": {}}))
    with pytest.raises(InputError, match="no tensor 'bank', 'neighbour'"):
        ood.load(folder)
    (folder / "scorer.json").write_text("{")
    with pytest.raises(InputError, match=r"scorer\.json"):
        ood.load(folder)
    (folder / "scorer.json").write_text(json.dumps(stored))
    (folder / "scorer.safetensors").write_bytes(b"no")
    with pytest.raises(InputError, match="not a scorer's tensors"):
        ood.load(folder)


def test_finite_values_whose_sum_is_not_are_no_fault():
    logits = np.full((3, 2), 3e38, np.float32)
    np.testing.assert_allclose(ood.create("maxlogit", inputs="logits").fit(logits).score(logits), [-3e38] * 3, rtol=1e-6)


def test_arrays_make_a_classifier_and_another_layer_is_refused():
    vectors = np.random.default_rng(0).normal(size=(20, 8))
    by_arrays, by_tensors = (
        ood.create("energy").fit(vectors, classifier=ood.Classifier(weight, bias)).score(vectors)
        for weight, bias in ((np.eye(4, 8), np.ones(4)), (torch.eye(4, 8).double(), torch.ones(4).double()))
    )
    np.testing.assert_array_equal(by_arrays, by_tensors)
    with pytest.raises(InputError, match=r"classifier is a Linear; a sightline\.ood\.Classifier is needed"):
        ood.create("energy").fit(vectors, classifier=torch.nn.Linear(8, 4))


def test_whole_numbers_of_numpy_are_options_that_can_be_saved(tmp_path):
    vectors = np.random.default_rng(0).normal(size=(20, 8))
    scorer = ood.create("knn", k=np.int64(5)).fit(vectors)
    scorer.save(tmp_path / "s")
    np.testing.assert_array_equal(ood.load(tmp_path / "s").score(vectors), scorer.score(vectors))


def test_every_row_of_the_table_is_the_scorer_of_that_name():
    assert len(ood.SCORERS.names()) == 17
    assert {ood.SCORERS.find(name).name for name in ood.SCORERS} == {*ood.SCORERS}
