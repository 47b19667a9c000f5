"""HEAT: sampling, the loss, the composition, and that the residual corrects its prior."""

import math
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch.testing import assert_close

from sightline import InputError, ood
from sightline.ood import heat as residual_energy
from sightline.ood.heat import HeatSettings, decayed, energy_network, langevin_chains, residual_loss

energies = st.lists(st.floats(-50, 50, allow_nan=False), min_size=1, max_size=6)
betas = st.floats(-200, 200, allow_nan=False)


def composed(values, beta):
    return ood.composed(torch.tensor([values], dtype=torch.float64), beta).item()


def test_composition_numbers():
    given = (-math.inf, -10, -1, -0.1, -0.001, 0, 0.001, 0.1, 1, 10, math.inf)
    expected = (1, 1.1098566890, 1.7496000719, 2.2569337554, 2.3325556792, 2.3333333333)
    expected += (2.3341112344, 2.4121877218, 3.0712337309, 3.8901387713, 4)
    assert [composed([1, 2, 4], beta) for beta in given] == pytest.approx(expected, abs=1e-10)


@settings(deadline=None, max_examples=60)
@given(energies, betas, betas)
def test_composition_lies_between_never_falls_and_equals_the_formula_less_its_constant(values, beta, another):
    found = composed(values, beta)
    assert min(values) - 1e-9 <= found <= max(values) + 1e-9
    assert composed(values[::-1], beta) == pytest.approx(found, abs=1e-8)
    assert composed([value + 3 for value in values], beta) == pytest.approx(found + 3, abs=1e-8)
    assert composed(values, min(beta, another)) <= composed(values, max(beta, another)) + 1e-7
    if abs(beta) > 1e-3:
        top = max(beta * value for value in values)
        printed = (top + math.log(sum(math.exp(beta * value - top) for value in values))) / beta
        assert found == pytest.approx(printed - math.log(len(values)) / beta, abs=1e-7)
    if len(values) == 1:
        assert found == pytest.approx(values[0])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(-3, 3), min_size=2, max_size=5))
def test_composition_is_continuous_at_the_mean(values):
    for beta in (1e-6, -1e-6, 1e-12, 0.0):
        assert composed(values, beta) == pytest.approx(sum(values) / len(values), abs=1e-5)
    if (spread := max(values) - min(values)) > 1e-3:  # where the series hands over to the formula
        assert composed(values, 0.999e-4 / spread) == pytest.approx(composed(values, 1.001e-4 / spread), abs=1e-6)


def test_composition_does_not_overflow_and_refuses_no_number():
    assert composed([0.0, 1.0], 1e5) == pytest.approx(1.0, abs=1e-4)
    assert composed([-1e5, 1e5], 1.0) == pytest.approx(1e5 - math.log(2))
    with pytest.raises(InputError, match="beta"):
        composed([1.0], math.nan)


def test_schedule_numbers():
    for decay, expected in (("linear", (1e-4, 5.5e-5, 1.45e-5)), ("quadratic", (1e-4, 3.25e-5, 1.0225e-5))):
        assert [decayed((1e-4, 1e-5), t, 20, decay) for t in (0, 10, 19)] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("moving", "variance"),
    [
        (HeatSettings(n_steps=400, step=(0.1, 0.1), coupled=True), 1 / (1 - 0.1 / 4)),
        (HeatSettings(n_steps=400, step=(0.05, 0.05), noise=(0.2, 0.2)), 0.2**2 / (2 * 0.05 - 0.05**2)),
    ],
)
def test_chains_reach_the_variance_they_should(moving, variance):
    start = torch.zeros(10_000, 1, dtype=torch.float64)
    last = langevin_chains(lambda z: z.square().sum(1) / 2, start, moving, torch.Generator().manual_seed(0))
    assert float(last.var()) == pytest.approx(variance, rel=0.05)


@pytest.fixture
def moved(monkeypatch):
    """Where the chains of each step start and end, filled while HEAT is fitted."""
    seen = []

    def recorded(energy, start, *others):
        seen.append((start, langevin_chains(energy, start, *others)))
        return seen[-1][1]

    monkeypatch.setattr(residual_energy, "langevin_chains", recorded)
    return seen


@pytest.mark.parametrize("rectified", [False, True])
@pytest.mark.parametrize(("unit", "start"), [(False, "prior"), (True, "normal")])
def test_chains_start_and_end_where_the_data_lies(rectified, unit, start, moved):
    vectors = np.random.default_rng(0).normal(size=(100, 16))
    vectors = np.abs(vectors) if rectified else vectors
    prior = {"name": "gmm", "normalise": unit}
    ood.create("heat", priors=[prior], start=start, hidden=8, epochs=1, n_chains=64, noise=(0.1, 0.1)).fit(vectors)
    ((first, last),) = moved
    assert not torch.equal(first, last)
    for samples in (first, last):
        assert bool((samples >= 0).all()) == rectified
        lengths = samples.norm(dim=1)
        assert bool((lengths - 1).abs().max() < 1e-6) == unit


def test_a_buffer_that_is_half_full_starts_nine_chains_of_ten(moved, monkeypatch):
    monkeypatch.setattr(residual_energy, "BUFFER_SIZE", 64)
    prior = {"name": "gmm", "normalise": False}
    options = {"start": "buffer", "hidden": 8, "epochs": 10, "batch_size": 20, "n_chains": 16, "n_steps": 1}
    ood.create("heat", priors=[prior], **options).fit(np.random.default_rng(0).normal(size=(200, 3)))
    assert len(moved) == 100
    again = []
    for place, (first, _) in enumerate(moved):
        ends = {tuple(row) for _, last in moved[max(0, place - 4) : place] for row in last.tolist()}  # the last 64
        again.append(np.mean([tuple(row) in ends for row in first.tolist()]))
    assert again[:2] == [0, 0]  # 0 and 16 entries
    assert np.mean(again[2:]) == pytest.approx(0.9, abs=0.03)


def test_samples_are_chains_with_or_without_their_starts(monkeypatch):
    counted = []

    def loss(real, generated, weight):
        counted.append((len(real), len(generated), weight))
        return residual_loss(real, generated, weight)

    monkeypatch.setattr(residual_energy, "residual_loss", loss)
    vectors, options = np.random.default_rng(0).normal(size=(50, 4)), {"hidden": 8, "epochs": 1, "n_chains": 16}
    for negatives in ("chain", "chain+init"):
        ood.create("heat", negatives=negatives, batch_size=40, weight=7.0, **options).fit(vectors)
    assert counted == [(n_real, n_samples, 7.0) for n_samples in (16, 32) for n_real in (40, 10)]


def test_a_bar_is_drawn_and_what_does_not_fit_is_refused(capsys):
    vectors = np.random.default_rng(0).normal(size=(50, 4))
    for shown in (True, False):
        ood.create("heat", hidden=8, epochs=1).fit(vectors, show_progress=shown)
        written = capsys.readouterr()
        assert (written.out, "Fitting HEAT" in written.err) == ("", shown)
    equal, one_class = np.ones((50, 4)), np.zeros(50)
    refused = [
        (lambda: ood.create("heat", hidden=8, lr=1e30).fit(vectors), r"'gmm' .*lr \(1e\+30\)"),
        (lambda: ood.create("heat", priors=["soft_knn"], start="prior", hidden=8).fit(vectors), "'prior' .*'soft_knn'"),
        (lambda: ood.create("heat", priors=["energy"], hidden=8).fit(equal, one_class), "'energy' .*equal"),
        (lambda: ood.create("composition", scorers=["energy"]).fit(equal, one_class), "'energy' .*equal"),
    ]
    for call, message in refused:
        with pytest.raises(InputError, match=message):
            call()
    flat = vectors[:, :1] + 1  # one dimension has no sphere to sample on
    heat = ood.create("heat", priors=["energy"], hidden=8, epochs=1).fit(flat, one_class)
    assert np.isfinite(heat.score(flat)).all()


def test_loss_numbers_and_size_of_the_network():
    real, generated = torch.tensor([0.2, -0.1, 0.3]).double(), torch.tensor([0.5, 0.1, -0.2, 0.4]).double()
    assert residual_loss(real, generated, 10.0).item() == pytest.approx(1.55)
    assert residual_loss(real, generated, 1e-12).item() == pytest.approx(-0.0666666667)
    assert sum(weight.numel() for weight in energy_network(512, 1024, True, 0).parameters()) == 1_575_937
    network = energy_network(4, 8, False, 0)
    assert (network(torch.randn(3, 4)) == 0).all()
    assert sum(isinstance(layer, torch.nn.Linear) for layer in network) == 6


def two_bumps(n, seed):
    rng = np.random.default_rng(seed)
    return (rng.choice([-2.0, 2.0], n) + 0.5 * rng.normal(size=n))[:, None]


TOY = {"hidden": 64, "lr": 1e-3, "epochs": 15, "batch_size": 256, "n_chains": 128, "n_steps": 2}


def test_residual_corrects_a_prior_that_ranks_outliers_first():
    """Data in two bumps, one Gaussian as prior, outliers between the bumps: where the prior's density is highest."""
    outliers = 0.3 * np.random.default_rng(1).normal(size=(1000, 1))
    prior = {"name": "gmm", "normalise": False}
    heat = ood.create("heat", priors=[prior], temperature=10.0, **TOY).fit(two_bumps(2000, 0))
    held_out = two_bumps(1000, 2)
    gmm = ood.create("gmm", normalise=False).fit(two_bumps(2000, 0))
    truth = np.repeat([0, 1], 1000)
    before = roc_auc_score(truth, np.concatenate([gmm.score(held_out), gmm.score(outliers)]))
    after = roc_auc_score(truth, np.concatenate([heat.score(held_out), heat.score(outliers)]))
    assert before < 0.01
    assert after > 0.7
    residual = heat.members[0].residual(torch.tensor([[0.0], [-2.0], [2.0]], dtype=torch.float64))
    assert residual[0] > residual[1:].max()
    assert float(heat.members[0].residual(torch.from_numpy(held_out)).abs().max()) <= 1.1 / 20


def test_residual_gives_held_out_data_more_density_than_its_prior():
    """On the picture of the docs: a cloud with a bent arm, one Gaussian as prior, density normalised by samples."""
    toy = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "ood_toy.py"))
    heat = ood.create("heat", epochs=8, **toy["SETTINGS"]).fit(toy["cloud_with_arm"](2000, 0))
    assert toy["log_density_ratio"](heat.members[0], toy["cloud_with_arm"](2000, 1), 20_000) > 0.4
    untrained = ood.create("heat", epochs=0, **toy["SETTINGS"]).fit(toy["cloud_with_arm"](2000, 0))
    assert toy["log_density_ratio"](untrained.members[0], toy["cloud_with_arm"](500, 1), 1000) == pytest.approx(0, abs=1e-9)


def test_an_untrained_residual_ranks_as_its_prior_and_a_heavy_weight_keeps_it_so():
    data, queries = two_bumps(600, 0), np.linspace(-4, 4, 101)[:, None]
    prior = {"name": "gmm", "normalise": False}
    gmm = ood.create("gmm", normalise=False).fit(data).score(queries)
    untrained = ood.create("heat", priors=[prior], epochs=0, hidden=8).fit(data).score(queries)
    slope, offset = np.polyfit(gmm, untrained, 1)
    assert slope > 0
    np.testing.assert_allclose(untrained, slope * gmm + offset, atol=1e-9)
    heavy = ood.create("heat", priors=[prior], weight=1e4, temperature=10.0, **TOY | {"epochs": 4}).fit(data).score(queries)
    assert np.corrcoef(heavy, gmm)[0, 1] > 0.999
    truth = np.abs(queries[:, 0]) > 3
    assert roc_auc_score(truth, heavy) == pytest.approx(roc_auc_score(truth, gmm), abs=0.001)


def test_temperature_brings_the_prior_to_the_bound_of_the_residual():
    data = two_bumps(600, 0)
    for spread in (1.0, 2.0):
        heat = ood.create("heat", priors=[{"name": "gmm", "normalise": False}], spread=spread, epochs=0, hidden=8).fit(data)
        member = heat.members[0]
        scaled = member.prior.score(data) / float(member.temperature)
        assert scaled.std() == pytest.approx(spread / 20, rel=1e-6)


@pytest.mark.parametrize(
    ("start", "prior"),
    [
        ("auto", "gmm"),
        ("auto", "soft_knn"),
        ("gmm", "energy"),
        ("normal", "soft_knn"),
        ("data", "gmm"),
        ("buffer", "energy"),
    ],
)
def test_every_start_and_prior_trains_and_is_deterministic(start, prior):
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 3
    vectors = rng.normal(size=(3, 5))[labels] + 0.3 * rng.normal(size=(200, 5))
    options = {"priors": [prior], "start": start, "hidden": 8, "epochs": 2, "n_steps": 2, "n_chains": 16, "batch_size": 64}
    one, other = (ood.create("heat", **options).fit(vectors, labels).score(vectors) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert (one.mean(), one.std()) == (pytest.approx(0, abs=1e-6), pytest.approx(1, rel=1e-6))


def test_standardised_composition_by_definition():
    rng = np.random.default_rng(0)
    vectors, labels, queries = rng.normal(size=(200, 4)), np.arange(200) % 3, rng.normal(size=(30, 4))
    parts = [ood.create("gmm").fit(vectors, labels), ood.create("energy").fit(vectors, labels)]
    columns = [(part.score(queries) - part.score(vectors).mean()) / part.score(vectors).std() for part in parts]
    for beta, expected in ((0.0, sum(columns) / 2), (math.inf, np.maximum(*columns))):
        both = ood.create("composition", scorers=["gmm", "energy"], beta=beta).fit(vectors, labels)
        np.testing.assert_allclose(both.score(queries), expected, rtol=1e-9)


def test_nothing_random_outside_is_touched():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    ood.create("heat", hidden=8, epochs=1, n_chains=8).fit(np.random.default_rng(0).normal(size=(50, 4)))
    assert_close(torch.rand(2), expected)
