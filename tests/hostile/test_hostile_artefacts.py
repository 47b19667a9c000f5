"""Artefacts from somebody else, damaged, forged or full of links: no command crashes, hangs, or leaves their folder.

A case is run alone by its name: ``pytest tests/hostile -m '' -k gallery-gallery.db-sql_no_state``.
"""

import pytest
from hostile_cases import CASES, sample
from sandbox import Watcher, contents, differences

SAMPLE = sample(80)


def check(case, base, warm, sandbox):
    artefact = case.prepare(base, sandbox)
    out, beside = sandbox / "out", sandbox / "beside"
    steps = case.steps(base, artefact, out)
    outside = (out, artefact)
    before = contents(sandbox, outside)
    watcher = Watcher(beside)
    outcome = warm.run(steps, sandbox / "out")
    touched = watcher.events()
    faults = outcome.faults() + differences(before, contents(sandbox, outside))
    if not case.may_read_beside:
        faults += sorted(touched)
    assert not faults, f"{case.name}: {len(faults)} fault(s)\n" + "\n".join(faults)


def test_there_are_enough_cases():
    assert len(CASES) >= 500
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.kind for case in SAMPLE} == {case.kind for case in CASES}


@pytest.mark.parametrize("case", SAMPLE, ids=lambda case: case.name)
def test_some_hostile_artefacts(case, base, warm, tmp_path):
    check(case, base, warm, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_hostile_artefact(case, base, warm, tmp_path):
    check(case, base, warm, tmp_path)
