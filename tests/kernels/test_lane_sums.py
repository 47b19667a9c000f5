"""The numbers that the sums along a sorted row rest on; the rows themselves are tested in tests/ranking/test_profile.py."""

import numpy as np
from numpy.testing import assert_allclose

from sightline.kernels.lane_sums import SLOPE, VALUE, fill_decays


def test_polynomials_keep_their_relative_error_down_to_zero_and_a_tie_counts_one_half():
    z = np.concatenate([np.logspace(-30, 0, 1000), np.linspace(0.001, 1, 1000)])
    for coefficients, sigmoid_or_slope, error in ((VALUE, z / (1 + z), 1.7e-6), (SLOPE, z / (1 + z) ** 2, 1.5e-5)):
        polynomial = sum(factor * z ** (power + 1) for power, factor in enumerate(coefficients))
        assert_allclose(polynomial, sigmoid_or_slope, rtol=error, atol=0)
    assert_allclose(sum(VALUE), 0.5, rtol=1e-15, atol=0)


def test_decays_are_exponentials_and_never_denormal():
    gaps = np.concatenate([np.linspace(0, 3, 1001), [1e6, 1e30]]).astype(np.float32)
    decays = np.empty_like(gaps)
    fill_decays(gaps, len(gaps), np.float32(10.0), decays)
    smallest = np.finfo(np.float32).tiny
    expected = np.maximum(np.exp(-10.0 * gaps.astype(np.float64)), smallest)
    # The exponent itself is a float32: its rounding is relative to how large it is.
    assert_allclose(decays[:-2], expected[:-2], rtol=5e-6, atol=0)
    assert (decays >= smallest).all()
    assert (decays[-2:] < 1e-37).all()
