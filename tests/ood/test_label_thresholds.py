"""Thresholds by label: the share promised for each label, by simulation; saved, loaded, judged by; their command."""

import dataclasses

import numpy as np
import pytest
from test_rejector import table

from refusals import assert_refused
from sightline.ood.label_thresholds import fit_label_thresholds, nearest_label
from sightline.ood.rejector import Rejector, fit_rejector

SCALES = np.array([1.0, 3.0, 10.0])  # of the energies of three labels: one threshold for all suits none


def drawn(rng, n):
    """Noisy vectors about three axes, and energies whose scale depends on the axis."""
    labels = rng.integers(0, 3, n)
    return (np.eye(3)[labels] + 0.3 * rng.normal(size=(n, 3))).astype(np.float32), rng.exponential(SCALES[labels])


@pytest.mark.parametrize("tpr", [0.8, 0.95])
def test_each_label_is_accepted_as_promised(tpr):
    rng = np.random.default_rng(0)
    axes, accepted, by_common, above = np.eye(3, dtype=np.float32), [[], [], []], [[], [], []], [[], [], []]
    for _ in range(400):
        held_out, queries = drawn(rng, 90), drawn(rng, 60)
        found = fit_label_thresholds((axes, np.arange(3)), held_out, ["a", "b", "c"], 0, tpr)
        common = np.quantile(held_out[1], tpr)
        limits, groups = found.of(queries[0], common), nearest_label(queries[0], found.means)
        for label in range(3):
            if found.names[label] not in found.without:
                mine = groups == label
                accepted[label] += [(queries[1] <= limits)[mine].mean()] if mine.any() else []
                by_common[label] += [(queries[1] <= common)[mine].mean()] if mine.any() else []
                above[label].append(1 / (found.counts[label] + 1))
    for label in range(3):
        error = np.std(accepted[label]) / len(accepted[label]) ** 0.5
        assert tpr - 3 * error < np.mean(accepted[label]) < tpr + np.mean(above[label]) + 3 * error
    shares = [np.mean(shares) for shares in by_common]
    assert max(shares) - min(shares) > 0.15


def test_labels_with_too_few_images_have_the_common_threshold():
    rng, axes = np.random.default_rng(0), np.eye(3, dtype=np.float32)
    held_out = np.repeat(axes, [19, 18, 0], axis=0), rng.normal(size=37)
    found = fit_label_thresholds((axes, np.arange(3)), held_out, ["a", "b", "c"], 0, 0.95)
    assert (found.without, found.counts.tolist()) == (["b", "c"], [19, 18, 0])
    assert found.of(axes, 7.0).tolist() == [held_out[1][:19].max(), 7, 7]
    assert "1 of 3 labels of level 0" in found.as_text()
    assert "for 'b', 'c': the common" in found.as_text()
    assert_refused(r"\(N, 3\), got shape \(2, 2\)", found.of, np.zeros((2, 2)), 7.0)


def test_judged_by_saved_and_loaded(tmp_path):
    plain = fit_rejector(table(800), "gmm", tpr=0.9)
    made = fit_rejector(table(800), "gmm", tpr=0.9, per_label=0)
    assert (made.scorer.threshold, made.by_label.level) == (plain.scorer.threshold, 0)
    assert list(made.by_label.names) == [f"c{label}" for label in range(8)]
    queries = table(60, seed=1)
    limits = made.by_label.of(queries.vectors, made.scorer.threshold)
    assert len(set(limits)) > 3
    verdicts = made.judge(queries.vectors)
    assert [verdict.threshold for verdict in verdicts] == limits.tolist()
    assert [verdict.belongs for verdict in verdicts] == (made.energies(queries) <= limits).tolist()
    loaded = Rejector.load(made.save(tmp_path / "r"))
    assert loaded.judge(queries.vectors) == verdicts
    assert dataclasses.replace(loaded, by_label=None).judge(queries.vectors) == plain.judge(queries.vectors)
    again = Rejector.load(loaded.save(tmp_path / "again"))
    np.testing.assert_array_equal(again.thresholds(queries), limits)
    stored = tmp_path / "r" / "labels.safetensors"
    stored.write_bytes(stored.read_bytes()[:-1] + b"\x01")
    assert_refused("not the settings of a rejector: .*damaged", Rejector.load, tmp_path / "r")
    assert_refused("per_label .* 1, got 1", fit_rejector, table(50), "gmm", per_label=1)


def test_commands(sightline, tmp_path):
    file = table(1600).write(tmp_path / "t.parquet")
    fit = ["ood", "fit", file, "--out", tmp_path / "r", "--scorer", "gmm", "--per-label"]
    status, out, err = sightline(*fit, 0)
    assert (status, "8 of 8 labels of level 0" in out) == (0, True), err
    other = table(60, seed=1).write(tmp_path / "o.parquet")
    status, out, err = sightline("ood", "evaluate", tmp_path / "r", "--in", file, "--out-sets", f"o={other}")
    made = Rejector.load(tmp_path / "r")
    share = np.mean([not verdict.belongs for verdict in made.judge(table(60, seed=1).vectors)])
    assert (status, f"{100 * share:.1f} % of o" in out) == (0, True), err
    (tmp_path / "log").write_text("")
    status, _, err = sightline("ood", "recalibrate", tmp_path / "r", tmp_path / "log")
    assert (status, "thresholds by label" in err) == (2, True)
    assert sightline(*fit, 3)[0] == 2
