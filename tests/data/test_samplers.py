from collections import Counter
from functools import partial
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refusals import assert_refused
from sightline.data.samplers import SAMPLERS, SamplerSection, create_sampler
from sightline.errors import InputError


def sampler_of(name, labels, batch_size, per_class=4, seed=0, **options):
    return create_sampler(SamplerSection(name=name, batch_size=batch_size, per_class=per_class, **options), labels, seed)


balanced, hierarchical, graded, in_random_order = (
    partial(sampler_of, name) for name in ("class_balanced", "hierarchical", "graded", "random")
)


def of_sizes(*sizes: int) -> np.ndarray:
    """Labels of classes with these sizes, shuffled."""
    return np.random.default_rng(0).permutation(np.repeat(np.arange(len(sizes)), sizes))


def in_tree(*sizes, width=2, n_levels=3) -> np.ndarray:
    """(N, L) labels of classes with these sizes, ``width`` children below each node; the last may have fewer."""
    classes = of_sizes(*sizes)
    return np.stack([classes // width**level for level in range(n_levels)], axis=1)


def counts(labels) -> Counter:
    return Counter(labels.tolist())


@st.composite
def samplers(draw):
    per_class = draw(st.integers(2, 4))
    sizes = draw(st.lists(st.integers(1, 14), min_size=1, max_size=8))
    n_usable = sum(size >= per_class for size in sizes)
    if not n_usable:
        sizes, n_usable = [*sizes, per_class], 1
    n_classes = draw(st.integers(1, n_usable))
    return balanced(of_sizes(*sizes), n_classes * per_class, per_class, draw(st.integers(0, 9)))


@settings(deadline=None)
@given(samplers(), st.integers(0, 3))
def test_an_epoch_has_full_batches_without_an_image_twice_until_too_few_classes_have_images_left(sampler, epoch):
    batches, per_class = sampler.batches(epoch), sampler.section.per_class
    n_classes = sampler.batch_size // per_class
    assert batches
    for batch in batches:
        assert [*counts(sampler.labels[batch]).values()] == [per_class] * n_classes
    seen = list(chain(*batches))
    assert len(set(seen)) == len(seen)
    left = counts(sampler.labels) - counts(sampler.labels[seen])
    assert sum(count >= per_class for count in left.values()) < n_classes


@settings(deadline=None)
@given(samplers(), st.integers(1, 12), st.sampled_from(["size", "sqrt", "uniform"]))
def test_with_n_batches_there_are_so_many_of_distinct_classes_and_images(plain, n_batches, class_weights):
    options = {"n_batches": n_batches, "class_weights": class_weights}
    sampler = balanced(plain.labels, plain.batch_size, plain.section.per_class, plain.seed, **options)
    batches = sampler.batches(0)
    assert len(batches) == n_batches
    for batch in batches:
        assert len(set(batch)) == sampler.batch_size
        assert {*counts(sampler.labels[batch]).values()} == {sampler.section.per_class}


def close_to(observed: int, n_draws: int, probability: float) -> bool:
    return abs(observed - n_draws * probability) < 4.5 * np.sqrt(n_draws * probability * (1 - probability))


def test_two_classes_are_drawn_one_after_the_other_without_the_first():
    labels, weights = of_sizes(12, 6, 3), (0.6, 0.3, 0.1)
    first = Counter(frozenset(labels[balanced(labels, 4, 2).batches(epoch)[0]].tolist()) for epoch in range(1500))
    for one, other in ((0, 1), (0, 2), (1, 2)):
        probability = weights[one] * weights[other] * (1 / (1 - weights[one]) + 1 / (1 - weights[other]))
        assert close_to(first[frozenset((one, other))], 1500, probability)


@pytest.mark.parametrize(("class_weights", "shares"), [("size", (16, 4, 1)), ("sqrt", (4, 2, 1)), ("uniform", (1, 1, 1))])
def test_class_weights(class_weights, shares):
    labels = of_sizes(32, 8, 3)  # 16, 4 and 1 groups of 2
    sampler = balanced(labels, 2, 2, n_batches=3000, class_weights=class_weights)
    drawn = counts(labels[[batch[0] for batch in sampler.batches(0)]])
    for label, share in enumerate(shares):
        assert close_to(drawn[label], 3000, share / sum(shares))


@settings(deadline=None)
@given(st.lists(st.integers(2, 14), min_size=2, max_size=8), st.integers(2, 9), st.integers(0, 3))
def test_max_per_class_caps_the_images_of_an_epoch(sizes, cap, epoch):
    labels = of_sizes(*sizes)
    capped = [balanced(labels, 4, 2, max_per_class=cap), balanced(labels, 4, 2, max_per_class=cap, n_batches=50)]
    capped.append(graded(np.stack([labels, labels * 0], axis=1), 4, 2, max_per_class=cap))
    if sum(min(size, cap) for size in sizes) >= 4:
        capped.append(in_random_order(labels, 4, max_per_class=cap))
    for sampler in capped:
        seen = set(chain(*sampler.batches(epoch)))
        assert max(counts(labels[list(seen)]).values()) <= cap


def test_every_pair_of_super_labels_has_its_batches_of_half_and_half():
    labels = in_tree(*[5] * 12 * 32, width=32, n_levels=2)
    pairs = Counter()
    for batch in hierarchical(labels, 256, batches_per_pair=5).batches(0):
        halves = counts(labels[batch, 1])
        assert [*halves.values()] == [128, 128]
        assert {*counts(labels[batch, 0]).values()} == {4}
        assert len(set(batch)) == 256
        pairs[frozenset(halves)] += 1
    assert [*pairs.values()] == [5] * 66  # of 12 super-labels


def test_n_batches_draws_sets_of_super_labels():
    labels = in_tree(*[2] * 400, width=4, n_levels=2)
    batches = hierarchical(labels, 16, per_class=2, super_labels_per_batch=4, n_batches=30).batches(0)
    assert [len(set(labels[batch, 1].tolist())) for batch in batches] == [4] * 30


def test_a_class_with_too_few_images_repeats_them_all():
    labels = in_tree(3, 1, 4, 4, n_levels=2)
    for batch in hierarchical(labels, 16, per_class=4).batches(0):
        times = Counter(batch)
        assert sorted(times[place] for place in np.flatnonzero(labels[:, 0] == 0).tolist()) == [1, 1, 2]
        assert times[np.flatnonzero(labels[:, 0] == 1).item()] == 4


def test_a_short_super_label_gives_a_shorter_batch_and_one_warning():
    labels = in_tree(*[4] * 10, width=4, n_levels=2)  # 4, 4 and 2 classes
    with pytest.warns(UserWarning, match=r"1 of 3 super-labels .* 3 classes .*smallest 2.* 24") as caught:
        sampler = hierarchical(labels, 24, per_class=4, batches_per_pair=2)
    for batch in [*sampler.batches(0), *sampler.batches(1)]:  # without another warning
        n_of = counts(labels[batch, 1])
        assert (len(n_of), n_of) == (2, {super_label: 8 if super_label == 2 else 12 for super_label in n_of})
        assert {*counts(labels[batch, 0]).values()} == {4}
    assert len(caught) == 1


def test_the_super_label_is_the_coarsest_or_the_level_asked_for():
    labels = in_tree(*[2] * 16, n_levels=4)
    assert len(hierarchical(labels, 8, per_class=2, batches_per_pair=1).batches(0)) == 1
    assert len(hierarchical(labels, 8, per_class=2, batches_per_pair=1, super_level=1).batches(0)) == 28


@st.composite
def trees(draw):
    """(N, L) labels of any tree of 2 to 4 levels, with classes of 1 to 9 images."""

    def one_for_each(column, largest):
        return draw(st.lists(st.integers(1, largest), min_size=len(column), max_size=len(column)))

    columns = [np.arange(draw(st.integers(1, 4)))]
    for _ in range(draw(st.integers(1, 3))):
        above = np.repeat(columns[0], one_for_each(columns[0], 3))
        columns = [np.arange(len(above)), *(column[above] for column in columns)]
    items = of_sizes(*one_for_each(columns[0], 9))
    return np.stack([column[items] for column in columns], axis=1)


WEIGHTS = st.sampled_from(["size", "sqrt", "uniform"])


@settings(deadline=None, max_examples=200)
@given(trees(), st.integers(2, 3), st.integers(1, 24), st.sampled_from([None, 3]), WEIGHTS)
def test_every_item_has_positives_at_every_level_that_the_tree_has(labels, per_class, n_classes, n_batches, class_weights):
    try:
        sampler = graded(labels, n_classes * per_class, per_class, n_batches=n_batches, class_weights=class_weights)
    except InputError as error:
        assert "needs" in str(error) or "take" in str(error)  # noqa: PT017
        return
    usable = labels[np.bincount(labels[:, 0])[labels[:, 0]] >= per_class]
    batches = sampler.batches(0)
    assert batches
    for batch in batches:
        chosen = labels[batch]
        assert len(set(batch)) == len(batch) <= sampler.batch_size
        assert {*counts(chosen[:, 0]).values()} == {per_class}
        for level in range(1, labels.shape[1]):
            for item in np.unique(chosen, axis=0):
                related = chosen[chosen[:, level] == item[level], level - 1]
                possible = usable[usable[:, level] == item[level], level - 1]
                assert len(set(related)) >= min(2, len(set(possible)))


def test_a_graded_epoch_ends_when_most_of_a_batch_would_come_again():
    labels = in_tree(*[200] * 4, *[2] * 4, width=4, n_levels=2)  # a large branch beside a small one, both in every batch
    seen: set[int] = set()
    for batch in graded(labels, 8, 2).batches(0):
        assert len(set(batch) - seen) >= 4
        seen |= set(batch)
    assert len(seen) > 0.9 * len(labels)
    uneven = in_tree(*[200] * 2, *[2] * 6)  # the large classes are at most two of eight
    assert len(graded(uneven, 16, 2).batches(0)) == 1


@given(st.integers(1, 40), st.integers(2, 12), st.integers(0, 3))
def test_random_batches_have_each_image_at_most_once(n_images, batch_size, epoch):
    labels = np.zeros(n_images, np.int64)
    if batch_size > n_images:
        assert_refused(f"at most {n_images}, .* got {batch_size}", in_random_order, labels, batch_size)
        return
    batches = in_random_order(labels, batch_size).batches(epoch)
    assert [len(batch) for batch in batches] == [batch_size] * (n_images // batch_size)
    seen = list(chain(*batches))
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_sampler_follows_from_seed_and_epoch_alone(name):
    assert len(SAMPLERS) == 5
    labels, section = in_tree(*[6] * 16), SamplerSection(name=name, batch_size=32)
    batches = {
        (seed, epoch): create_sampler(section, labels, seed).batches(epoch) for seed in range(2) for epoch in range(2)
    }
    assert len({str(found) for found in batches.values()}) == 4
    kept = create_sampler(section, labels, seed=1)
    kept.batches(0)
    assert kept.batches(1) == batches[1, 1]
    assert kept.batch_size == 32
    assert all(type(place) is int and 0 <= place < 96 for place in chain(*kept.batches(0)))


PAIRS, DEEP, WIDE = in_tree(*[6] * 16), in_tree(*[2] * 16, n_levels=4), in_tree(*[2] * 400, width=4, n_levels=2)
NO_TREE = np.array([[0, 0], [0, 1], [1, 1], [1, 1]])
REFUSED = [  # sampler, labels, batch size, options, facts
    (balanced, of_sizes(8, 8, 3), 12, {}, ["12", "3 classes", "at least 4 images", "there are 2", "batch_size=8 fits"]),
    (balanced, of_sizes(8, 3, 3), 12, {}, ["12", "3 classes", "at least 4 images", "there are 1"]),
    (balanced, PAIRS, 16, {"max_per_class": 2}, ["sampler: ", "max_per_class", "2", "per_class=4"]),
    (balanced, PAIRS, 16, {"level": 3}, ["sampler: ", "level 3", "have 3"]),
    (in_random_order, PAIRS, 16, {"per_class": 8}, ["'random'", "'per_class'; ", "'batch_size', 'level', 'max_per_class'"]),
    (graded, PAIRS, 16, {"batches_per_pair": 3, "super_level": 1}, ["'graded'", "'batches_per_pair', 'super_level'"]),
    (graded, in_tree(*[4] * 16, n_levels=4), 16, {}, ["batch_size", "16", "4 images", "4 levels", "32"]),
    (graded, in_tree(*[4] * 16, n_levels=4), 16, {"level": 3}, ["level 3"]),
    (graded, NO_TREE, 2, {"per_class": 2}, ["class 0"]),
    (graded, in_tree(*[4] * 16), 80, {}, ["80", "20 classes", "4 images", "16"]),
    (hierarchical, PAIRS, 16, {"class_weights": "sqrt"}, ["'hierarchical'", "'class_weights'"]),
    (hierarchical, WIDE, 16, {"per_class": 2, "super_labels_per_batch": 4}, ["100 super", "3921225 sets", "n_batches"]),
    (hierarchical, DEEP, 8, {"level": 1, "super_level": 1}, ["super-label", "level 1"]),
    (hierarchical, DEEP, 8, {"super_level": 4}, ["level 4"]),
    (hierarchical, DEEP, 24, {"super_labels_per_batch": 3}, ["super_labels_per_batch", "3", "level 3", "2 super-labels"]),
    (hierarchical, DEEP, 12, {}, ["batch_size", "12", "per_class", "2 super-labels"]),
]


def test_what_does_not_fit_is_refused_with_what_would():
    for sampler, labels, batch_size, options, facts in REFUSED:
        assert_refused(facts, sampler, labels, batch_size, **options)
    assert "fits" not in assert_refused("", balanced, of_sizes(8, 3, 3), 12)  # nothing does
    assert balanced(of_sizes(8, 8, 3), 8).batches(0)
