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


def refuses(message, call):
    """Assert that the call raises an InputError whose message matches."""
    with pytest.raises(InputError, match=message):
        call()


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
    refuses("'heat' needs feature maps: give each", lambda: scorer.score(vectors))
    refuses("'heat' needs feature maps", lambda: scorer.score({"vectors": vectors}))
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
    refuses("'composition' has an option that cannot be saved", lambda: scorer.save(tmp_path / "scorer"))
    assert list(tmp_path.iterdir()) == []


WRONG = {
    "gmm": {"components": ["class", 0, 2.0], "weights": ["count"], "shrinkage": [-1.0, "much", None]},
    "ssd": {"supervised": [1]},
    "knn": {"k": [0, 2.5], "bank_size": ["all"]},
    "soft_knn": {"scale": [0.0]},
    "energy": {"temperature": [0.0, math.nan], "scale": [True, math.nan], "stand_in": ["proxies"], "seed": [-1, 1 << 32]},
    "msp": {"n_clusters": [0]},
    "react": {"quantile": [1.5]},
    "dice": {"percentile": [100.0]},
    "heat": {"step": [[1.0], 5], "noise": [["a", "b"], [1.0, math.nan]], "input_noise": [math.nan], "weight": [0.0]}
    | {"temperature": [-1.0, "high", None], "start": ["priors"], "negatives": ["init"], "decay": ["cubic"]}
    | {"epochs": [-1], "n_steps": [-1], "priors": ["gmm", 5, []]},
    "composition": {"scorers": [[]], "beta": [math.nan]},
}


@pytest.mark.parametrize("name", WRONG)
def test_options_that_do_not_fit(name):
    for option, value in ((option, value) for option, values in WRONG[name].items() for value in values):
        with pytest.raises(InputError) as refused:
            ood.create(name, **{option: value})
        assert f"scorer {name!r}: {option} must be " in str(refused.value)
        assert repr(value) in str(refused.value)


def test_priors_that_do_not_fit():
    for prior, message in ((5, "priors .*5"), ({"k": 3}, "unknown scorer ''"), ("heat", "'heat'")):
        refuses(message, lambda prior=prior: ood.create("heat", priors=[prior]))
    refuses("'odin' has no gradient", lambda: ood.create("heat", priors=[{"name": "odin", "model": model}]))


def test_names_that_are_not_known():
    refuses("unknown scorer 'gnm': did you mean 'gmm'", lambda: ood.create("gnm"))
    refuses("scorer 'knn' has no option 'j'", lambda: ood.create("knn", j=3))
    refuses("'odin' needs model", lambda: ood.create("odin"))


@pytest.mark.parametrize(
    ("name", "inputs", "message"),
    [
        ("gmm", np.zeros((3, 2, 2)), r"'gmm' needs vectors \(N, D\), found shape \(3, 2, 2\)"),
        ("gmm_std", np.zeros((3, 2)), r"needs feature maps \(N, C, H, W\) or \(N, T, C\), found shape \(3, 2\)"),
        ("gmm", np.array([[1.0, 2], [np.nan, 0], [np.inf, 0]]), "row 1 has values that are not finite, and 2 rows"),
        ("gmm", np.ones((5, 3)), "do not differ within their classes"),
        ("gmm", np.zeros((0, 3)), "no items to fit on"),
        ("gmm", np.ones((1, 3)), "no spread to measure"),
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
    refuses(message, lambda: ood.create(name).fit(inputs))


def test_a_classifier_of_another_width_one_class_and_missing_labels(data):
    vectors, labels = data
    narrow = ood.Classifier(torch.zeros(3, 7), torch.zeros(3))
    refuses("takes vectors of 7 dimensions, these have 8", lambda: ood.create("energy").fit(vectors, classifier=narrow))
    refuses(r"weight \(C, D\) and a bias \(C,\)", lambda: ood.Classifier(torch.zeros(3, 7), torch.zeros(4)))
    with pytest.raises(InputError, match="of no use to a scorer that is given logits"):
        ood.create("msp", inputs="logits").fit(vectors, classifier=narrow)
    refuses("'msp' needs 2 classes or more, there is one", lambda: ood.create("msp").fit(vectors, np.zeros(1200)))
    assert np.isfinite(ood.create("energy").fit(vectors, np.zeros(1200)).score(vectors)).all()
    refuses("prototypes need labels", lambda: ood.create("energy", stand_in="prototypes").fit(vectors))
    refuses("needs labels", lambda: ood.create("ssd", supervised=True).fit(vectors))
    with pytest.raises(InputError, match=r"one for each of the 1200 items is needed, found shape \(3,\)"):
        ood.create("gmm").fit(vectors, labels[:3])
    with pytest.raises(InputError, match="labels: that of item 7 is not a number"):
        ood.create("gmm").fit(vectors, np.where(np.arange(1200) == 7, np.nan, labels))
    refuses("labels: all are to be words, or all numbers", lambda: ood.create("gmm").fit(vectors, [None, *["a"] * 1199]))


def test_what_is_not_finite_is_refused_and_never_belongs(data):
    vectors, labels = data
    with pytest.raises(InputError, match="weight or bias has values that are not finite"):
        ood.Classifier(torch.full((3, 8), torch.nan), torch.zeros(3))
    huge = ood.Classifier(torch.full((3, 8), 1e308, dtype=torch.float64), torch.zeros(3).double())
    with pytest.raises(InputError, match=r"'energy': 1200 of 1200 items .* no finite energy"):
        ood.create("energy").fit(np.abs(vectors) + 1, classifier=huge).calibrate(np.abs(vectors) + 1)
    with pytest.raises(InputError, match=r"'energy' .*not finite"):
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
    refuses("'gmm' is not fitted yet", lambda: ood.create("gmm").score(data[0]))
    refuses("'gmm' is not fitted yet", lambda: ood.create("gmm").save("nowhere"))
    refuses("has no threshold yet", lambda: fitted("gmm", data).is_outlier(data[0]))
    refuses(r"tpr is 1\.5", lambda: fitted("gmm", data).calibrate(data[0], tpr=1.5))
    refuses("0 of 0 items to calibrate on", lambda: fitted("gmm", data).calibrate(data[0][:0]))


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
    refuses(r"not a scorer .*scorer\.safetensors", lambda: ood.load(tmp_path))
    (tmp_path / "note.txt").write_text("mine")
    refuses("exists and is not a scorer", lambda: fitted("gmm", data).save(tmp_path))
    folder = fitted("gmm", data).save(tmp_path / "scorer")
    stored = json.loads((folder / "scorer.json").read_text())
    del stored["checksum"]  # as in folders that were written before there was one
    (folder / "scorer.json").write_text(json.dumps(stored | {"format": 99}))
    refuses("of format 99", lambda: ood.load(folder))
    (folder / "scorer.json").write_text(json.dumps(stored | {"name": "knn", "options": {}}))
    refuses("'bank'", lambda: ood.load(folder))
    (folder / "scorer.json").write_text("{")
    refuses(r"scorer\.json", lambda: ood.load(folder))
    (folder / "scorer.json").write_text(json.dumps(stored))
    (folder / "scorer.safetensors").write_bytes(b"no")
    refuses(r"not a scorer .*header", lambda: ood.load(folder))


def test_a_scorer_inside_another_is_not_imported_by_its_own_word():
    described = {"name": "antigravity:fly", "trust": True}
    refuses("would import .*'antigravity'", lambda: ood.create("composition", scorers=[described]))


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
