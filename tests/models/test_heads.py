import math

import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

from refusals import assert_refused
from sightline.models import heads
from sightline.models.heads import Head, Whitening


def drawn(*shape: int) -> torch.Tensor:
    return 5 + 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def normalised_by_definition(values: list[float]) -> list[float]:
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / len(values) + 1e-5)
    return [(value - mean) / deviation for value in values]


def unit_by_definition(values: list[float]) -> list[float]:
    length = math.sqrt(sum(value**2 for value in values))
    return [value / length for value in values]


def test_with_a_projection_it_stands_between_the_two():
    head, pooled = Head(6, 3), drawn(4, 6)
    weight, bias = head.projection.weight.tolist(), head.projection.bias.tolist()
    plain = [unit_by_definition(normalised_by_definition(row)) for row in pooled.tolist()]
    assert_close(Head(6)(pooled), torch.tensor(plain), rtol=1e-5, atol=1e-6)
    expected = []
    for row in map(normalised_by_definition, pooled.tolist()):
        products = [sum(a * b for a, b in zip(line, row, strict=True)) for line in weight]
        expected.append(unit_by_definition([product + shift for product, shift in zip(products, bias, strict=True)]))
    assert_close(head(pooled).detach(), torch.tensor(expected), rtol=1e-4, atol=1e-5)


def test_the_feature_norm_is_by_choice_and_too_few_directions_to_whiten_are_refused():
    pooled = drawn(4, 6)
    head = Head(6, 3, "none")
    weight, bias = head.projection.weight, head.projection.bias
    assert_close(head(pooled), torch.nn.functional.normalize(pooled @ weight.T + bias, dim=1))
    head.norm = Head(6, 3, "l2").norm
    assert_close(head(pooled), torch.nn.functional.normalize(pooled / pooled.norm(dim=1)[:, None] @ weight.T + bias, dim=1))
    assert_refused(r"'l3'.*'l2'", Head, 6, 3, "l3")
    assert_refused(["5 images", "4 directions"], Head(12, 5).whiten, drawn(5, 12))
    assert_refused(["embedding_dim"], Head(12).whiten, drawn(50, 12))


@pytest.mark.parametrize("norm", ["l2", "layer", "none"])
def test_a_whitened_projection_gives_uncorrelated_features_of_variance_one(norm):
    head, pooled = Head(12, 5, norm), drawn(200, 12) * torch.arange(1, 13)
    head.whiten(pooled)
    projected = head.projection(head.norm(pooled)).detach().double()
    assert_close(projected.mean(0), torch.zeros(5, dtype=torch.float64), rtol=0, atol=1e-3)
    assert_close(projected.T.cov(), torch.eye(5, dtype=torch.float64), rtol=0, atol=1e-3)
    assert head.projection.weight.requires_grad


FITTED = torch.tensor([[3.0, 1.0], [1.0, 2.0], [-1.0, 1.0], [1.0, 0.0]], dtype=torch.float64)


def raw(whitening, vectors):
    """The whitened vectors before they are brought to length 1."""
    return vectors.double() @ whitening.weight.double().T + whitening.bias.double()


def test_worked_whitening():
    point = torch.tensor([[2.0, 3.0]])
    for power, *expected in ((0.0, 1.0, 2.0), (0.25, 0.78254229, 2.21336384), (0.5, 0.61237244, 2.44948974)):
        whitening = Whitening.fit(FITTED, power=power)
        for given in (FITTED.tolist(), FITTED.numpy()):
            assert_close(Whitening.fit(given, power=power).state_dict(), whitening.state_dict())
        assert_close(raw(whitening, point).abs()[0].tolist(), expected, rtol=1e-6, atol=1e-6)
        length = math.hypot(*expected)
        assert_close(whitening(point)[0].tolist(), [x / length for x in expected], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("power", [0.0, 0.5])
def test_whitened_vectors_are_uncorrelated_with_variances_of_the_power(power):
    vectors = drawn(400, 7).double() @ drawn(7, 7).double()
    whitening = Whitening.fit(vectors, power=power)
    covariance = raw(whitening, vectors).T.cov()
    variances = torch.linalg.eigvalsh(vectors.T.cov()).flip(0) ** (1 - 2 * power)
    assert_close(covariance / variances[0], torch.diag(variances) / variances[0], rtol=0, atol=1e-5)
    assert_close(raw(whitening, vectors).mean(0), torch.zeros(7, dtype=torch.float64), rtol=0, atol=1e-4)
    if not power:  # a rotation
        gram = (whitening.weight @ whitening.weight.T).double()
        assert_close(gram, torch.eye(7, dtype=torch.float64), rtol=0, atol=1e-6)


def test_whitening_in_blocks_drops_what_does_not_vary_and_depends_on_the_vectors_alone(monkeypatch):
    vectors = torch.cat([drawn(50, 3), torch.ones(50, 2)], 1)
    whole = Whitening.fit(vectors)
    assert whole.weight.shape == (3, 5)
    monkeypatch.setattr(heads, "FITTED_ROWS", 7)
    assert_close(Whitening.fit(vectors.flip(0)).state_dict(), whole.state_dict(), rtol=1e-4, atol=1e-5)
    assert not list(whole.parameters())  # it is not trained


def test_a_whitening_is_written_and_read(tmp_path):
    whitening = Whitening.fit(FITTED, dim=1)
    read = Whitening.load(whitening.save(tmp_path / "new" / "whitening.safetensors"))
    assert read.state_dict().keys() == whitening.state_dict().keys()
    assert all(read.state_dict()[name].equal(tensor) for name, tensor in whitening.state_dict().items())
    (tmp_path / "text").write_text("no")
    save_file({"other": torch.ones(2)}, tmp_path / "other")
    for name, message in (("text", "not a whitening"), ("other", "not a whitening"), ("none", "no such file")):
        assert_refused(f"{name}: {message}", Whitening.load, tmp_path / name)


def test_what_cannot_be_whitened_is_refused():
    for vectors, options, message in (
        (FITTED[:1], {}, r"\(1, 2\)"),
        (FITTED * math.nan, {}, "finite"),
        (FITTED.long(), {}, "int64"),
        ("text", {}, "table of numbers"),
        (FITTED, {"dim": 3}, r"2 directions.*3"),
        (FITTED, {"power": -0.25}, r"power.*-0\.25"),
    ):
        assert_refused(message, Whitening.fit, vectors, **options)
    assert_refused(r"2.*3", Whitening.fit(FITTED), torch.ones(1, 3))
