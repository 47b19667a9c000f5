"""The tutorial on trademarks, every line as it stands: from a small package of icons to a service."""

import shutil
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from package_archives import random_blocks, write_iconify
from test_trademarks import LEAVES, leaf_icons

from sightline.data.readers.trademarks import reader
from test_shell_blocks import LINES, Terminal, small

PAGE = "tutorials/trademarks.md"
FEW = ["sampler.per_class=2", "sampler.skip_small_classes=true"]  # 96 training marks in place of 3,000


def for_few_marks(words):
    if words[:2] == ["data", "prepare"]:
        return words
    return [*small(words), *(FEW if words[0] == "train" else [])]


def test_every_line_runs_one_after_the_other(tmp_path, sightline, monkeypatch):
    rng = np.random.default_rng(0)
    icons = [name for code in LEAVES for name in leaf_icons()[code]]
    write_iconify(tmp_path, {prefix * 2: ("MIT", "UI", {name: random_blocks(rng) for name in icons}) for prefix in "pq"})
    (archive,) = (tmp_path / "npm").iterdir()

    @contextmanager
    def without_npm(packages, root, show_progress):
        yield [archive]

    monkeypatch.setattr(reader, "npm_archives", without_npm)
    monkeypatch.setitem(reader.SIZES, "small", 160)
    monkeypatch.chdir(tmp_path)
    assert len(LINES[PAGE]) < 10
    with closing(Terminal(sightline, monkeypatch, for_few_marks)) as terminal:
        for line in LINES[PAGE]:
            if "mark.png" in line and not Path("mark.png").exists():
                shutil.copy(sorted(Path("data/trademarks").rglob("*.png"))[0], "mark.png")
            terminal.run(line)
        answer = terminal.client.get("http://127.0.0.1:8000/v1/codes?field=codes").json()
    assert {"26", "29"} <= {one["code"] for one in answer["levels"][""]}
    for metric in ("h_ap", "map_label_2", "map_each_code"):
        assert metric in terminal.printed
    assert Path("each-code.csv").read_text().startswith("code,queries,items,ap")
    page = Path("marks.html").read_text(encoding="utf-8")
    assert "column codes" in page
