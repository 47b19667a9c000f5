import numpy as np
import pytest

from sightline.kernels.bucket_sort import _heap_sort


@pytest.mark.parametrize("n_scores", [1, 5, 1000])  # all tie, many do, few do
def test_what_is_too_crowded_for_buckets_is_sorted_by_score_and_of_equal_ones_by_level(n_scores):
    rng = np.random.default_rng(n_scores)
    for n in (1, 2, 3, 40, 1001):
        found = (rng.integers(0, n_scores, n) / 7 - 50).astype(np.float32)
        level = rng.integers(0, 4, n).astype(np.uint8)
        order = np.lexsort((level, -found))
        expected = found[order], level[order]
        _heap_sort(found, level)
        np.testing.assert_array_equal((found, level), expected)
