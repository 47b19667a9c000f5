"""A whitening as a part of the encoder, of its folder and of its fingerprint."""

import json

import numpy as np
import pytest
import torch
from PIL import Image

from sightline import Encoder, InputError
from sightline.models.heads import Whitening


@pytest.fixture(scope="module")
def pictures():
    rng = np.random.default_rng(0)
    return [Image.fromarray(rng.integers(0, 256, (32, 32, 3), np.uint8)) for _ in range(40)]


@pytest.fixture(scope="module")
def plain():
    return Encoder.create("tiny", 8, image_size=32).eval()


@pytest.fixture(scope="module")
def whitening(plain, pictures):
    return Whitening.fit(torch.from_numpy(plain.encode(pictures)), dim=5)


@pytest.mark.parametrize("embedding_dim", [8, None])
def test_a_loaded_encoder_gives_what_whitening_its_vectors_gives(pictures, tmp_path, embedding_dim):
    plain = Encoder.create("tiny", embedding_dim, image_size=32)
    vectors = torch.from_numpy(plain.encode(pictures))
    whitening = Whitening.fit(vectors, dim=5)
    saved = plain.whitened(whitening).save_pretrained(tmp_path / "whitened")
    loaded = Encoder.from_pretrained(saved)
    assert loaded.dim == 5
    assert sorted(file.name for file in saved.iterdir()) == ["README.md", "encoder.json", "model.safetensors"]
    np.testing.assert_allclose(loaded.encode(pictures), whitening(vectors).numpy(), rtol=0, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(loaded.encode(pictures), axis=1), 1, atol=1e-5)


def test_the_encoder_is_another_by_its_fingerprint_and_the_old_one_is_unchanged(plain, whitening, pictures):
    before, vectors = plain.fingerprint(), plain.encode(pictures[:3])
    whitened = plain.whitened(whitening)
    assert plain.fingerprint() == before
    assert plain.encode(pictures[:3]).tolist() == vectors.tolist()
    assert plain.dim == 8
    assert whitened.fingerprint() != before
    whitening_2 = Whitening.fit(torch.from_numpy(plain.encode(pictures)), dim=5, power=0.5)
    assert plain.whitened(whitening_2).fingerprint() not in (before, whitened.fingerprint())
    assert plain.whitened(whitening).fingerprint() == whitened.fingerprint()


def test_an_encoder_written_before_there_was_whitening_is_read(plain, tmp_path):
    folder = plain.save_pretrained(tmp_path / "old")
    described = json.loads((folder / "encoder.json").read_text())
    del described["whitening_dim"]
    (folder / "encoder.json").write_text(json.dumps(described))
    assert Encoder.from_pretrained(folder).fingerprint() == plain.fingerprint()


def test_a_changed_whitening_is_refused(plain, whitening, tmp_path):
    folder = plain.whitened(whitening).save_pretrained(tmp_path / "whitened")
    described = json.loads((folder / "encoder.json").read_text())
    (folder / "encoder.json").write_text(json.dumps({**described, "whitening_dim": None}))
    with pytest.raises(InputError, match="not the weights of this encoder"):
        Encoder.from_pretrained(folder)


def test_it_learns_below_its_whitening_which_stays(plain, whitening):
    encoder = plain.whitened(whitening).train()
    encoder(torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0)))[0, 0].backward()
    assert encoder.head.projection.weight.grad.abs().sum() > 0
    assert "head.whitening.weight" not in dict(encoder.named_parameters())


def test_what_does_not_fit_is_refused(plain, whitening):
    with pytest.raises(InputError, match="whitens its vectors already"):
        plain.whitened(whitening).whitened(whitening)
    with pytest.raises(InputError, match="fitted on 8 dimensions, the encoder has 6"):
        Encoder.create("tiny", 6, image_size=32).whitened(whitening)
