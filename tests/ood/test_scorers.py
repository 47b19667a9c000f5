"""Scorers against their formulas written slowly in float64, scikit-learn and the specification's numbers."""

import math

import numpy as np
import pytest
import torch
from scipy.special import ive
from sklearn.covariance import LedoitWolf
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import NearestNeighbors
from torch.testing import assert_close

import sightline.torchvision_operators  # noqa: F401  (before pytorch_ood, which imports torchvision)
from sightline import ood
from sightline.ood.classifier import classifier_of_proxies
from sightline.ood.density import mixture_on_sphere

from pytorch_ood import detector as other  # isort: skip

N, D, C = 120, 6, 4


@pytest.fixture(scope="module")
def data():
    """Vectors about class means, classes of unequal size, a classifier, and vectors to score."""
    rng = np.random.default_rng(0)
    labels = np.sort(rng.choice(C, N, p=[0.4, 0.3, 0.2, 0.1]))
    vectors = rng.normal(size=(C, D))[labels] * 2 + rng.normal(size=(N, D)) @ rng.normal(size=(D, D))
    classifier = ood.Classifier(torch.from_numpy(rng.normal(size=(C, D))), torch.from_numpy(rng.normal(size=C)))
    return vectors, labels, classifier, rng.normal(size=(25, D)) * 3


def unit(vectors):
    return vectors / np.sqrt((vectors**2).sum(1, keepdims=True))


def log_sum_exp(values):
    return math.log(sum(math.exp(value - max(values)) for value in values)) + max(values)


def by_rows(function, rows):
    return np.array([function(row) for row in rows])


def gaussians_by_definition(vectors, labels, shrinkage=1e-6):
    means = [vectors[labels == label].mean(0) for label in range(C)]
    covariance = sum(np.outer(v - means[y], v - means[y]) for v, y in zip(vectors, labels, strict=True)) / len(vectors)
    covariance = covariance + shrinkage * np.trace(covariance) / D * np.eye(D)
    return means, np.linalg.inv(covariance), covariance


def distances_by_definition(z, means, inverse):
    return [float((z - mean) @ inverse @ (z - mean)) for mean in means]


def constant(gmm):
    """What to add to an energy for the negative log-likelihood."""
    return len(gmm.centre) / 2 * math.log(2 * math.pi) - float(gmm.whitening.diagonal().log().sum())


def test_energy_with_a_classifier(data):
    vectors, labels, classifier, queries = data
    logits = queries @ classifier.weight.numpy().T + classifier.bias.numpy()
    scores = ood.create("energy", temperature=1.5).fit(vectors, labels, classifier).score(queries)
    np.testing.assert_allclose(scores, by_rows(lambda f: -1.5 * log_sum_exp(f / 1.5), logits), rtol=1e-12)
    of_logits = ood.create("energy", inputs="logits", temperature=1.5).fit(logits)
    np.testing.assert_allclose(of_logits.score(logits), scores, rtol=1e-12)


def test_proxies_are_logits_of_unit_vectors():
    proxies, queries = torch.eye(2, dtype=torch.float64), np.array([[1, 0], [0.7071, 0.7071], [-3, 0]])

    def energies(scale):
        return ood.create("energy").fit(queries, classifier=classifier_of_proxies(3 * proxies, scale)).score(queries)

    np.testing.assert_allclose(energies(16.0), [-16.00000011, -12.00685568, -0.00000011], atol=1e-8, rtol=0)
    np.testing.assert_allclose(energies(1.0), [-1.31326169, -1.40025396, -0.31326169], atol=1e-8, rtol=0)
    np.testing.assert_allclose(energies(1e4) / 1e4, -unit(queries).max(1), atol=1e-3)


def test_prototypes_and_centroids_stand_in_for_a_classifier(data):
    vectors, labels, _, queries = data
    means = unit(np.stack([unit(vectors)[labels == label].mean(0) for label in range(C)]))
    expected = by_rows(lambda z: -log_sum_exp([8 * float(z @ mean) for mean in means]), unit(queries))
    np.testing.assert_allclose(ood.create("energy", scale=8.0).fit(vectors, labels).score(queries), expected, rtol=1e-10)
    one_each = ood.create("energy", stand_in="centroids", n_clusters=10**6, scale=8.0).fit(vectors[:20])
    expected = by_rows(lambda z: -log_sum_exp([8 * float(z @ v) for v in unit(vectors[:20])]), unit(queries))
    np.testing.assert_allclose(one_each.score(queries), expected, rtol=1e-10)


def test_gaussians_of_the_specification():
    vectors = np.array([(0, 0), (2, 0), (0, 2), (2, 2), (5, 5), (7, 5), (5, 7), (7, 7), (6, 6), (6, 6)], float)
    labels = np.array([0] * 4 + [1] * 6)
    queries = np.array([(1, 1), (3.5, 3.5), (10, 1)])
    gmm = ood.create("gmm", weights="uniform", normalise=False, shrinkage=0.0).fit(vectors, labels)
    assert_close(
        gmm.distances(torch.from_numpy(queries)),
        torch.tensor([[0, 62.5], [15.625, 15.625], [101.25, 51.25]], dtype=torch.float64),
    )
    np.testing.assert_allclose(gmm.score(queries), [0, 7.1193528194, 25.625], atol=1e-9)
    assert constant(gmm) == pytest.approx(1.6147335151)
    counted = ood.create("gmm", normalise=False, shrinkage=0.0).fit(vectors, labels)
    np.testing.assert_allclose(counted.score(queries) + constant(counted), [2.53102425, 9.42723352, 27.75055914], atol=1e-7)
    z = torch.tensor([[3.8, 3.3]], dtype=torch.float64, requires_grad=True)
    energy = gmm.energy(z)
    energy.sum().backward()
    assert energy.item() == pytest.approx(7.1525493217)
    assert_close(z.grad, torch.tensor([[-0.5709679, -1.1959679]], dtype=torch.float64), atol=1e-7, rtol=0)


@pytest.mark.parametrize(("weights", "normalise"), [("counts", True), ("uniform", False)])
def test_gmm_by_definition(data, weights, normalise):
    vectors, labels, _, queries = data
    scorer = ood.create("gmm", weights=weights, normalise=normalise).fit(vectors, labels)
    vectors, unit_queries = (unit(vectors), unit(queries)) if normalise else (vectors, queries)
    means, inverse, _ = gaussians_by_definition(vectors, labels)
    log_pi = np.array([math.log((labels == c).mean()) if weights == "counts" else 0 for c in range(C)])
    expected = [-log_sum_exp(log_pi - np.array(distances_by_definition(z, means, inverse)) / 2) for z in unit_queries]
    np.testing.assert_allclose(scorer.score(queries), expected, rtol=1e-8)


def test_gmm_energy_is_scikit_learns_log_likelihood_less_the_stated_constant(data):
    vectors, labels, _, queries = data
    scorer = ood.create("gmm", normalise=False, shrinkage=0.0).fit(vectors, labels)
    means, _, covariance = gaussians_by_definition(vectors, labels, shrinkage=0)
    theirs = GaussianMixture(C, covariance_type="tied")
    theirs.weights_, theirs.means_ = np.bincount(labels) / N, np.stack(means)
    theirs.covariances_, theirs.precisions_cholesky_ = covariance, np.linalg.inv(np.linalg.cholesky(covariance)).T
    np.testing.assert_allclose(scorer.score(queries) + constant(scorer), -theirs.score_samples(queries), rtol=1e-9)


def test_gmm_draws_from_its_own_density_and_classes_as_its_energy_weighs_them(data):
    vectors, labels, _, _ = data
    scorer = ood.create("gmm", normalise=False).fit(vectors, labels)
    drawn = scorer.sample(40_000, torch.Generator().manual_seed(0)).numpy()
    np.testing.assert_allclose(drawn.mean(0), vectors.mean(0), atol=0.1)
    np.testing.assert_allclose(np.cov(drawn.T), np.cov(vectors.T, ddof=0), atol=0.04 * np.trace(np.cov(vectors.T)))
    labels = np.repeat([0, 1], [90, 10])
    vectors = np.random.default_rng(0).normal(size=(100, 2)) + 100 * labels[:, None]
    for weights, share in (("counts", 0.9), ("uniform", 0.5)):
        scorer = ood.create("gmm", weights=weights, normalise=False).fit(vectors, labels)
        drawn = scorer.sample(10_000, torch.Generator().manual_seed(0)).numpy()
        assert (drawn[:, 0] < 50).mean() == pytest.approx(share, abs=0.02)


def test_single_items_share_the_mean_of_all():
    rng = np.random.default_rng(0)
    vectors, labels = rng.normal(size=(30, 2)), np.array([0] * 14 + [1] * 14 + [2, 3])
    scorer = ood.create("gmm", normalise=False, shrinkage=0.0).fit(vectors, labels)
    means = np.stack([vectors[:14].mean(0), vectors[14:28].mean(0), vectors.mean(0)])
    about = vectors - np.repeat(means, (14, 14, 2), axis=0)
    inverse, log_pi = np.linalg.inv(about.T @ about / 30), np.log(np.array([14, 14, 2]) / 30)
    expected = [-log_sum_exp(log_pi - np.array(distances_by_definition(z, means, inverse)) / 2) for z in vectors]
    np.testing.assert_allclose(scorer.score(vectors), expected, rtol=1e-9)


def test_many_classes_become_clusters():
    vectors = np.random.default_rng(0).normal(size=(2200, 3))
    with_many = ood.create("gmm").fit(vectors, np.arange(2200) // 2)
    assert 30 <= len(with_many.means) <= 44
    assert len(ood.create("gmm").fit(vectors, np.arange(2200) // 22).means) == 100
    assert len(ood.create("gmm").fit(vectors).means) == 1


def test_std_pooling_and_gmm_of_it():
    maps = torch.tensor([[[[1.0, 2.0], [3.0, 4.0]]]], dtype=torch.float64)
    assert ood.std_pooled(maps).item() == pytest.approx(1.2909944487)
    assert ood.std_pooled(maps.flatten(2).transpose(1, 2)).item() == pytest.approx(1.2909944487)
    assert ood.std_pooled(torch.ones(2, 3, 1, 1)).tolist() == [[0.0] * 3] * 2
    maps = torch.randn(60, 5, 3, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    labels = np.arange(60) % 2
    pooled = maps.flatten(2).numpy().std(2, ddof=1)
    np.testing.assert_allclose(
        ood.create("gmm_std").fit(maps, labels).score(maps), ood.create("gmm").fit(pooled, labels).score(pooled), rtol=1e-9
    )


def test_clusters_that_are_the_classes_give_the_scores_of_classes():
    rng = np.random.default_rng(0)
    labels = np.arange(90) % 3
    vectors, queries = np.eye(3)[labels] + 0.05 * rng.normal(size=(90, 3)), rng.normal(size=(20, 3))
    for clustered, classed in (
        (ood.create("gmm", components=3), ood.create("gmm")),
        (ood.create("energy", stand_in="centroids", n_clusters=3), ood.create("energy")),
    ):
        expected = classed.fit(vectors, labels).score(queries)
        np.testing.assert_allclose(clustered.fit(vectors).score(queries), expected, rtol=1e-9)


def test_automatic_shrinkage_is_scikit_learns(data):
    vectors, _, _, queries = data
    theirs = LedoitWolf().fit(vectors[:10])
    scorer = ood.create("gmm", normalise=False, shrinkage="auto")
    scorer.fit(vectors[:10])
    assert 0.01 < theirs.shrinkage_ < 1
    np.testing.assert_allclose(2 * scorer.score(queries), theirs.mahalanobis(queries), rtol=1e-8)


def test_knn_by_hand_scikit_learn_and_pytorch_ood(data):
    bank, query = np.array([(1, 0), (0.8, 0.6), (0, 1), (-1, 0)]), np.array([[0.6, 0.8]])
    found = [ood.create("knn", k=k).fit(bank).score(query)[0] for k in (1, 2, 3, 4)]
    assert found == pytest.approx([0.08, 0.4, 0.8, 3.2])
    vectors, labels, _, queries = data
    ours = ood.create("knn", k=7).fit(vectors, labels).score(queries)
    distances, _ = NearestNeighbors(n_neighbors=7).fit(unit(vectors)).kneighbors(unit(queries))
    np.testing.assert_allclose(ours, distances[:, -1] ** 2, rtol=1e-9)
    theirs = other.KNN(None, k=7).fit_features(torch.from_numpy(vectors), torch.from_numpy(labels))
    np.testing.assert_allclose(ours, theirs.predict_features(torch.from_numpy(queries)).numpy() ** 2, rtol=1e-6)


def test_knn_of_a_part_lowers_k_in_proportion(data):
    vectors, _, _, queries = data
    part = ood.create("knn", k=8, bank_size=30, seed=3).fit(vectors)
    assert (len(part.bank), int(part.neighbour)) == (30, 2)
    again = ood.create("knn", k=2).fit(part.bank.numpy())
    np.testing.assert_allclose(part.score(queries), again.score(queries))
    assert int(ood.create("knn", k=1, bank_size=5).fit(vectors).neighbour) == 1


def test_soft_knn_by_definition(data):
    vectors, _, _, queries = data
    ours = ood.create("soft_knn", k=5, scale=3.0).fit(vectors).score(queries)
    expected = by_rows(lambda z: -log_sum_exp(sorted(3 * (unit(vectors) @ z))[-5:]) / 3, unit(queries))
    np.testing.assert_allclose(ours, expected, rtol=1e-9)


def test_mixture_on_the_sphere_has_the_density_it_should():
    """In 3 dimensions the cosine to the middle has density proportional to exp(k cos); in others Bessel functions say."""
    k, middle = 4.0, torch.tensor([[0.0, 0.0, 1.0]], dtype=torch.float64)
    drawn = mixture_on_sphere(middle, k, 50_000, torch.Generator().manual_seed(0))
    assert_close(drawn.norm(dim=1), torch.ones(50_000, dtype=torch.float64))
    cosines = drawn[:, 2].numpy()
    for edge in (-0.5, 0.0, 0.5, 0.9):
        share = (math.exp(k * edge) - math.exp(-k)) / (math.exp(k) - math.exp(-k))
        assert (cosines <= edge).mean() == pytest.approx(share, abs=0.006)
    assert abs(float(drawn[:, 0].mean())) < 0.01
    for dim, k in ((2, 0.5), (5, 20.0), (64, 20.0)):
        middle = torch.eye(dim, dtype=torch.float64)[:1]
        cosines = mixture_on_sphere(middle, k, 40_000, torch.Generator().manual_seed(0))[:, 0].numpy()
        assert cosines.mean() == pytest.approx(ive(dim / 2, k) / ive(dim / 2 - 1, k), abs=5 * cosines.std() / 200)


def test_energy_draws_about_every_prototype_unless_it_has_a_bias():
    scorer = ood.create("energy", scale=30.0).fit(np.eye(4), np.arange(4))
    nearest = scorer.sample(4000, torch.Generator().manual_seed(1)).argmax(1).bincount()
    assert (nearest > 850).all()
    with_bias = ood.Classifier(torch.eye(2), torch.ones(2), unit=True)
    assert ood.create("energy").fit(np.eye(2), classifier=with_bias).sample(1, torch.Generator()) is None
