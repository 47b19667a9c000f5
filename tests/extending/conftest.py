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

import sightline
from changed_packages import run_python, write_package

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
def other_package(tmp_path: Path) -> Callable[..., Python]:
    """Install the module ``others`` with entry points; returns what runs Python there, by ``-m`` or ``-c`` and so on."""

    def install(code: str, **entries: str) -> Python:
        write_package(tmp_path / "site", "others", code, **entries)
        return partial(run_python, tmp_path / "site", tmp_path)

    return install
