import ast
from pathlib import Path

import sightline
from refusals import REMEDY, assert_refused
from sightline.errors import SHOWN_FAULTS, SHOWN_NAMES, choose, names, nearest, raise_faults


def test_nearest_suggests_a_close_name_or_lists_what_there_is():
    assert nearest("smooth-ap", (word for word in ["sup_ap", "smooth_ap"])) == "did you mean 'smooth_ap'?"
    assert nearest("zzz", ["sup_ap", "roadmap"]) == "known: 'roadmap', 'sup_ap'"
    known = [f"name{number:03}" for number in range(SHOWN_NAMES + 7)]
    assert nearest("zzz", known) == f"known: {names(known[:SHOWN_NAMES])} and 7 more"
    assert nearest("zzz", known[:SHOWN_NAMES]) == f"known: {names(known[:SHOWN_NAMES])}"


def test_choose_returns_the_value_or_names_the_kind_of_thing():
    assert choose({"a": 0, "b": 2}, "a", "letter") == 0
    assert_refused(r"optimizer 'adma'.*'adam'", choose, {"adam": 1, "sgd": 2}, "adma", "optimizer")


def test_faults_are_listed_up_to_a_number_and_all_counted():
    raise_faults("file.csv", [])
    for n_faults in (1, 2, SHOWN_FAULTS, SHOWN_FAULTS + 980):
        faults = [f"line {number}: bad" for number in range(n_faults)]
        first, *shown = assert_refused("bad", raise_faults, "file.csv", faults).split("\n  ")
        assert first == f"file.csv: {n_faults} fault{'s' if n_faults > 1 else ''}"
        assert shown == faults[:SHOWN_FAULTS] + (["... and 980 more"] if n_faults > SHOWN_FAULTS else [])


WRITTEN_BY = {"serve/service.py": "ood/drift.py"}  # its warning is a sentence that another file makes


def emits_a_warning(node):
    """Is it a call that warns, or one that makes a finding which is no fault?"""
    if not isinstance(node, ast.Call):
        return False
    is_fault = any(one.arg == "is_fault" and getattr(one.value, "value", None) is True for one in node.keywords)
    name = ast.unparse(node.func)
    return name in ("warnings.warn", "LOG.warning") or (name == "Finding" and not is_fault)


def test_each_warning_names_a_remedy():
    package, silent, n_warnings = Path(sightline.__file__).parent, [], 0
    for file in sorted(package.rglob("*.py")):
        nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        for function in (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            if not (warns := sum(map(emits_a_warning, ast.walk(function)))):
                continue
            n_warnings += warns
            other = WRITTEN_BY.get(file.relative_to(package).as_posix())
            text = ast.parse((package / other).read_text(encoding="utf-8")) if other else function
            constants = [node.value for node in ast.walk(text) if isinstance(node, ast.Constant)]
            if not any(REMEDY.search(words) for words in constants if isinstance(words, str)):
                silent.append(f"{file.name}: {function.name}")
    assert silent == []
    assert n_warnings >= 15
