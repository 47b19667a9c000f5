"""Items whose vectors are drawn from a seed."""

import numpy as np

from sightline.gallery.gallery import EncoderIdentity

DIM = 8
IDENTITY = EncoderIdentity("f" * 32, DIM, "by hand")


def draw(n_rows, seed=0, dim=DIM):
    return np.random.default_rng(seed).standard_normal((n_rows, dim)).astype(np.float32)


def assert_same(found, expected, atol=1e-5):
    """Rankings, each ``(scores, ids)``, have the same ids, and scores as near as this."""
    assert np.asarray(found[1]).tolist() == np.asarray(expected[1]).tolist()
    np.testing.assert_allclose(found[0], expected[0], atol=atol)
