"""Hard negatives of the whole training set: found as by brute force, put into batches, kept by a run that was stopped."""

import numpy as np
import pytest
import torch
from run_files import assert_same_run

from sightline import train
from sightline.data.samplers import SamplerSection, create_sampler
from sightline.ranking import nearest
from sightline.ranking.nearest import hard_negatives
from sightline.training.run_folder import load_checkpoint


def by_brute_force(vectors, classes, query, n):
    """One item at a time: best first, the first of each class."""
    scores = torch.nn.functional.normalize(vectors, dim=1) @ torch.nn.functional.normalize(vectors[query], dim=0)
    rows, met = [], {int(classes[query])}
    for row in sorted(range(len(vectors)), key=lambda row: (-round(scores[row].item(), 9), int(classes[row]), row)):
        if int(classes[row]) not in met:
            met.add(int(classes[row]))
            rows.append(row)
    return (rows + [-1] * n)[:n]


@pytest.mark.parametrize("n", [1, 4, 9])
def test_hard_negatives_are_those_of_brute_force(n, monkeypatch):
    generator = torch.Generator().manual_seed(n)
    vectors = torch.randn(40, 5, generator=generator).double()
    vectors[7] = vectors[3]
    classes = torch.randint(0, 7, (40,), generator=generator)
    expected = [by_brute_force(vectors, classes, query, n) for query in range(40)]
    assert hard_negatives(vectors, classes, vectors, classes, n).tolist() == expected
    monkeypatch.setattr(nearest, "BLOCK_ELEMENTS", 160)
    assert hard_negatives(vectors[5:9], classes[5:9], vectors, classes, n).tolist() == expected[5:9]
    assert hard_negatives(vectors[:2], classes[:2] * 0, vectors, classes * 0, n).tolist() == [[-1] * n] * 2


def test_a_batch_holds_a_class_and_the_nearest_images_of_others():
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(12), 5)
    vectors = torch.from_numpy(rng.normal(size=(60, 4)))
    classes = torch.from_numpy(labels)
    section = SamplerSection(name="hard_negatives", batch_size=12, per_class=3)
    sampler = create_sampler(section, labels, seed=1)

    def find(rows):
        return hard_negatives(vectors[rows], classes[rows], vectors, classes, 3).numpy()

    batches = sampler.mined(0, find)
    plain = sampler.batches(0)
    assert batches == sampler.mined(0, find) != sampler.mined(1, find)
    assert len(batches) == len(plain)
    for batch, drawn in zip(batches, plain, strict=True):
        assert batch[:3] == drawn[:3]
        assert len({*batch}) == 12
        assert [labels[batch[start : start + 3]].tolist() for start in range(0, 12, 3)] == [
            [labels[batch[start]]] * 3 for start in range(0, 12, 3)
        ]
        wanted = []
        for place in range(3):
            for image in drawn[:3]:
                row = by_brute_force(vectors, classes, image, 3)[place]
                if labels[row] not in [labels[one] for one in wanted]:
                    wanted.append(row)
        assert batch[3::3] == wanted[:3]


def test_a_run_stopped_within_an_epoch_goes_on_with_the_batches_that_were_mined(recipe_with, tmp_path):
    more = ["sampler.name=hard_negatives", "loss={name='contrastive'}", "schedule.epochs=2", "data.val_fraction=0.3"]
    train(recipe_with(*more), tmp_path / "whole")
    train(recipe_with(*more), tmp_path / "stopped", max_minutes=0)
    position, state = load_checkpoint(tmp_path / "stopped/last.pt")
    assert position.batch == 1
    assert state["mined"]
    train(recipe_with(*more), tmp_path / "stopped", resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "stopped")
