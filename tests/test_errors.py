import ast
from pathlib import Path

import pytest

import sightline
from refusals import REMEDY
from sightline.errors import SHOWN_FAULTS, SHOWN_NAMES, InputError, choose, names, nearest, raise_faults


def test_nearest_suggests_a_close_name_or_lists_what_there_is():
    assert nearest("smooth-ap", (word for word in ["sup_ap", "smooth_ap"])) == "did you mean 'smooth_ap'?"
    assert nearest("zzz", ["sup_ap", "roadmap"]) == "known: 'roadmap', 'sup_ap'"
    known = [f"name{number:03}" for number in range(SHOWN_NAMES + 7)]
    assert nearest("zzz", known) == f"known: {names(known[:SHOWN_NAMES])} and 7 more"
    assert nearest("zzz", known[:SHOWN_NAMES]) == f"known: {names(known[:SHOWN_NAMES])}"


def test_choose_returns_the_value_or_names_the_kind_of_thing():
    assert choose({"a": 0, "b": 2}, "a", "letter") == 0
    with pytest.raises(ValueError, match=r"optimizer 'adma'.*'adam'"):
        choose({"adam": 1, "sgd": 2}, "adma", "optimizer")


@pytest.mark.parametrize("n_faults", [0, 1, 2, SHOWN_FAULTS, SHOWN_FAULTS + 980])
def test_faults_are_listed_up_to_a_number_and_all_counted(n_faults):
    faults = [f"line {number}: bad" for number in range(n_faults)]
    if not faults:
        raise_faults("file.csv", faults)
        return
    with pytest.raises(InputError) as caught:
        raise_faults("file.csv", faults)
    first, *shown = str(caught.value).split("\n  ")
    assert first == f"file.csv: {n_faults} fault{'s' if n_faults > 1 else ''}"
    assert shown == faults[:SHOWN_FAULTS] + (["... and 980 more"] if n_faults > SHOWN_FAULTS else [])


WRITTEN_BY = {"serve/service.py": "ood/drift.py"}  # its warning is a sentence that another file makes


def emits_a_warning(node):
    """Is it a call that warns, or one that makes a finding which is no fault?"""
    if not isinstance(node, ast.Call):
        return False
    is_fault = any(one.arg == "is_fault" and getattr(one.value, "value", None) is True for one in node.keywords)
    return ast.unparse(node.func) in ("warnings.warn", "LOG.warning") or (
        ast.unparse(node.func) == "Finding" and not is_fault
    )


def test_each_warning_names_a_remedy():
    package, silent, n_warnings = Path(sightline.__file__).parent, [], 0
    for file in sorted(package.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            warns = sum(map(emits_a_warning, ast.walk(function)))
            n_warnings += warns
            other = WRITTEN_BY.get(file.relative_to(package).as_posix())
            text = ast.parse((package / other).read_text(encoding="utf-8")) if other else function
            words = [
                node.value for node in ast.walk(text) if isinstance(node, ast.Constant) and isinstance(node.value, str)
            ]
            if warns and not any(map(REMEDY.search, words)):
                silent.append(f"{file.name}: {function.name}")
    assert silent == []
    assert n_warnings >= 15
