"""HEAT: sampling, the loss, the composition, and that the residual corrects its prior."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch.testing import assert_close

from refusals import assert_refused
from sightline import ood
from sightline.ood.heat import Networks, _Judge, contrastive_loss, density_gain, langevin_chains, residual_loss

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
    assert_refused("beta", composed, [1.0], math.nan)


@pytest.mark.parametrize(("step", "noise", "variance"), [(0.05, 0.1**0.5, 1 / (1 - 0.1 / 4)), (0.05, 0.2, 0.04 / 0.0975)])
def test_chains_reach_the_variance_they_should(step, noise, variance):
    start = torch.zeros(10_000, 1, dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    last = langevin_chains(lambda z: z.square().sum(1) / 2, start, [(step, noise)] * 400, generator)
    assert float(last.var()) == pytest.approx(variance, rel=0.05)


def test_loss_numbers_and_size_of_the_networks():
    real, generated = torch.tensor([[0.2, -0.1, 0.3]]).double(), torch.tensor([[0.5, 0.1, -0.2, 0.4]]).double()
    assert residual_loss(real, generated, 10.0).item() == pytest.approx(1.55)
    assert residual_loss(real, generated, 1e-12).item() == pytest.approx(-0.0666666667)
    assert residual_loss(torch.cat([real, real]), torch.cat([generated, generated]), 10.0).item() == pytest.approx(3.1)
    expected = sum(math.log(1 + math.exp(-x)) for x in (0.2, -0.1, 0.3)) / 3
    expected += sum(math.log(1 + math.exp(x)) for x in (0.5, 0.1, -0.2, 0.4)) / 4
    assert contrastive_loss(real, generated).item() == pytest.approx(expected)
    papers = Networks([512, *[1024] * 5, 1], 1, 10.0, 0)
    assert sum(weight.numel() for weight in papers.parameters()) == 4_724_737
    assert (papers(torch.randn(3, 512)) == 0).all()


def test_networks_compute_what_each_would_alone():
    networks, rows = Networks([4, 8, 8, 1], 3, 2.0, 0), torch.randn(3, 5, 4)
    for weight in networks.parameters():
        torch.nn.init.normal_(weight)
    for k in range(3):
        hidden = rows[k]
        for place in range(3):
            hidden = hidden @ networks.weights[place][k] + networks.biases[place][k]
            hidden = torch.where(hidden > 0, hidden, 0.2 * hidden) if place < 2 else hidden
        assert_close(networks(rows)[k], 2 * torch.tanh(hidden[:, 0] / 2))
        assert_close(
            networks(rows[0])[k], networks(rows, slice(0, 3))[k] if k == 0 else networks(rows[0], slice(k, k + 1))[0]
        )


def test_density_gain_is_the_divergence_of_known_densities_and_never_above_it_on_average():
    """Data N(1, 1), prior N(0, 1): the log ratio is z - 1/2, the gain their divergence, 1/2."""
    generator = torch.Generator().manual_seed(0)
    data, samples = (torch.randn(1000, 400, generator=generator) + shift for shift in (1, 0))
    assert float(density_gain(data - 0.5, samples - 0.5).mean()) == pytest.approx(0.5, abs=0.02)
    assert float(density_gain(data + 7, samples + 7).mean()) == pytest.approx(0.5, abs=0.02)  # a constant changes nothing
    few = density_gain(
        3 * data[:, :40], 3 * samples[:, :40]
    )  # wrong, and so few samples that the plain estimate is too high
    plain = (3 * data[:, :40]).mean(1) - (3 * samples[:, :40]).logsumexp(1) + math.log(40)
    exact = 3 - 4.5
    assert float(plain.mean()) > exact + 0.5
    assert float(few.mean()) < exact + 0.5


def test_a_strength_whose_gain_hangs_on_one_sample_is_not_taken():
    """The mean over networks would take the full strength, of which one network's gain is 0.6 and the others' 3."""
    samples = torch.zeros(4, 4000)
    samples[0, 0] = 8.3
    member = SimpleNamespace(networks=torch.nn.Identity(), strength=None, steps_taken=None, gain=None)
    judge = object.__new__(_Judge)
    judge.member, judge.data, judge.samples, judge.best = member, torch.full((4, 100), 3.0), samples, -math.inf
    judge.look(1)
    assert float(member.strength) == 0.75


PLAIN = {"name": "gmm", "normalise": False}
FAST = {"priors": [PLAIN], "hidden": 32, "train_steps": 200, "batch_size": 128}


def two_bumps(n, seed):
    rng = np.random.default_rng(seed)
    return (rng.choice([-2.0, 2.0], n) + 0.5 * rng.normal(size=n))[:, None]


@pytest.mark.parametrize("trainer", ["nce", "sgld", "nce+sgld"])
def test_residual_corrects_a_prior_that_ranks_outliers_first(trainer):
    """Data in two bumps, one Gaussian as prior, outliers between the bumps: where the prior's density is highest."""
    held_out, outliers = two_bumps(1000, 2), 0.3 * np.random.default_rng(1).normal(size=(1000, 1))
    heat = ood.create("heat", trainer=trainer, **FAST | {"chain_steps": 2, "train_steps": 300}).fit(two_bumps(2000, 0))
    member = heat.members[0]
    truth = np.repeat([0, 1], 1000)
    before, after = (
        roc_auc_score(truth, np.concatenate([scorer.score(held_out), scorer.score(outliers)]))
        for scorer in (member.prior, heat)
    )
    assert before < 0.01
    assert after > 0.7
    assert "residual kept" in heat.notes[0]
    assert float(member.gain) > 3 * float(member.gain_error)
    assert float(member.log_ratio(torch.from_numpy(held_out)).abs().max()) <= 10
    if trainer == "nce":  # the exact divergence of the two bumps from their Gaussian, by integration
        z = np.linspace(-8, 8, 20_001)
        bumps = sum(np.exp(-((z - m) ** 2) / 0.5) / np.sqrt(0.5 * np.pi) / 2 for m in (-2, 2))
        normal = np.exp(-(z**2) / 8.5) / np.sqrt(8.5 * np.pi)
        exact = np.trapezoid(np.where(bumps > 1e-300, bumps * np.log(bumps.clip(1e-300) / normal), 0), z)
        assert 0.7 * exact < float(member.gain) < exact + 3 * float(member.gain_error)


def test_residual_is_dropped_where_the_prior_is_right():
    rng = np.random.default_rng(0)
    labels = np.arange(2000) % 3
    vectors = 3 * rng.normal(size=(3, 6))[labels] + rng.normal(size=(2000, 6))
    heat = ood.create("heat", **FAST).fit(vectors, labels)
    assert "residual dropped" in heat.notes[0]
    member = heat.members[0]
    queries = rng.normal(size=(50, 6)) * 5
    alone = ood.create("gmm", normalise=False).fit(vectors, labels).score(queries)
    np.testing.assert_array_equal(member.score(queries), alone)
    forced = ood.create("heat", keep="always", **FAST).fit(vectors, labels)
    assert float(forced.members[0].gain) == float(member.gain)
    assert np.abs(forced.members[0].score(queries) - alone).max() > 0
    few = ood.create("heat", **FAST).fit(vectors[:99], labels[:99])
    assert "fewer than 100 items" in few.notes[0]
    np.testing.assert_array_equal(np.argsort(few.score(queries)), np.argsort(few.members[0].prior.score(queries)))


def test_a_bar_is_drawn_and_what_does_not_fit_is_refused(capsys):
    vectors = np.random.default_rng(0).normal(size=(120, 4))
    for shown in (True, False):
        ood.create("heat", hidden=8, train_steps=5).fit(vectors, show_progress=shown)
        written = capsys.readouterr()
        assert (written.out, "Fitting HEAT" in written.err) == ("", shown)
    equal, one_class = np.ones((50, 4)), np.zeros(50)
    refused = [
        (lambda: ood.create("heat", priors=["energy"]).fit(equal, one_class), "'energy' .*equal"),
        (lambda: ood.create("composition", scorers=["energy"]).fit(equal, one_class), "'energy' .*equal"),
    ]
    for call, message in refused:
        assert_refused(message, call)


@pytest.mark.parametrize("prior", ["gmm", "energy", "soft_knn", {"name": "gmm", "normalise": False, "components": 5}])
def test_every_prior_trains_is_deterministic_and_standardised(prior):
    rng = np.random.default_rng(0)
    labels = np.arange(200) % 3
    vectors = np.abs(rng.normal(size=(3, 5))[labels] + 0.3 * rng.normal(size=(200, 5)))
    options = {"priors": [prior], "hidden": 8, "train_steps": 10, "keep": "always"}
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
    ood.create("heat", hidden=8, train_steps=5).fit(np.random.default_rng(0).normal(size=(120, 4)))
    assert_close(torch.rand(2), expected)
