"""Detectors of pytorch-ood by name: each as the library computes it itself, and two by their formulas."""

import sys

import numpy as np
import pytest
import torch
from torch import nn

import sightline.torchvision_operators  # noqa: F401  (before pytorch_ood, which imports torchvision)
from refusals import assert_refused
from sightline import InputError, ood
from sightline.ood import library

from pytorch_ood import detector as other  # isort: skip

N, D, C = 300, 12, 4
OF_LIBRARY = sorted(name for name in ood.list_scorers() if ood.SCORERS.table[name].startswith("sightline.ood.library"))
OPTIONS = {"vim": {"d": 5}, "nnguide": {"k": 3}, "dice": {"p": 0.5}, "nci": {"alpha": 0.1}, "gen": {"gamma": 0.2}}


@pytest.fixture(scope="module")
def data():
    """Positive vectors about class means, a classifier that is right on most of them, and vectors to score."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(N) % C
    means = 2 * torch.rand(C, D, generator=generator)
    vectors = means[labels] + 0.5 * torch.rand(N, D, generator=generator)
    bias = torch.linspace(-0.5, 0.5, C) - means.square().sum(1) / 2
    return vectors, labels, ood.Classifier(means, bias), 3 * torch.rand(25, D, generator=generator)


def by_the_library(name, vectors, labels, classifier, queries):
    """What a user of the library alone writes."""
    head = nn.Linear(D, C)
    head.load_state_dict({"weight": classifier.weight, "bias": classifier.bias})
    flat, options = nn.Sequential(nn.Flatten(), head), OPTIONS.get(name, {})
    with torch.no_grad():
        logits = head(vectors), head(queries)
    maps, query_maps = vectors[:, :, None, None], queries[:, :, None, None]
    match name:
        case "ash" | "scale":
            return {"ash": other.ASH, "scale": other.SCALE}[name](None, flat).predict_feature_maps(query_maps)
        case "react":
            return other.ReAct(None, flat).fit_feature_maps(maps, labels).predict_feature_maps(query_maps)
        case "msp" | "maxlogit" | "gen":
            return {"msp": other.MaxSoftmax, "maxlogit": other.MaxLogit, "gen": other.GEN}[name](
                None, **options
            ).predict_logits(logits[1])
        case "kl_matching":
            return other.KLMatching(None).fit_logits(logits[0]).predict_logits(logits[1])
        case "mahalanobis" | "rmd":
            made = {"mahalanobis": other.Mahalanobis, "rmd": other.RMD}[name](None)
        case "vim" | "dice":
            made = {"vim": other.ViM, "dice": other.DICE}[name](None, w=head.weight, b=head.bias, **options)
        case "lts":
            return other.LTS(None, head).predict_features(queries)
        case _:
            made = {"fdbd": other.fDBD, "nci": other.NCI, "nnguide": other.NNGuide, "pnml": other.PNML, "she": other.SHE}[
                name
            ](None, head, **options)
    with torch.no_grad():
        return made.fit_features(vectors, labels).predict_features(queries)


def test_the_table_has_the_detectors_of_features():
    assert len(OF_LIBRARY) == 17


@pytest.mark.parametrize("name", OF_LIBRARY)
def test_scores_are_the_librarys(name, data):
    vectors, labels, classifier, queries = data
    ours = ood.create(name, **OPTIONS.get(name, {})).fit(vectors, labels, classifier).score(queries)
    theirs = by_the_library(name, *data).detach().numpy()
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert ours.std() > 1e-6


def test_vim_and_mahalanobis_by_definition(data):
    vectors, labels, classifier, queries = (x if isinstance(x, ood.Classifier) else x.double().numpy() for x in data)
    weight, bias = classifier.weight.double().numpy(), classifier.bias.double().numpy()
    origin = -np.linalg.pinv(weight) @ bias
    leading = np.linalg.svd(vectors - origin)[2][:5]  # of the second moment about the origin

    def length(z):  # what the leading directions leave of it
        return np.linalg.norm(z - origin - leading.T @ (leading @ (z - origin)))

    alpha = sum(max(weight @ z + bias) for z in vectors) / sum(map(length, vectors))
    expected = [alpha * length(z) - np.log(np.exp(weight @ z + bias).sum()) for z in queries]
    ours = ood.create("vim", d=5).fit(*data[:3]).score(queries)
    np.testing.assert_allclose(ours, expected, rtol=1e-3)
    means = np.stack([vectors[labels == label].mean(0) for label in range(C)])
    about = vectors - means[labels.astype(int)]
    inverse = np.linalg.inv(about.T @ about)  # the library's sum, not mean, of outer products; half the distance
    expected = [min((z - mean) @ inverse @ (z - mean) for mean in means) / 2 for z in queries]
    np.testing.assert_allclose(ood.create("mahalanobis").fit(*data[:2]).score(queries), expected, rtol=1e-3)


def test_without_a_classifier_prototypes_are_the_weights(data):
    vectors, labels, _, queries = data
    unit = nn.functional.normalize(vectors, dim=1)
    means = torch.stack([unit[labels == label].mean(0) for label in range(C)])
    logits = 8 * nn.functional.normalize(queries, dim=1) @ nn.functional.normalize(means, dim=1).T
    scores = ood.create("msp", scale=8.0).fit(vectors, labels).score(queries)
    np.testing.assert_allclose(scores, -logits.softmax(1).amax(1), rtol=1e-5)


def test_what_does_not_fit(data, monkeypatch, tmp_path):
    vectors, labels, classifier, _ = data
    hopeless = ood.Classifier(torch.zeros(C, D), torch.arange(C).float())  # predicts the last class alone
    with pytest.raises(InputError, match="'she': No correct predictions"):
        ood.create("she").fit(vectors, labels, hopeless)
    folder = ood.create("vim").fit(vectors, labels, classifier).save(tmp_path / "vim")
    monkeypatch.setattr(
        library.LibraryScorer, "tensors", lambda self: {"weight": self.weight, "bias": self.bias, "unit": self.unit}
    )
    old = (
        ood.create("vim").fit(vectors, labels, classifier).save(tmp_path / "old")
    )  # as versions before the library wrote it
    assert_refused(["state", "`sightline ood fit`"], ood.load, old)
    monkeypatch.setitem(sys.modules, "pytorch_ood.detector", None)
    assert_refused(["'vim'", "pytorch-ood", "'sightline[ood]'"], ood.load, folder)
