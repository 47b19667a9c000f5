"""How sure a mean over queries is, and whether two of them differ: bootstrap intervals and paired tests.

All take values with one row a query and one column a metric; a query is left out of a metric that is NaN for it. With
``groups``, all queries of a group are drawn, or flipped, together: queries of one class rank much the same items, so their
values rise and fall together, and taken one by one they would look surer than they are.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

from sightline.errors import InputError

N_RESAMPLES = 2000  # moves an end of a 95 % interval by a fiftieth of its width
N_FLIPS = 9999  # the smallest p is 1 / 10,000
BLOCK_ELEMENTS = 1 << 22  # weights held at once: 32 MB

Floats = NDArray[np.float64]


def bootstrap_means(
    values: ArrayLike, groups: ArrayLike | None = None, n_resamples: int = N_RESAMPLES, seed: int = 0
) -> Floats:
    """The means of the metrics in resamples of the queries, or of whole groups of them.

    Queries that no metric is defined for are left out first. The cost grows with ``n_resamples`` times queries (groups).

    Args:
        values: (Q, M) one row a query, NaN where undefined.
        groups: (Q,) the class of each query, of any type that sorts.
        n_resamples: how many, at least 1.
        seed: of the draws; the same for every metric of one call.

    Returns:
        (n_resamples, M) float64; NaN for a metric that no query of the resample defines.

    Example:
        >>> means = bootstrap_means([[0.0], [1.0], [np.nan]], n_resamples=1000)
        >>> np.unique(means).tolist()
        [0.0, 0.5, 1.0]
    """
    if n_resamples < 1:
        raise InputError(f"n_resamples is {n_resamples}; at least 1 is needed")
    sums, counts = _units(values, groups)
    if not len(sums):
        return np.full((n_resamples, sums.shape[1]), np.nan)
    rng, n_units = np.random.default_rng(seed), len(sums)
    means = []
    for n_rows in _blocks(n_resamples, n_units):
        drawn = rng.integers(n_units, size=(n_rows, n_units)) + n_units * np.arange(n_rows)[:, None]
        weights = np.bincount(drawn.ravel(), minlength=n_rows * n_units).reshape(n_rows, n_units).astype(np.float64)
        with np.errstate(invalid="ignore"):
            means.append((weights @ sums) / (weights @ counts))
    return np.concatenate(means)


def bootstrap_interval(
    values: ArrayLike,
    groups: ArrayLike | None = None,
    level: float = 0.95,
    n_resamples: int = N_RESAMPLES,
    seed: int = 0,
) -> Floats:
    """Between which two numbers each metric's mean lies: the middle ``level`` of :func:`bootstrap_means` (percentiles).

    From few queries, or fewer than about 20 groups, it comes out too narrow; where all values are equal it is one point.

    Returns:
        (2, M) float64: lower ends and upper ends.

    Example:
        >>> bootstrap_interval(np.arange(101.0)[:, None]).round().T.tolist()
        [[44.0, 56.0]]
    """
    if not 0 < level < 1:
        raise InputError(f"level is {level}; between 0 and 1 is needed")
    means = bootstrap_means(values, groups, n_resamples, seed)
    ends = np.full((2, means.shape[1]), np.nan)
    defined = ~np.isnan(means).all(0)
    ends[:, defined] = np.nanquantile(means[:, defined], [(1 - level) / 2, (1 + level) / 2], axis=0)
    return ends


def permutation_p(differences: ArrayLike, groups: ArrayLike | None = None, n_flips: int = N_FLIPS, seed: int = 0) -> Floats:
    """How often a mean difference this far from 0 comes about if only chance decides each sign (two-sided).

    Exact where the signs have at most ``n_flips`` arrangements; otherwise drawn, the one observed among them.

    Args:
        differences: (Q, M) between two results for the same query, NaN where either is undefined.
        groups: (Q,) the class of each query; the sign of a class flips as one.
        n_flips: arrangements to draw at most.
        seed: of the draws.

    Returns:
        (M,) p-values in (0, 1]; 1 where all differences are 0 or undefined.

    Example:
        >>> permutation_p([[0.1], [0.2], [0.3], [0.1]])  # 2 of the 16 arrangements have all signs equal
        array([0.125])
    """
    sums, _ = _units(differences, groups)
    sums = sums[(sums != 0).any(1)]  # the others add 0 with either sign
    # Arrangements that come to the same sum are added in another order: they may differ in the last bits.
    reached = np.abs(sums.sum(0)) - 1e-12 * np.abs(sums).sum(0)
    n_units = len(sums)
    if exact := 2**n_units <= n_flips:
        n_flips = 2**n_units
    rng, first, n_as_far = np.random.default_rng(seed), 0, np.zeros(sums.shape[1])
    for n_rows in _blocks(n_flips, n_units):
        if exact:
            flips = (np.arange(first, first + n_rows)[:, None] >> np.arange(n_units) & 1).astype(np.uint8)
        else:
            flips = np.unpackbits(rng.integers(256, size=(n_rows, -(-n_units // 8)), dtype=np.uint8), 1, n_units)
        n_as_far += (np.abs((1.0 - 2.0 * flips) @ sums) >= reached).sum(0)
        first += n_rows
    return n_as_far / n_flips if exact else (n_as_far + 1) / (n_flips + 1)


def t_test_p(differences: ArrayLike, groups: ArrayLike | None = None) -> Floats:
    """The paired t test of a mean difference of 0 (two-sided); with groups, of the sums of each group.

    Args:
        differences: (Q, M) between two results for the same query, NaN where either is undefined.
        groups: (Q,) the class of each query.

    Returns:
        (M,) p-values in [0, 1]; 1 where all differences are 0, NaN where fewer than two queries (groups) have one.

    Example:
        >>> t_test_p([[0.1], [0.2], [0.3], [0.1]]).round(4)
        array([0.0354])
    """
    sums, counts = _units(differences, groups)
    defined = counts > 0
    p = np.full(sums.shape[1], np.nan)
    for column in np.flatnonzero(defined.sum(0) > 1):
        found = sums[defined[:, column], column]
        error = found.std(ddof=1) / len(found) ** 0.5
        t = abs(found.mean()) / error if error else np.inf if found.any() else 0.0
        p[column] = 2 * stats.t.sf(t, len(found) - 1)
    return p


def holm(p: ArrayLike) -> Floats:
    """The p-values of several tests, raised so that comparing each with 0.05 errs in any of them 1 time in 20 at most.

    Args:
        p: (M,) p-values; NaN stays NaN and counts as no test.

    Returns:
        (M,) float64, none below ``p``.

    Example:
        >>> holm([0.01, 0.04, 0.03])
        array([0.03, 0.06, 0.06])
    """
    p = np.asarray(p, np.float64)
    order = np.argsort(p)  # NaN last
    n_left = np.maximum(np.count_nonzero(~np.isnan(p)) - np.arange(len(p)), 1)
    raised = np.empty_like(p)
    raised[order] = np.minimum(np.maximum.accumulate(p[order] * n_left), 1)
    return raised


def _units(values: ArrayLike, groups: ArrayLike | None) -> tuple[Floats, Floats]:
    """(U, M) the sum of each metric over the queries of a unit, and how many define it; a unit is a query or a group."""
    table = np.asarray(values, np.float64)
    if table.ndim != 2:
        raise InputError(f"values: one row a query and one column a metric are needed, found shape {table.shape}")
    defined = ~np.isnan(table)
    sums, counts = np.where(defined, table, 0.0), defined.astype(np.float64)
    if groups is not None:
        names, group = np.unique(np.asarray(groups), return_inverse=True)
        if group.shape != table.shape[:1]:
            raise InputError(f"groups: one for each of the {len(table)} queries is needed, found shape {group.shape}")
        members = np.zeros((2, len(names), table.shape[1]))
        np.add.at(members[0], group, sums)
        np.add.at(members[1], group, counts)
        sums, counts = members
    used = counts.any(1)
    return sums[used], counts[used]


def _blocks(n_rows: int, n_columns: int) -> Iterator[int]:
    """How many rows to hold at once, until there are ``n_rows``."""
    most = max(1, BLOCK_ELEMENTS // max(1, n_columns))
    for start in range(0, n_rows, most):
        yield min(most, n_rows - start)
