"""The pages in ``docs``: made ones are up to date, and their Python runs."""

import re
import runpy
from collections import Counter
from pathlib import Path

import pytest
import torch

from sightline.losses import LOSSES

DOCS = Path(__file__).parent.parent / "docs"
WITH_CODE = {"detector.md": 1, "hierarchy.md": 2, "losses.md": 1, "ood.md": 1, "reports.md": 1, "search.md": 1}  # blocks


@pytest.mark.parametrize("page", WITH_CODE)
def test_python_runs(page):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.S)
    assert len(blocks) == WITH_CODE[page]
    torch.manual_seed(0)
    names = {}
    for block in blocks:
        exec(block, names)
    if page == "detector.md":
        assert names["last"] < names["first"] / 2


def test_page_of_losses_is_up_to_date():
    made = runpy.run_path(str(DOCS / "make_losses.py"))["page"]()
    assert (DOCS / "losses.md").read_text() == made, "run python docs/make_losses.py"


def test_page_of_losses_has_all_and_says_nothing_twice():
    text = (DOCS / "losses.md").read_text()
    assert sorted(re.findall(r"^### `(\w+)`$", text, flags=re.M)) == sorted([*LOSSES, "class_map", "all_classes_ap"])
    sentences = Counter(re.split(r"(?<=[.:;])\s+", text))
    assert [sentence for sentence, n in sentences.items() if n > 1 and len(sentence) > 50] == []
