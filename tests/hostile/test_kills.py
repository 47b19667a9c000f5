"""Commands that die by SIGKILL at an exact rename, a line of code, or a moment of the processor: nothing is left by half.

A case is run alone by its name: ``pytest tests/hostile/test_kills.py -m '' -k 'compact-line-3'``.
"""

import random
import signal

import pytest
from killed_operations import OPERATIONS, same_bits, write_inputs

# How many renames each makes: were there more, some would not be tried.
RENAMES = {"build": 5, "add": 2, "remove": 0, "compact": 2, "prune": 2, "backup": 1}
RENAMES |= {"restore": 4, "restore_new": 4, "embed": 1, "encoder": 2, "prepare": 1, "glyphs": 1, "train": 16}
AT_RENAMES = [(name, n, when) for name, most in RENAMES.items() for n in range(1, most + 1) for when in ("before", "after")]
TWICE = ["add", "replace", "remove", "compact", "prune", "restore"]  # in the quick tests; others once
SHARES = dict.fromkeys(OPERATIONS, 13) | {"train": 24, "build": 20, "compact": 20, "restore": 24}
MOMENTS = [(name, at, seed) for name, n in SHARES.items() for seed in range(n) for at in [("line", "cpu")[seed % 2]]]


@pytest.fixture(scope="session")
def inputs(warm, base, tmp_path_factory):
    return write_inputs(warm, base, tmp_path_factory.mktemp("inputs"))


@pytest.fixture(scope="session")
def whole(warm, inputs, tmp_path_factory):
    """Of an operation that nobody kills: the state before and after, the moments it has, and its processor time."""
    known = {}

    def run(name):
        if name not in known:
            operation, folder = OPERATIONS[name], tmp_path_factory.mktemp(name)
            states = []
            for kill in (None, {"at": "count"}):
                inside = folder / str(kill and "counted")
                inside.mkdir()
                operation.prepare(inputs, inside)
                before = operation.state(inside)
                outcome = warm.run(operation.steps(inputs, inside), inside, kill)
                assert [step["status"] for step in outcome.steps] == [0], outcome
                states.append((before, operation.state(inside), outcome.steps[0]))
            (before, after, timed), (_, _, counted) = states
            known[name] = before, after, counted["renames"], counted["lines"], timed["cpu"]
        return known[name]

    return run


def check(name, kill, warm, inputs, whole, folder):
    operation = OPERATIONS[name]
    before, after, *_ = whole(name)
    operation.prepare(inputs, folder)
    outcome = warm.run(operation.steps(inputs, folder), folder, kill)
    if kill["at"] == "cpu":
        assert outcome.signal in (None, signal.SIGPROF), f"{name}, {kill}: {outcome}"
    else:
        assert outcome.signal == signal.SIGKILL, f"{name}, {kill}: it did not die: {outcome}"
    what = f"{name} killed at {kill}"
    allowed = [before, after, *operation.middle(before, after)]
    found = operation.state(folder)
    if name != "train":  # a run under way is judged when it has ended
        assert any(same_bits(found, state) for state in allowed), f"{what}: neither what was before nor what comes after"
    if operation.checked and found is not None:
        verified = warm.run([("command", "index", "verify", folder / operation.checked)], folder)
        assert [step["status"] for step in verified.steps] == [0], f"{what}: verify says {verified}"
        assert same_bits(operation.state(folder), found), f"{what}: changed by verify"
    if operation.again or (found is None and name == "backup"):
        again = warm.run(operation.steps(inputs, folder), folder)
        assert [step["status"] for step in again.steps] == [0], f"{what}: run again it says {again}"
        assert same_bits(operation.state(folder), after), f"{what}: run again it ends elsewhere"


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_rename_is_tried(name, whole):
    assert whole(name)[2] == RENAMES[name]


def test_pruning_removes_and_adds(whole):
    before, after, *_ = whole("prune")
    assert [len(before), len(after), len({item[0] for item in before} & {item[0] for item in after})] == [28, 28, 24]


def marked(cases, is_quick):
    """All cases, most of them as slow ones."""
    return [pytest.param(*case, marks=() if is_quick(case) else pytest.mark.slow) for case in cases]


SAMPLE = random.Random(0).sample(AT_RENAMES, 12)


@pytest.mark.parametrize(("name", "n", "when"), marked(AT_RENAMES, SAMPLE.__contains__))
def test_killed_at_a_rename(name, n, when, warm, inputs, whole, tmp_path):
    check(name, {"at": "rename", "n": n, "when": when}, warm, inputs, whole, tmp_path)


@pytest.mark.parametrize(("name", "at", "seed"), marked(MOMENTS, lambda case: case[2] < 1 + (case[0] in TWICE)))
def test_killed_at_a_moment(name, at, seed, warm, inputs, whole, tmp_path):
    _, _, _, n_lines, cpu = whole(name)
    rng = random.Random(f"{name} {seed}")
    n = rng.randint(1, int(0.95 * n_lines)) if at == "line" else rng.uniform(0.001, cpu)
    check(name, {"at": at, "n": n}, warm, inputs, whole, tmp_path)
