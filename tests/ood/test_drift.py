"""Drift of a rejector in service: the alarm's band, and recalibration from a log."""

import json

import numpy as np
from scipy.stats import binomtest

from refusals import assert_refused
from sightline import ood
from sightline.ood.drift import WINDOW, Drift, logged_energies
from sightline.ood.rejector import Rejector


def test_alarm_goes_on_where_an_exact_test_rejects_and_off_again():
    drift, sentences = Drift(), []
    refused = np.random.default_rng(0).random(6000) < np.repeat([0.05, 0.12, 0.05], 2000)
    for place, one in enumerate(refused):
        if sentence := drift.add(bool(one), 0.95):
            sentences.append(sentence)
        last = refused[max(0, place + 1 - WINDOW) : place + 1]
        if place % 50 == 0 and len(last) >= 200 and not 3e-4 < binomtest(int(last.sum()), len(last), 0.05).pvalue < 3e-3:
            assert drift.alarmed == (binomtest(int(last.sum()), len(last), 0.05).pvalue < 1e-3)
    assert ["normal" in sentence for sentence in sentences[:2]] == [False, True]
    assert not drift.alarmed
    few = Drift()
    assert not any(few.add(True, 0.95) for _ in range(199))
    assert "200 of the last 200" in few.add(True, 0.95)


def test_recalibration_from_a_log(sightline, tmp_path):
    rng = np.random.default_rng(0)
    scorer = ood.create("gmm", normalise=False).fit(rng.normal(size=(300, 3)))
    before = scorer.calibrate(rng.normal(size=(200, 3)))
    folder = Rejector(scorer, "a" * 32, "flag", 0.5).save(tmp_path / "rejector")
    energies = scorer.score(1.2 * rng.normal(size=(499, 3)))
    line = {"event": "verdict", "gallery": "g", "threshold": before, "refused": False}
    other = [{**line, "threshold": before + 1, "energy": 1e9}, {**line, "event": "request"}]
    lines = [json.dumps(one) for one in [*({**line, "energy": energy} for energy in energies), *other]]
    (log := tmp_path / "log").write_text("\n".join(["starting", *lines, "[1]", ""]))
    assert logged_energies(log, before) == energies.tolist()
    status, out, err = sightline("ood", "recalibrate", folder, log, "--tpr", 0.9)
    assert status == 0, err
    loaded = Rejector.load(folder)
    assert loaded.scorer.threshold == np.sort(energies)[449]
    assert (loaded.scorer.acceptance, loaded.policy, loaded.similarity_threshold) == (0.9, "flag", 0.5)
    assert f"{before:.4g}" in out
    assert "499" in out
    for given, threshold in (("h", before), (None, before + 5)):
        assert_refused("found none", logged_energies, log, threshold, given)
    assert_refused("none: no such file", logged_energies, tmp_path / "none", before)
    log.write_text(log.read_text() + "\n".join([json.dumps({**line, "gallery": name, "energy": 0.5}) for name in "ab"]))
    assert_refused(r"'a', 'b', 'g'.* --gallery", logged_energies, log, before)
