"""pytorch-metric-learning's call style: positional arguments, miners, its memory and its distributed wrapper."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from pytorch_metric_learning import losses as metric_learning
from pytorch_metric_learning import miners
from pytorch_metric_learning.distances import CosineSimilarity
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper
from pytorch_metric_learning.utils.loss_and_miner_utils import get_all_pairs_indices
from torch.testing import assert_close

from loss_cases import LABELS, draw, options_of, references, value_and_gradient
from refusals import assert_refused
from sightline.losses import ContrastiveLoss, TripletLoss, create_loss, sup_ap_loss
from sightline.losses.metric_learning import MetricLearningLoss, MetricLearningMemory
from sightline.ranking.similarity import cosine_scores

KNOWN = {"n_classes": 4, "embedding_dim": 4}
ON_PAIRS = ["roadmap", "sup_ap", "smooth_recall", "sup_ndcg", "blackbox_ap", "softbin_ap", "calibration", "triplet"]


@pytest.mark.parametrize("name", [*ON_PAIRS, "happier", "norm_softmax"])
def test_all_pairs_as_indices_are_no_indices_and_wrapped_alone_a_loss_is_itself(name):
    """In the batch and against references, by position."""
    loss, others, ref_labels = create_loss(name, **options_of(name, KNOWN)), draw(1, 12), torch.arange(12) % 4
    expected = value_and_gradient(loss, draw(), LABELS)
    assert_close(MetricLearningLoss(loss)(draw(), LABELS), expected[0])
    if name == "norm_softmax":
        return
    assert_close(value_and_gradient(loss, draw(), LABELS, get_all_pairs_indices(LABELS)), expected)
    expected = value_and_gradient(loss, draw(), LABELS, **references(others, ref_labels))
    for pairs in (get_all_pairs_indices(LABELS, ref_labels), None):
        assert_close(value_and_gradient(loss, draw(), LABELS, pairs, others, ref_labels), expected)


def test_what_a_miner_chose_is_all_that_counts():
    cosine, embeddings = {"distance": CosineSimilarity()}, draw() + torch.tensor([1.5, 0, 0, 0])
    pairs = miners.PairMarginMiner(0.8, 0.2, **cosine)(embeddings, LABELS)
    triplets = miners.TripletMarginMiner(0.2, type_of_triplets="all", **cosine)(embeddings, LABELS)
    assert len(pairs[0]) < len(get_all_pairs_indices(LABELS)[0])
    for ours, theirs, chosen in (
        (ContrastiveLoss(0.9, 0.6), metric_learning.ContrastiveLoss(0.9, 0.6, **cosine), pairs),
        (TripletLoss(0.05, "all"), metric_learning.TripletMarginLoss(0.05, **cosine), pairs),
        (TripletLoss(0.05, "hard"), metric_learning.TripletMarginLoss(0.05, **cosine), triplets),  # mined already
    ):
        found, expected = (value_and_gradient(loss, embeddings, LABELS, chosen) for loss in (ours, theirs))
        assert found[0] > 0
        assert_close(found, expected)
    relevant, listed = torch.zeros(10, 10).bool(), torch.zeros(10, 10).bool()
    relevant[pairs[0], pairs[1]] = listed[pairs[0], pairs[1]] = listed[pairs[2], pairs[3]] = True
    expected = sup_ap_loss(cosine_scores(embeddings, embeddings), relevant, listed)
    assert_close(create_loss("sup_ap")(embeddings, LABELS, pairs), expected)


def test_indices_that_cannot_be_honoured_are_refused():
    triplets, pairs = (LABELS, LABELS, LABELS), get_all_pairs_indices(LABELS)
    for name, options, chosen in (
        ("norm_softmax", KNOWN, triplets),
        ("roadmap", {"preset": "released-code"}, pairs),
        ("triplet", {"mining": "distance-weighted"}, pairs),
        ("smooth_recall", {"include_query": True}, pairs),
        ("sup_ap", {}, pairs[:2]),
    ):
        assert_refused("indices_tuple", create_loss(name, **options), draw(), LABELS, chosen)
    assert_refused("indices_tuple", create_loss("sup_h_ap"), draw(), torch.stack([LABELS, LABELS // 2], 1), pairs)


@pytest.mark.parametrize("name", ["roadmap", "sup_ap", "contrastive"])
def test_a_memory_ranks_all_that_it_holds_but_the_item_itself(name):
    memory = MetricLearningMemory(MetricLearningLoss(create_loss(name)), embedding_size=4, memory_size=25)
    kept, kept_labels = draw(0, 0), LABELS[:0]
    for seed in range(4):  # the last ones overwrite the first
        value, gradient = value_and_gradient(memory, draw(seed), LABELS)
        if seed:  # a set that begins with the batch, and is longer
            against = references(torch.cat([draw(seed), kept[-15:]]), torch.cat([LABELS, kept_labels[-15:]]))
            expected = value_and_gradient(create_loss(name), draw(seed), LABELS, **against)
            assert_close((value, gradient), expected, rtol=1e-5, atol=1e-6)
        else:  # the batch alone; the memory has no gradient
            assert_close(value, create_loss(name)(draw(seed), LABELS), rtol=1e-5, atol=1e-6)
        kept, kept_labels = torch.cat([kept, draw(seed)]), torch.cat([kept_labels, LABELS])
    if name == "contrastive":  # one of the names that their own memory accepts
        assert metric_learning.CrossBatchMemory(ContrastiveLoss(), 4, 25)(draw(), LABELS) > 0
    both = metric_learning.MultipleLosses([MetricLearningLoss(create_loss(name)), metric_learning.ContrastiveLoss()])
    assert both(draw(), LABELS) > create_loss(name)(draw(), LABELS)


def in_two_processes(rank, folder):
    """What each process does: its own half of the batch through their wrapper."""
    torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    own, labels, found = draw()[5 * rank : 5 * rank + 5], LABELS[5 * rank : 5 * rank + 5], {}
    for name in ("roadmap", "norm_softmax"):
        loss = MetricLearningLoss(create_loss(name, **KNOWN if name == "norm_softmax" else {}))
        found[name] = value_and_gradient(DistributedLossWrapper(loss), own, labels)
        if name == "roadmap":
            found["efficient"] = value_and_gradient(DistributedLossWrapper(loss, efficient=True), own, labels)
            memory = MetricLearningMemory(loss, embedding_size=4, memory_size=20)
            found["memory"] = value_and_gradient(DistributedLossWrapper(memory), own, labels)
    torch.save(found, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


def test_two_processes_equal_one(tmp_path):
    """Their wrapper multiplies by the number of processes, by which DistributedDataParallel divides."""
    code = "import sys, test_metric_learning as t; t.in_two_processes(int(sys.argv[1]), sys.argv[2])"
    path = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    started = [
        subprocess.Popen([sys.executable, "-c", code, str(rank), str(tmp_path)], env=os.environ | {"PYTHONPATH": path})
        for rank in (0, 1)
    ]
    assert [process.wait() for process in started] == [0, 0]
    roadmap = create_loss("roadmap")
    expected = {name: value_and_gradient(roadmap, draw(), LABELS) for name in ("roadmap", "memory")}
    expected["norm_softmax"] = value_and_gradient(create_loss("norm_softmax", **KNOWN), draw(), LABELS)
    for rank in (0, 1):
        rows = slice(5 * rank, 5 * rank + 5)
        found = torch.load(tmp_path / f"{rank}.pt")
        everyone = torch.arange(10).roll(-5 * rank)  # itself first
        own = roadmap(draw()[rows], LABELS[rows], **references(draw()[everyone], LABELS[everyone]))
        assert_close(found["efficient"][0], 2 * own)
        for name, (value, gradient) in expected.items():
            assert_close(found[name][0], 2 * value)
            if name != "memory":  # which holds others' embeddings, and the own ones, without a gradient
                assert_close(found[name][1], 2 * gradient[rows])
