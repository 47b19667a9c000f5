"""Another package, installed beside Sightline, that adds something by an entry point; used in a process of its own."""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def other_package(tmp_path: Path) -> Callable[[str, str, str, str], Callable[..., subprocess.CompletedProcess[str]]]:
    """Install a module with one entry point; returns what runs Python there, by ``-m`` or ``-c`` and so on."""

    def install(code: str, group: str, name: str, target: str) -> Callable[..., subprocess.CompletedProcess[str]]:
        site = tmp_path / "site"
        folder = site / "others-1.0.dist-info"
        folder.mkdir(parents=True)
        (site / "others.py").write_text(code)
        (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: others\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[{group}]\n{name} = others:{target}\n")
        path = os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])])

        def python(*words: object) -> subprocess.CompletedProcess[str]:
            done = subprocess.run(
                [sys.executable, *map(str, words)],
                env=os.environ | {"PYTHONPATH": path},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
            )
            assert "Traceback" not in done.stderr, done.stderr
            return done

        return python

    return install
