from collections import Counter
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sightline.data.samplers import ClassBalancedSampler, small_classes
from sightline.errors import InputError


def of_sizes(*sizes: int) -> np.ndarray:
    """Labels of classes with these sizes, shuffled."""
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))


@st.composite
def samplers(draw):
    per_class = draw(st.integers(2, 4))
    sizes = draw(st.lists(st.integers(1, 14), min_size=1, max_size=8))
    n_usable = sum(size >= per_class for size in sizes)
    if not n_usable:
        sizes, n_usable = [*sizes, per_class], 1
    n_classes = draw(st.integers(1, n_usable))
    return ClassBalancedSampler(of_sizes(*sizes), n_classes * per_class, per_class, draw(st.integers(0, 9)))


@settings(deadline=None)
@given(samplers(), st.integers(0, 3))
def test_every_batch_has_its_classes_with_as_many_images_each_and_no_image_comes_twice(sampler, epoch):
    batches = sampler.batches(epoch)
    assert batches
    for batch in batches:
        counts = Counter(sampler.labels[batch].tolist())
        assert set(counts.values()) == {sampler.per_class}
        assert len(counts) == sampler.batch_size // sampler.per_class
    seen = list(chain(*batches))
    assert len(set(seen)) == len(seen)
    assert set(seen) <= set(range(len(sampler.labels)))


@settings(deadline=None)
@given(samplers())
def test_an_epoch_ends_only_when_too_few_classes_have_images_left(sampler):
    used = Counter(sampler.labels[list(chain(*sampler.batches(0)))].tolist())
    left = [count - used[label] for label, count in Counter(sampler.labels.tolist()).items()]
    assert sum(count >= sampler.per_class for count in left) < sampler.batch_size // sampler.per_class


def test_batches_follow_from_seed_and_epoch():
    labels = of_sizes(*[8] * 6)
    batches = {
        (seed, epoch): str(ClassBalancedSampler(labels, 12, 4, seed).batches(epoch))
        for seed in range(3)
        for epoch in range(3)
    }
    assert len(set(batches.values())) == 9
    sampler = ClassBalancedSampler(labels, 12, 4, seed=1)
    sampler.batches(0)  # the order of epochs does not matter
    assert str(sampler.batches(2)) == batches[1, 2]
    np.random.seed(5)  # noqa: NPY002  (nor does the global generator)
    assert str(sampler.batches(2)) == batches[1, 2]


def test_places_are_plain_numbers():
    assert all(type(place) is int for place in ClassBalancedSampler(of_sizes(4, 4), 4, 2).batches(0)[0])


@pytest.mark.parametrize("seed", range(5))
def test_nearly_all_images_are_seen_where_classes_are_of_one_size(seed):
    sampler = ClassBalancedSampler(of_sizes(*[20] * 50), 40, 4, seed)
    seen = list(chain(*sampler.batches(0)))
    assert len(seen) > 0.9 * 50 * 20


def test_which_images_are_left_over_changes_with_the_epoch():
    sampler = ClassBalancedSampler(of_sizes(5, 5, 5, 5), 8, 2)
    left_over = [frozenset(range(20)) - set(chain(*sampler.batches(epoch))) for epoch in range(80)]
    assert set(chain(*left_over)) == set(range(20))


def test_which_images_of_a_class_meet_changes_with_the_epoch():
    sampler = ClassBalancedSampler(of_sizes(6), 2, 2)
    pairs = {tuple(sorted(batch)) for epoch in range(60) for batch in sampler.batches(epoch)}
    assert len(pairs) == 15  # all of them


def test_classes_too_small_are_never_used():
    labels = of_sizes(8, 3, 8, 1, 8)
    sampler = ClassBalancedSampler(labels, 8, 4)
    seen = set(chain(*(labels[batch].tolist() for epoch in range(10) for batch in sampler.batches(epoch))))
    assert seen == {0, 2, 4}


def test_class_numbers_may_have_gaps():
    labels = np.array([7, 7, 2, 2])
    assert sorted(ClassBalancedSampler(labels, 4, 2).batches(0)[0]) == [0, 1, 2, 3]


def close_to(observed: int, n_draws: int, probability: float) -> bool:
    return abs(observed - n_draws * probability) < 4.5 * np.sqrt(n_draws * probability * (1 - probability))


def test_a_class_is_drawn_in_proportion_to_the_groups_it_has():
    labels = of_sizes(12, 6, 3)  # 6, 3 and 1 groups of 2
    first = Counter(int(labels[ClassBalancedSampler(labels, 2, 2).batches(epoch)[0][0]]) for epoch in range(1500))
    for label, groups in enumerate((6, 3, 1)):
        assert close_to(first[label], 1500, groups / 10)


def test_two_classes_are_drawn_one_after_the_other_without_the_first():
    labels, weights = of_sizes(12, 6, 3), (0.6, 0.3, 0.1)
    first = Counter(
        frozenset(labels[ClassBalancedSampler(labels, 4, 2).batches(epoch)[0]].tolist()) for epoch in range(1500)
    )
    for one, other in ((0, 1), (0, 2), (1, 2)):
        probability = weights[one] * weights[other] * (1 / (1 - weights[one]) + 1 / (1 - weights[other]))
        assert close_to(first[frozenset((one, other))], 1500, probability)


def test_the_proportion_is_of_what_is_left():
    """Over a whole epoch of batches of one class, every order of the groups is as likely as any other."""
    labels = of_sizes(4, 4)  # two groups of 2 each: 6 orders
    orders = Counter(
        tuple(labels[batch[0]].item() for batch in ClassBalancedSampler(labels, 2, 2).batches(epoch))
        for epoch in range(1200)
    )
    assert len(orders) == 6
    assert all(close_to(count, 1200, 1 / 6) for count in orders.values())


@pytest.mark.parametrize(("batch_size", "per_class"), [(8, 1), (8, 0), (8, -2), (2, 4), (10, 4), (0, 2), (-8, 4)])
def test_sizes_that_do_not_fit_each_other(batch_size, per_class):
    with pytest.raises(InputError) as caught:
        ClassBalancedSampler(of_sizes(8, 8), batch_size, per_class)
    assert str(caught.value) == (
        f"sampler: batch_size is {batch_size} and per_class {per_class}; per_class of at least 2 must divide batch_size"
    )


def test_too_few_classes_for_a_batch():
    with pytest.raises(InputError) as caught:
        ClassBalancedSampler(of_sizes(8, 8, 3), 12, 4)
    assert str(caught.value) == (
        "sampler: a batch of 12 needs 3 classes of at least 4 images, there are 2; lower batch_size or per_class"
    )


def test_small_classes():
    assert small_classes(of_sizes(4, 3, 5, 1), per_class=4).tolist() == [1, 3]
    assert small_classes(of_sizes(4, 4), per_class=4).tolist() == []
