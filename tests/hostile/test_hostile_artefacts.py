"""Artefacts from somebody else, damaged, forged or full of links: no command crashes, hangs, or leaves their folder.

A case is run alone by its name: ``pytest tests/hostile -m '' -k gallery-gallery.db-sql_no_state``.
"""

import pytest
from hostile_cases import CASES, sample
from sandbox import Watcher, contents, differences

SAMPLE = sample(80)


def test_there_are_enough_cases():
    assert len(CASES) >= 500
    assert len({case.name for case in CASES}) == len(CASES)
    assert {case.kind for case in SAMPLE} == {case.kind for case in CASES}


@pytest.mark.parametrize(
    "case", [pytest.param(case, id=case.name, marks=() if case in SAMPLE else pytest.mark.slow) for case in CASES]
)
def test_a_hostile_artefact(case, base, warm, tmp_path):
    artefact = case.prepare(base, tmp_path)
    out, beside = tmp_path / "out", tmp_path / "beside"
    steps = case.steps(base, artefact, out)
    before = contents(tmp_path, (out, artefact))
    watcher = Watcher(beside)
    outcome = warm.run(steps, out)
    touched = watcher.events()
    faults = outcome.faults() + differences(before, contents(tmp_path, (out, artefact)))
    if not case.may_read_beside:
        faults += sorted(touched)
    assert not faults, f"{case.name}: {len(faults)} fault(s)\n" + "\n".join(faults)
