"""A tie rule from another package, in Python, by its name and by its path."""

CODE = '''
import torch
from sightline.evaluation.statistics import TieRule, list_statistics

def best_order(scores, levels, n_levels, ks):
    """The statistics of one strict list, of equal scores the higher level first."""
    higher_first = levels.argsort(dim=1, descending=True, stable=True)
    sorted_scores = scores.masked_fill(levels < 0, -torch.inf).gather(1, higher_first)
    order = higher_first.gather(1, sorted_scores.argsort(dim=1, descending=True, stable=True))
    return list_statistics(levels.gather(1, order), n_levels, ks)

BEST = TieRule("Of equal scores the item of the higher level comes first.", best_order)
'''
IN_PYTHON = """
import sightline as sl
from sightline.evaluation.statistics import TIES
vectors, labels = [[1.0, 0.0]] * 3 + [[0.0, 1.0]], [0, 0, 1, 2]  # three copies: every list of theirs is one tie
print(TIES.names())
for ties, trust in (("worst", False), ("best", False), ("others:BEST", True)):
    print(sl.evaluate(vectors, labels, metrics=["map"], ties=ties, trust=trust)["map"])
for ties in ("bset", "others:BEST"):
    try:
        sl.evaluate(vectors, labels, ties=ties)
    except sl.InputError as error:
        print(error)
"""


def test_a_tie_rule_of_another_package_orders_equal_scores(other_package):
    names, worst, best, by_path, misspelt, untrusted = other_package(CODE, "sightline.ties", "best", "BEST")(
        "-c", IN_PYTHON
    ).stdout.splitlines()
    assert names == "['best', 'counting', 'worst']"
    assert [worst, best, by_path] == ["0.5", "1.0", "1.0"]
    assert "'bset'" in misspelt
    assert "'best'" in misspelt
    assert "'others'" in untrusted
    assert "trust" in untrusted
