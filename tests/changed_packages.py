"""Another package with entry points, and Python in a process of its own that sees it, or a changed Sightline."""

import os
import subprocess
import sys
from pathlib import Path


def write_package(site: Path, module: str, code: str, **entries: str) -> None:
    """Install a module with an entry point, ``name = module:object``, in each of some groups of Sightline's."""
    folder = site / f"{module}-1.0.dist-info"
    folder.mkdir(parents=True)
    (site / f"{module}.py").write_text(code)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
    groups = [f"[sightline.{group}]\n{lines}\n" for group, lines in entries.items()]
    (folder / "entry_points.txt").write_text("".join(groups))


def run_python(path: Path, cwd: Path, *words: object, status: int = 0) -> subprocess.CompletedProcess[str]:
    """Python with a folder before all others on its path; it ends with the status and without a traceback."""
    joined = os.pathsep.join([str(path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": joined}, cwd=cwd, capture_output=True, text=True)
    assert (done.returncode, "Traceback" in done.stderr) == (status, False), done.stderr
    return done
