import copy
import math
from functools import partial
from itertools import permutations, product

import pytest
import torch
from torch.testing import assert_close

from loss_cases import double, draw, draw_pairs, gradient_of, references, value_and_gradient
from refusals import assert_refused
from sightline import losses
from sightline.losses.blackbox import PENALTIES, with_margin
from sightline.losses.state import RecentBatches, identify_batch, keeps_batches, start_epoch
from sightline.ranking.pairs import table_pairs
from sightline.ranking.similarity import cosine_scores
from sightline.training.batch_loss import BatchLoss

# Oracles: one item at a time.


def ranks_of_list(scores, relevant, mask):
    """Rank of each item of one list, None where it is not in it."""
    columns = sorted((i for i in range(len(scores)) if mask[i]), key=lambda i: (-scores[i], relevant[i], i))
    return [columns.index(i) + 1 if mask[i] else None for i in range(len(scores))]


def by_query(tables, margin):
    """(rank, rank among relevant items) of each relevant item of each list that has any."""
    for row, relevant, mask in zip(*(table.tolist() for table in tables), strict=True):
        moved = [score + (-margin / 2 if good else margin / 2) for score, good in zip(row, relevant, strict=True)]
        ranks = ranks_of_list(moved, relevant, mask)
        hits = sorted(rank for rank, good in zip(ranks, relevant, strict=True) if rank and good)
        if hits:
            yield [(rank, place) for place, rank in enumerate(hits, start=1)]


def ap_loss_by_definition(tables, margin):
    rows = list(by_query(tables, margin))
    return sum(1 - sum(place / rank for rank, place in row) / len(row) for row in rows) / len(rows)


def recall_loss_by_definition(tables, margin, weight_of, reduction):
    """The sum over K of the weight of K and the share of relevant items with K or more irrelevant ones above."""
    rows = list(by_query(tables, margin))
    groups = rows if reduction == "queries" else [[pair for row in rows for pair in row]]
    total = 0.0
    for k in range(1, tables[0].shape[1] + 1):
        missed = [sum(rank - place >= k for rank, place in group) / len(group) for group in groups]
        total += weight_of(k) * sum(missed) / len(missed)
    return total


def gradient_by_definition(scores, relevant, mask, upstream, strength):
    """4.1 of the specification with ranks divided by the length of the list, one list."""
    n = sum(mask)
    before = ranks_of_list(scores, relevant, mask)
    after = ranks_of_list([s + strength * g for s, g in zip(scores, upstream, strict=True)], relevant, mask)
    return [-(b / n - a / n) / strength if b else 0.0 for b, a in zip(before, after, strict=True)]


@pytest.mark.parametrize("seed", range(4))
def test_ranks_and_their_gradient_are_their_definition(seed):
    scores, relevant, mask = draw_pairs(seed)
    upstream = torch.randn(5, 9, generator=torch.Generator().manual_seed(seed)).double()
    ranks = losses.blackbox_ranks(scores, relevant, mask, 0.3)
    gradient = gradient_of(lambda leaf: (losses.blackbox_ranks(leaf, relevant, mask, 0.3) * upstream).sum(), scores)
    for row in range(5):
        one = [table[row].tolist() for table in (scores, relevant, mask)]
        expected = [rank / sum(one[2]) if rank else 0.0 for rank in ranks_of_list(*one)]
        assert_close(ranks[row], double(expected))
        assert_close(gradient[row], double(gradient_by_definition(*one, upstream[row].tolist(), 0.3)))


WEIGHTS = {"log": lambda k: math.log(1 + 1 / k), "loglog": lambda k: math.log(1 + math.log(1 + 1 / k) / (1 + math.log(k)))}
OWN_WEIGHTS = (0.5, 0.0, 2.0), tuple(1 / k for k in range(1, 20))


@pytest.mark.parametrize("seed", range(4))
def test_losses_are_their_definition(seed):
    assert PENALTIES.keys() == WEIGHTS.keys()
    tables = draw_pairs(seed)
    for margin in (0.0, 0.07):
        assert_close(losses.blackbox_ap_loss(*tables, margin=margin).item(), ap_loss_by_definition(tables, margin))
    for weights, reduction in product((*WEIGHTS, *OWN_WEIGHTS), ("queries", "pairs")):
        weight_of = WEIGHTS[weights] if isinstance(weights, str) else dict(enumerate(weights, start=1)).get
        expected = recall_loss_by_definition(tables, 0.07, lambda k, of=weight_of: of(k) or 0.0, reduction)
        found = losses.blackbox_recall_loss(*tables, margin=0.07, weights=weights, reduction=reduction)
        assert_close(found.item(), expected)


V4 = double([[0.30, 0.80, 0.10, 0.50, 0.62]])
V4_RELEVANT = torch.tensor([[True, False, False, True, False]])


def test_worked_ap_gradient():
    assert_close(losses.blackbox_ranks(with_margin(V4, V4_RELEVANT, 0.1), V4_RELEVANT) * 5, double([[4, 1, 5, 3, 2]]))
    worked = {2: [0.0] * 5, 8: [-0.125, 0.125, 0, -0.25, 0.25], 100: [-0.03, 0.02, 0, -0.01, 0.02]}
    for raw_strength, gradient in worked.items():
        loss = partial(losses.blackbox_ap_loss, relevance=V4_RELEVANT, strength=raw_strength / 5, margin=0.1)
        assert_close(loss(V4), double(0.5833333333), atol=1e-9, rtol=0)
        assert_close(gradient_of(loss, V4), double([gradient]))


def test_worked_recall():
    for weights, gradient, value in (
        ("log", [-0.5, 0.5, 0, -0.5, 0.5], 1.0986122887),
        ("loglog", [0, 0, 0, -0.25, 0.25], 0.7412763114),  # moved to .568, .768
        ((0.0, 0.0, 1 / 3), [-0.5, 0.5, 0, -0.5, 0.5], None),  # the slope at 2 is the third weight, here that of log
        ((5.0, 5.0), [0, 0, 0, 0, 0], None),
    ):
        loss = partial(losses.blackbox_recall_loss, relevance=V4_RELEVANT, margin=0.1, weights=weights, strength=4 / 5)
        assert_close(gradient_of(loss, V4), double([gradient]))
        assert value is None or loss(V4).item() == pytest.approx(value, abs=1e-9)


V5 = double([[0.9, 0.2, 0.4], [0.3, 0.7, 0.6], [0.5, 0.1, 0.8], [0.2, 0.65, 0.35]])
V5_TARGETS = torch.tensor([[1, 0, 0], [0, 1, 0], [1, 0, 1], [0, 0, 0]]).bool()


def test_worked_detection():
    assert_near = partial(assert_close, atol=1e-9, rtol=0)
    for margin, by_class, across, combined in (
        (0.0, [0, 0, 0], 0.0833333333, 0.0277777778),
        # At .15 the relevant .8 and .5 tie with .65 and .35; a tie goes against them, as a larger margin does.
        (0.1499, [0, 0.5, 0], 0.2071428571, 0.1801587302),
        (0.1501, [0, 0.5, 0], 0.3083333333, 0.2138888889),
    ):
        for number, expected in enumerate(by_class):
            column = slice(number, number + 1)
            assert_near(losses.class_map_loss(V5[:, column], V5_TARGETS[:, column], margin=margin), double(expected))
        assert_near(losses.class_map_loss(V5, V5_TARGETS, margin=margin), double(sum(by_class) / 3))
        assert_near(losses.all_classes_ap_loss(V5, V5_TARGETS, margin=margin), double(across))
        assert_near(losses.DetectionAPLoss(margin=margin)(V5, V5_TARGETS), double(combined))


def test_gradient_is_that_of_the_interpolation():
    (scores, upstream), strength, n = draw(0, 2, 6), 0.7, 6

    def rank_product(values):  # the least of values . ranks over all permutations of the ranks
        return min(sum(v * p / n for v, p in zip(values, ranks, strict=True)) for ranks in permutations(range(1, n + 1)))

    def interpolation(values):
        return (rank_product((values + strength * upstream).tolist()) - rank_product(values.tolist())) / strength

    def loss(leaf):
        return (losses.blackbox_ranks(leaf, torch.zeros(1, n), strength=strength) * upstream).sum()

    for step, slope in zip(1e-6 * torch.eye(n).double(), gradient_of(loss, scores[None])[0].tolist(), strict=True):
        assert_close(slope, (interpolation(scores + step) - interpolation(scores - step)) / 2e-6, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", ["ap", "log", "loglog"])
@pytest.mark.parametrize("seed", range(3))
def test_gradient_of_the_loss_is_the_definition(seed, name):
    scores, relevant, mask = draw_pairs(seed, 4, 8, apart=True)
    relevant[0] = False  # not counted among the queries
    relevant[1, 0] = mask[1, 0] = True
    loss = losses.blackbox_ap_loss if name == "ap" else partial(losses.blackbox_recall_loss, weights=name)
    gradient = gradient_of(lambda leaf: loss(leaf, relevant, mask, strength=1.5, margin=0.0), scores)
    n_counted = (relevant & mask).any(1).sum().item()
    for row in range(4):
        one = [table[row].tolist() for table in (scores, relevant, mask)]
        ranks = ranks_of_list(*one)
        hits = sorted(rank for rank, is_relevant in zip(ranks, one[1], strict=True) if rank and is_relevant)
        upstream = [0.0] * 8
        for place, rank in enumerate(hits, start=1):
            above = rank - place
            slopes = {"ap": place / rank**2, "log": 1 / (1 + above)}
            slopes["loglog"] = slopes["log"] / (1 + math.log(1 + above))
            upstream[ranks.index(rank)] = sum(one[2]) * slopes[name] / len(hits) / n_counted
        assert_close(gradient[row], double(gradient_by_definition(*one, upstream, 1.5)))


def test_equal_scores_rank_irrelevant_items_first_then_earlier_ones():
    relevant = torch.tensor([[True, False, True, False]])
    assert_close(losses.blackbox_ranks(torch.zeros(1, 4), relevant) * 4, torch.tensor([[3.0, 1.0, 4.0, 2.0]]))
    assert_close(losses.blackbox_ap_loss(torch.zeros(1, 4), relevant), torch.tensor(1 - (1 / 3 + 2 / 4) / 2))
    assert losses.blackbox_ap_loss(torch.zeros(1, 4), torch.ones(1, 4)) == 0  # no precision above 1


def test_a_factor_on_the_loss_is_one_on_the_gradient():
    scores, relevant, mask = draw_pairs(0, apart=True)
    for loss in (losses.blackbox_ap_loss, losses.blackbox_recall_loss):
        plain = gradient_of(lambda leaf: loss(leaf, relevant, mask), scores)  # noqa: B023
        assert plain.any()
        scaled = gradient_of(lambda leaf: -65536 * loss(leaf, relevant, mask), scores)  # noqa: B023
        assert_close(scaled, -65536 * plain)


def test_noise_is_half_normal_comes_from_the_seed_and_the_memory_can_be_reset():
    scores, relevant = torch.zeros(200, 100).double(), torch.arange(100).expand(200, 100) % 2 == 0
    shift = with_margin(scores, relevant, 0.5, torch.Generator().manual_seed(1))
    assert (shift[relevant] <= 0).all()
    assert (shift[~relevant] >= 0).all()
    assert_close(shift.abs().mean().item(), 0.25 * math.sqrt(2 / math.pi), atol=5e-3, rtol=0)
    assert_close(shift.square().mean().item(), 0.0625, atol=3e-3, rtol=0)
    assert_close(with_margin(scores, relevant, 0.5, torch.Generator().manual_seed(1)), shift, atol=0, rtol=0)
    make, batch = partial(losses.BlackBoxAPLoss, margin=0.5, margin_noise=True, memory=2), draw_batch(0, 6)
    loss = make(seed=3)
    first, second = loss(*batch).item(), loss(*batch).item()
    loss.reset()
    assert len(loss.recent.rows) == 0
    assert len({first, second, loss(*batch).item(), make(seed=4)(*batch).item()}) == 4
    assert make(seed=3)(*batch).item() == first


def test_strength_is_that_of_the_whole_detection_loss():
    def raw(leaf, relevant, share):  # one autograd graph, factors and all
        ranks = losses.blackbox_ranks(with_margin(leaf, relevant, 0.15), relevant, strength=0.5) * relevant.shape[1]
        among = torch.stack([(relevant & (ranks <= ranks[:, [i]])).sum(1) for i in range(relevant.shape[1])], dim=1)
        return share * (1 - (among / ranks * relevant).sum(1) / relevant.sum(1)).mean()

    across = V5_TARGETS.reshape(1, -1)
    expected = gradient_of(lambda leaf: raw(leaf.T, V5_TARGETS.T, 2 / 3) + raw(leaf.reshape(1, -1), across, 1 / 3), V5)
    assert expected.any()
    assert_close(gradient_of(lambda leaf: losses.DetectionAPLoss()(leaf, V5_TARGETS), V5), expected)


def draw_batch(seed, n_items=8):
    return draw(seed, n_items), torch.arange(n_items) % 3


MODULES = {
    "ap": (losses.BlackBoxAPLoss, losses.blackbox_ap_loss),
    "recall": (losses.BlackBoxRecallLoss, losses.blackbox_recall_loss),
}
every_module = pytest.mark.parametrize(("module", "loss"), MODULES.values(), ids=MODULES)


@every_module
def test_evaluation_mode_is_without_margin_and_memory(module, loss):
    embeddings, labels = draw_batch(0)
    pairs = cosine_scores(embeddings, embeddings), labels[:, None] == labels, ~torch.eye(8, dtype=torch.bool)
    one = module(margin=0.4, memory=2)
    one(*draw_batch(1))
    before = copy.deepcopy(one.state_dict())
    one.eval()
    assert_close(one(embeddings, labels), loss(*pairs, margin=0.0))
    one(embeddings, labels, **references(*draw_batch(2)))
    assert_close(one.state_dict(), before)


def longer_lists(loss, leaf, batches, ids):
    """The loss of the first batch against all of them, in which no item meets itself or an older copy."""
    columns, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    columns = torch.cat([leaf, columns[len(leaf) :]])
    same, mask = batches[0][1][:, None] == labels, ids[0][:, None] != torch.cat(ids)
    return loss(cosine_scores(leaf, columns), same, mask)


@every_module
@pytest.mark.parametrize("memory", [0, 1, 3])
def test_memory_lengthens_the_lists_by_the_last_batches(module, loss, memory):
    batches = [draw_batch(seed, n_items) for seed, n_items in enumerate([8, 5, 6, 7, 8])]
    one = module(memory=memory)
    for number, (embeddings, labels) in enumerate(batches):
        held = batches[max(0, number - memory) : number + 1][::-1]
        ids = torch.arange(sum(len(c) for _, c in held)).split([len(c) for _, c in held])
        expected = value_and_gradient(partial(longer_lists, loss), embeddings, held, ids)
        assert_close(value_and_gradient(one, embeddings, labels), expected)
        assert not one.recent.rows.requires_grad
        assert one.recent.sizes.tolist() == [len(c) for _, c in batches[max(0, number + 1 - memory) : number + 1] if memory]


@every_module
def test_no_item_meets_its_older_copy_in_the_memory(module, loss):
    batches = [draw_batch(seed, 6) for seed in range(3)]
    ids = [torch.tensor(row) for row in ([0, 1, 2, 3, 4, 5], [2, 6, 7, 0, 8, 9], [10, 2, 6, 11, 5, 12])]
    one = BatchLoss(module(memory=2))
    for number, batch in enumerate(batches):
        expected = longer_lists(loss, batch[0], batches[: number + 1][::-1], ids[: number + 1][::-1])
        assert_close(one(*batch, ids[number]), expected)
    assert one.loss.recent.ids.tolist() == [*ids[1], *ids[2]]


def released_recall(rows, strength, margin):
    """RaMBO's released loss of retrieval and its gradient in the rows of the last batch, one item at a time.

    ``rows`` are (scores, relevant) lists without the query itself, newest batch first; each batch has as many.
    """
    times = len(rows)
    n_pairs = sum(sum(relevant) for batch in rows for _, relevant in batch)
    total, gradients = 0.0, []
    for number, batch in enumerate(rows):
        for scores, relevant in batch:
            moved = [score + (-margin / 2 if good else margin / 2) for score, good in zip(scores, relevant, strict=True)]
            ranks = ranks_of_list(moved, relevant, [True] * len(moved))
            hits = sorted(rank for rank, good in zip(ranks, relevant, strict=True) if good)
            slopes = [0.0] * len(moved)
            for item, (rank, good) in enumerate(zip(ranks, relevant, strict=True)):
                if good:
                    n_above = times * (rank - 1 - hits.index(rank))
                    total += math.log(1 + math.log(1 + n_above)) / n_pairs
                    slopes[item] = times / ((1 + math.log(1 + n_above)) * (1 + n_above)) / n_pairs
            length = len(moved)
            pushed = [score + strength * length * slope for score, slope in zip(moved, slopes, strict=True)]
            after = ranks_of_list(pushed, relevant, [True] * length)
            if number == 0:
                gradients.append([(a - b) / (strength * length) for a, b in zip(after, ranks, strict=True)])
    return total, gradients


def test_the_memory_of_the_released_code_is_of_queries():
    one = losses.BlackBoxRecallLoss(0.4, 0.1, reduction="pairs", memory=2, memory_as="queries").double()
    batches, kept = [draw_batch(seed, 8) for seed in range(4)], []
    others = ~torch.eye(8, dtype=torch.bool)
    for embeddings, labels in batches:
        scores, relevant = cosine_scores(embeddings, embeddings), labels[:, None] == labels
        rows = [(scores[query, listed].tolist(), relevant[query, listed].tolist()) for query, listed in enumerate(others)]
        kept = [rows, *kept][:3]
        expected, slopes = released_recall(kept, 0.4, 0.1)
        found = value_and_gradient(lambda leaf: one._with_earlier_queries(table_pairs(leaf, relevant, others)), scores)  # noqa: B023
        wanted = torch.zeros(8, 8, dtype=torch.float64)
        wanted[others] = double(slopes).flatten()
        assert_close(found, (double(expected), wanted))
    again = copy.deepcopy(one)
    assert_close(one(*batches[0]), again(*batches[0]))
    plain = losses.BlackBoxRecallLoss(0.4, 0.1, reduction="pairs", memory=2).double()
    assert_close(one.eval()(*batches[0]), plain.eval()(*batches[0]))
    assert_refused("memory_as", losses.BlackBoxRecallLoss, memory_as="rows")


def test_detection_memory_is_of_the_last_batches():
    batches = [(draw(seed, 5, 3) / 4, draw(seed + 9, 5, 3) > 0.4) for seed in range(5)]
    whole, first, second, fresh = (losses.DetectionAPLoss(20.0, 0.05, 0.25, memory) for memory in (2, 2, 2, 1))
    values = []
    for number, (logits, targets) in enumerate(batches):
        longer = [torch.cat(side) for side in zip(*batches[max(0, number - 2) : number + 1], strict=True)]
        value, gradient = value_and_gradient(whole, logits, targets)
        across = losses.all_classes_ap_loss(logits, targets, margin=0.05)
        assert_close(value, 0.75 * losses.class_map_loss(*longer, margin=0.05) + 0.25 * across)
        assert gradient.any()
        values.append(value.item())
    for batch in batches[:3]:
        first(*batch)
    second.load_state_dict(first.state_dict())
    assert [second(*batch).item() for batch in batches[3:]] == values[3:]
    assert second.recent.labels.dtype == torch.bool
    by_class, across = (loss(*batches[0], margin=0.0) for loss in (losses.class_map_loss, losses.all_classes_ap_loss))
    assert_close(second.eval()(*batches[0]), 0.75 * by_class + 0.25 * across)
    second.train().reset()
    assert second(*batches[0]).item() == values[0]
    fresh.load_state_dict(whole.state_dict())  # of two batches, the older of which is dropped
    fresh(*batches[0])
    assert fresh.recent.sizes.tolist() == [5]


def test_what_does_not_fit_is_refused():
    for share in (0.0, 1.0, math.nan):
        assert_refused(rf"share.*{share}", losses.DetectionAPLoss, share=share)
    assert_refused(r"ref_emb.*memory", losses.BlackBoxAPLoss(memory=1), *draw_batch(0), **references(*draw_batch(1)))
    assert_refused(r"indices_tuple.*memory", losses.BlackBoxAPLoss(memory=1), *draw_batch(0), [torch.arange(3)] * 3)
    for function in (losses.class_map_loss, losses.DetectionAPLoss()):
        assert_refused(r"logits.*list", function, V5.tolist(), V5_TARGETS)
    assert_close(losses.class_map_loss(V5, V5_TARGETS.tolist()), losses.class_map_loss(V5, V5_TARGETS))
    recent = RecentBatches(2)
    recent.push(torch.zeros(3, 4), torch.zeros(3, 1))
    assert_refused(r"memory.* 4,.* 5;.*reset", recent.push, torch.zeros(3, 5), torch.zeros(3, 1))
    recent.reset()
    recent.push(torch.zeros(3, 5), torch.zeros(3, 1))
    assert recent.rows.shape == (3, 5)


def test_hooks_reach_the_parts_of_a_loss():
    kinds = losses.BlackBoxAPLoss, losses.BlackBoxRecallLoss
    loss = torch.nn.ModuleList([*(kind(memory=1) for kind in kinds), torch.nn.Identity()])
    identify_batch(loss, torch.tensor([4, 2]))
    for part in loss[:2]:
        part(torch.eye(2), [5, 5])
        assert part.recent.ids.tolist() == [4, 2]
    loss[1].reset()
    start_epoch(loss)
    assert [len(part.recent.rows) for part in loss[:2]] == [0, 0]
    assert keeps_batches(loss)
    assert not keeps_batches(losses.BlackBoxAPLoss())
