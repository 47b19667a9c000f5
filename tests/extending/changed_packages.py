"""Python in a process of its own that sees another package, or a changed one."""

import os
import subprocess
import sys
from pathlib import Path


def run_python(path: Path, cwd: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """Python with a folder before all others on its path."""
    joined = os.pathsep.join([str(path), *filter(None, [os.environ.get("PYTHONPATH")])])
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, env=os.environ | {"PYTHONPATH": joined}, cwd=cwd, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    return done
