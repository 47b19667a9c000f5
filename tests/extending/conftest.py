"""Another package, installed beside Sightline, that adds something by an entry point; and a copy of Sightline that is
changed in the files that the architecture page names. Both are used in a process of their own.
"""

import re
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from changed_packages import run_python

import sightline

ARCHITECTURE = Path(__file__).parents[2] / "docs" / "architecture.md"
Python = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def changed_copy(tmp_path: Path) -> Callable[[str, dict[str, list[tuple[str, str]]]], Path]:
    """Change a copy of the package in exactly the files that the architecture page names for it; gives where it is."""

    def change(what: str, changes: dict[str, list[tuple[str, str]]]) -> Path:
        row = next(line for line in ARCHITECTURE.read_text().splitlines() if line.startswith(f"| {what} |"))
        named = re.findall(r"`([\w/]+\.\w+)`", row)
        assert named == list(changes)
        assert len(named) <= 3
        copy = tmp_path / "src" / "sightline"
        shutil.copytree(Path(sightline.__file__).parent, copy)
        for name, replaced in changes.items():
            text = (copy / name).read_text()
            for before, after in replaced:
                assert text.count(before) == 1, f"{name}: {before}"
                text = text.replace(before, after)
            (copy / name).write_text(text)
        return copy.parent

    return change


@pytest.fixture
def other_package(tmp_path: Path) -> Callable[[str, str, str, str], Python]:
    """Install a module with one entry point; returns what runs Python there, by ``-m`` or ``-c`` and so on."""

    def install(code: str, group: str, name: str, target: str) -> Python:
        site = tmp_path / "site"
        folder = site / "others-1.0.dist-info"
        folder.mkdir(parents=True)
        (site / "others.py").write_text(code)
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[{group}]\n{name} = others:{target}\n")
        return partial(run_python, site, tmp_path)

    return install
