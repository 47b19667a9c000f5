"""The interface of all scorers: blocks, saving, calibration, and what each refuses."""

import contextlib
import json
import math

import numpy as np
import pytest
import torch
from scipy.stats import binom

from refusals import assert_refused
from sightline import InputError, ood

FAST_HEAT = {"hidden": 16, "train_steps": 20, "batch_size": 64, "keep": "always"}


OPTIONS = {
    "knn": {"k": 5},
    "heat": FAST_HEAT | {"priors": ["gmm", {"name": "energy", "scale": 8.0}]},
    "composition": {"scorers": ["gmm", {"name": "knn", "k": 3}, {"name": "heat", **FAST_HEAT}], "beta": -1.0},
}


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    labels = np.arange(1200) % 4
    return rng.normal(size=(4, 8))[labels] + 0.5 * rng.normal(size=(1200, 8)), labels


def given(scorer, vectors):
    if scorer.needs == ("feature maps",):
        return vectors.reshape(len(vectors), 2, 2, 2)
    return vectors if scorer.differentiable else np.abs(vectors)  # some of the library divide by a sum of positive ones


def fitted(name, data, dtype=np.float64):
    scorer = ood.create(name, **OPTIONS.get(name, {}))
    return scorer.fit(given(scorer, data[0].astype(dtype)), data[1])


@pytest.mark.parametrize("name", ood.list_scorers())
def test_blocks_order_seeds_and_large_inputs(name, data):
    scorer = fitted(name, data)
    inputs = given(scorer, data[0])
    scores = scorer.score(inputs)  # 1,200 items: two blocks
    assert (scores.shape, scores.dtype) == ((1200,), np.float64)
    order = np.random.default_rng(1).permutation(1200)
    rtol, atol = (1e-9, 1e-12) if scorer.differentiable else (1e-4, 1e-5)  # the library's float32
    np.testing.assert_allclose(scorer.score(inputs[order]), scores[order], rtol, atol)
    np.testing.assert_allclose(scorer.score(inputs[:1].tolist()), scores[:1], rtol, atol)
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
    loaded = ood.load(folder)
    np.testing.assert_array_equal(loaded.score(inputs), scorer.score(inputs))
    assert (loaded.threshold, loaded.acceptance) == (scorer.threshold, 0.9)
    np.testing.assert_array_equal(loaded.is_outlier(inputs), scorer.score(inputs) > scorer.threshold)
    assert scorer.save(folder) == folder  # an existing one is replaced
    assert list(tmp_path.iterdir()) == [folder]
    if scorer.needs == ("vectors",):
        assert_refused("8 dimensions .* got 7", loaded.score, inputs[:, :7])


def test_calibration_takes_the_conformal_quantile(data):
    scorer = fitted("gmm", data)
    energies = np.sort(scorer.score(data[0][:999]))
    assert scorer.calibrate(data[0][:999], 0.95) == energies[949]  # of 1000 equal chances, 950 are at or below it
    assert scorer.is_outlier(data[0][:999]).sum() == 49
    assert scorer.fit(data[0]).threshold is None  # a new fit forgets it
    for n_items, place, acceptance in ((19, 19, 0.95), (20, 20, 0.95), (39, 38, 0.95), (9, 9, 0.9)):
        scorer.calibrate_on(np.arange(1, n_items + 1), 0.95)
        assert (scorer.threshold, scorer.acceptance) == (place, acceptance)
    scorer = ood.create("energy", inputs="logits").fit(np.zeros((2, 1)))
    assert scorer.calibrate(-np.arange(1.0, 20)[:, None], 0.5) == 10
    assert scorer.is_outlier(-np.array([[10], [10.01]])).tolist() == [False, True]


@pytest.mark.parametrize(("n_items", "tpr"), [(19, 0.95), (50, 0.9), (137, 0.95)])
def test_calibration_holds_its_guarantee_in_simulation(n_items, tpr):
    """Of 40,000 fresh calibrations, each followed by one new query: neither fewer nor more accepted than is stated."""
    rng, n_trials = np.random.default_rng(0), 40_000
    scorer = ood.create("energy", inputs="logits").fit(np.zeros((2, 1)))
    energies = rng.standard_cauchy((n_trials, n_items + 1))
    accepted = sum(row[-1] <= scorer.calibrate_on(row[:-1], tpr) for row in energies)
    low, high = binom.ppf(1e-4, n_trials, tpr), binom.ppf(1 - 1e-4, n_trials, tpr + 1 / (n_items + 1))
    assert low <= accepted <= high


def test_labels_and_inputs_of_any_kind(data):
    vectors, labels = data
    expected = ood.create("gmm").fit(vectors, labels).score(vectors)
    words = [f"class {label}" for label in labels]
    for given_labels in (np.stack([labels, labels // 2], 1), labels.tolist(), torch.from_numpy(labels), words):
        np.testing.assert_array_equal(ood.create("gmm").fit(vectors, given_labels).score(vectors), expected)
    scorer = fitted("gmm", data, np.float32)
    half = torch.from_numpy(vectors).half()
    np.testing.assert_array_equal(scorer.score(half), scorer.score(half.float().requires_grad_()))
    logits = np.full((3, 2), 3e38, np.float32)  # finite, their sum is not
    np.testing.assert_allclose(ood.create("energy", inputs="logits").fit(logits).score(logits), [-3e38] * 3, rtol=1e-6)


def test_several_needs_are_given_by_name(data, tmp_path):
    vectors, labels = data
    scorer = ood.create("heat", priors=["gmm", "gmm_std", "energy"], **FAST_HEAT)
    assert scorer.needs == ("vectors", "feature maps")
    both = {"vectors": vectors, "feature maps": vectors.reshape(-1, 2, 2, 2)}
    assert scorer.fit(both, labels).score(both).shape == (1200,)
    pooled = both | {"feature maps": ood.std_pooled(torch.from_numpy(both["feature maps"]))}  # as an encoder gives them
    np.testing.assert_allclose(scorer.score(pooled), scorer.score(both), rtol=1e-9)
    loaded = ood.load(scorer.save(tmp_path / "scorer"))
    np.testing.assert_array_equal(loaded.score(both), scorer.score(both))
    for one in (scorer, loaded):
        assert_refused("'heat' requires feature maps", one.score, {"vectors": vectors})
        assert_refused("3 vectors, 1200 feature maps", one.score, both | {"vectors": vectors[:3]})
        assert_refused("vectors .* 8 dimensions .* got 7", one.score, both | {"vectors": vectors[:, :7]})
        wide = both | {"feature maps": vectors[:, :, None, None]}
        assert_refused("feature maps .* 2 dimensions .* got 8", one.score, wide)


WRONG = {
    "gmm": {"components": ["class", 0, 2.0], "weights": ["count"], "shrinkage": [-1.0, "much", None]},
    "knn": {"k": [0, 2.5], "bank_size": ["all"]},
    "soft_knn": {"scale": [0.0]},
    "energy": {"temperature": [0.0, math.nan], "scale": [True, math.nan], "stand_in": ["proxies"], "seed": [-1, 1 << 32]},
    "msp": {"n_clusters": [0]},
    "react": {"percentile": [1.5]},
    "heat": {"chain_step": [[1.0], 5], "chain_noise": [["a", "b"], [1.0, math.nan]], "bound": [0.0], "keep": ["never"]}
    | {"temperature": [-1.0, "high", None], "trainer": ["ncd"], "n_networks": [1], "train_steps": [0]}
    | {"chain_steps": [-1], "priors": ["gmm", 5, []]},
    "composition": {"scorers": [[]], "beta": [math.nan]},
}


def test_options_that_do_not_fit():
    for name, wrong in WRONG.items():
        for option, value in ((option, value) for option, values in wrong.items() for value in values):
            assert_refused([repr(name), option, repr(value)], ood.create, name, **{option: value})
    hidden = {"name": "antigravity:fly", "trust": True}  # a scorer inside another cannot vouch for itself
    for name, options, facts in (
        ("heat", {"priors": [5]}, "priors .*5"),
        ("heat", {"priors": [{"k": 3}]}, "unknown scorer ''"),
        ("heat", {"priors": ["heat"]}, "'heat'"),
        ("heat", {"priors": ["vim"]}, "'vim' is not"),
        ("gnm", {}, "unknown scorer 'gnm': did you mean 'gmm'"),
        ("knn", {"j": 3}, "scorer 'knn' has no option 'j'"),
        ("composition", {"scorers": [hidden]}, "would import .*'antigravity'"),
    ):
        assert_refused(facts, ood.create, name, **options)


def test_inputs_that_do_not_fit():
    for name, inputs, facts in (
        ("gmm", np.zeros((3, 2, 2)), r"'gmm': vectors .*\(N, D\), got \(3, 2, 2\)"),
        ("gmm_std", np.zeros((3,)), r"feature maps .*\(N, C, H, W\), \(N, T, C\) or.* \(N, C\), got \(3,\)"),
        ("gmm", np.array([[1.0, 2], [np.nan, 0], [np.inf, 0]]), "2 rows, the first is 1"),
        ("gmm", np.ones((5, 3)), "'gmm': .*spread is 0"),
        ("gmm", np.zeros((0, 3)), "at least one item"),
        ("knn", np.ones((5, 3)), "k .* 5 items .* got 50"),
        ("rmd", np.ones((5, 3)), "'rmd' requires labels"),
        ("nnguide", np.ones((5, 3)), "'nnguide': .*k=10"),
        ("gmm", np.ones((5, 0)), r"\(N, D\), got \(5, 0\)"),
        ("gmm", [["a", "b"]], r"'gmm': vectors .*\(N, D\)"),
        ("gmm", [[1.0, 2.0], [3.0]], r"'gmm': vectors .*\(N, D\)"),
    ):
        assert_refused(facts, ood.create(name).fit, inputs)
    for name, option in (("heat", "priors"), ("composition", "scorers")):  # a part whose scores are all equal
        assert_refused("'energy' .*equal", ood.create(name, **{option: ["energy"]}).fit, np.ones((50, 4)), np.zeros(50))


def test_classifiers_and_labels_that_do_not_fit(data):
    vectors, labels = data
    assert_refused(r"weight \(C, D\) and a bias \(C,\)", ood.Classifier, torch.zeros(3, 7), torch.zeros(4))
    assert_refused("finite", ood.Classifier, torch.full((3, 8), torch.nan), torch.zeros(3))
    narrow = ood.Classifier(torch.zeros(3, 7), torch.zeros(3))
    for scorer, given, facts in (
        (ood.create("energy"), {"classifier": narrow}, "7 dimensions, got 8"),
        (ood.create("energy", inputs="logits"), {"classifier": narrow}, "logits .* classifier"),
        (ood.create("energy"), {"classifier": torch.nn.Linear(8, 4)}, "Classifier, got Linear"),
        (ood.create("energy", stand_in="prototypes"), {}, "labels"),
        (ood.create("gmm", components="classes"), {}, "labels"),
        (ood.create("gmm"), {"labels": labels[:3]}, r"1200 items, got shape \(3,\)"),
        (ood.create("gmm"), {"labels": np.where(np.arange(1200) == 7, np.nan, labels)}, "item 7"),
        (ood.create("gmm"), {"labels": [None, *["a"] * 1199]}, "labels"),
        (ood.create("gmm"), {"labels": [[1], [1, 2], *[[1]] * 1198]}, "labels"),
    ):
        assert_refused(facts, scorer.fit, vectors, **given)
    assert np.isfinite(ood.create("energy").fit(vectors, np.zeros(1200)).score(vectors)).all()
    by_arrays, by_tensors = (
        ood.create("energy").fit(vectors, classifier=ood.Classifier(weight, bias)).score(vectors)
        for weight, bias in ((np.eye(4, 8), np.ones(4)), (torch.eye(4, 8).double(), torch.ones(4).double()))
    )
    np.testing.assert_array_equal(by_arrays, by_tensors)


def test_what_is_not_finite_is_refused_and_never_belongs(data):
    vectors, labels = data
    huge = ood.Classifier(torch.full((3, 8), 1e308, dtype=torch.float64), torch.zeros(3).double())
    positive = np.abs(vectors) + 1
    overflowing = ood.create("energy").fit(positive, classifier=huge)
    assert_refused("'energy'.* 1200 of 1200", overflowing.calibrate, positive)
    both = ood.create("composition", scorers=["gmm", "energy"])
    assert_refused(r"'energy' .*not finite", both.fit, positive, labels, huge)
    scorer = ood.create("gmm", normalise=False).fit(vectors, labels)
    scorer.calibrate(vectors)
    far = np.full((1, 8), 1e200)
    assert not np.isfinite(scorer.score(far)).any()
    assert scorer.is_outlier(far).tolist() == [True]


def test_few_items_for_many_dimensions_work_and_warn():
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(20, 40))
    with pytest.warns(UserWarning, match="20 items in 1 component.* 40 dimensions.* 1e-06"):
        scorer = ood.create("gmm").fit(vectors)
    assert np.isfinite(scorer.score(vectors)).all()
    with pytest.warns(UserWarning, match="shrinkage 0"), pytest.raises(InputError, match="raise shrinkage"):
        ood.create("gmm", shrinkage=0.0).fit(vectors)
    vectors = rng.normal(size=(200, 4)) * [1, 1, 0, 1]  # one dimension never varies
    scorer = ood.create("gmm", normalise=False).fit(vectors)
    assert np.isfinite(scorer.score(vectors)).all()
    assert scorer.score(vectors[:1] + np.array([0, 0, 1, 0]))[0] > 1e5


def test_what_is_not_there_yet(data):
    for call, given in ((ood.create("gmm").score, data[0]), (ood.create("gmm").save, "nowhere")):
        assert_refused("'gmm' is not fitted", call, given)
    scorer = fitted("gmm", data)
    assert_refused("no threshold", scorer.is_outlier, data[0])
    for tpr in (1.5, "all"):
        assert_refused(f"tpr .* got {tpr!r}", scorer.calibrate, data[0], tpr=tpr)
    assert_refused("0 of 0", scorer.calibrate, data[0][:0])


def test_a_flipped_bit_is_found_or_changes_nothing(data, tmp_path):
    scorer = fitted("gmm", data)
    folder = scorer.save(tmp_path / "scorer")
    for seed in range(30):
        generator = np.random.default_rng(seed)
        file = folder / ("scorer.json" if seed % 2 else "scorer.safetensors")
        whole = file.read_bytes()
        stored = bytearray(whole)
        stored[generator.integers(len(stored))] ^= 1 << int(generator.integers(8))
        file.write_bytes(stored)
        with contextlib.suppress(InputError):
            again = ood.load(folder)
            queries = generator.normal(size=(5, scorer.width))
            np.testing.assert_array_equal(again.score(queries), scorer.score(queries))
            assert again.threshold == scorer.threshold
        file.write_bytes(whole)


def test_folders_that_are_no_scorer(data, tmp_path):
    assert_refused(r"scorer\.safetensors", ood.load, tmp_path)
    (tmp_path / "note.txt").write_text("mine")
    assert_refused("exists and is not a scorer", fitted("gmm", data).save, tmp_path)
    folder = ood.create("knn", k=np.int64(5)).fit(data[0]).save(tmp_path / "scorer")  # NumPy's integers can be saved
    stored = json.loads((folder / "scorer.json").read_text())
    del stored["checksum"]  # as in folders that were written before there was one
    for text, facts in (
        (json.dumps(stored | {"format": 99}), "found 99"),
        (json.dumps(stored | {"name": "gmm", "options": {}}), "'means'"),
        ("{", r"scorer\.json"),
    ):
        (folder / "scorer.json").write_text(text)
        assert_refused(facts, ood.load, folder)
    (folder / "scorer.json").write_text(json.dumps(stored))
    assert ood.load(folder).options()["k"] == 5
    (folder / "scorer.safetensors").write_bytes(b"no")
    assert_refused("header", ood.load, folder)
