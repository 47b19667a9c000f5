"""One line on standard error while kernels are compiled, none where they come from disk."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import sightline

CODE = """
import numpy as np
from sightline.kernels.bucket_sort import bucket
from sightline.kernels.row_loops import look_up
found = np.empty((1, 3, 1), np.float32)
look_up(np.zeros((1, 1, 3), np.uint8), np.ones((256, 3), np.float32), found)
print(found.tolist(), bucket(0.5, 1.0, 4.0, 8.0, 1.0))
"""


def test_the_first_process_says_that_it_compiles_and_the_second_is_silent(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    runs = [
        subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, env=environment)
        for _ in range(2)
    ]
    assert [run.stdout for run in runs] == ["[[[1.0], [1.0], [1.0]]] 3\n"] * 2
    assert runs[0].stderr == "compiling kernels (once per installation) ...\n"
    assert runs[1].stderr == ""


def test_where_no_cache_can_be_written_kernels_are_compiled_all_the_same(tmp_path):
    copy = shutil.copytree(Path(sightline.__file__).parent, tmp_path / "sightline", ignore=lambda *_: {"__pycache__"})
    (copy / "kernels/__pycache__").touch()  # no folder, so that root cannot write there either
    (tmp_path / "home").touch()
    code = "import numpy as np; from sightline.kernels.bucket_sort import _insert as f; f(np.ones(2), np.ones(2), 2)"
    places = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home/x"), "PYTHONPATH": str(tmp_path)}
    environ = {key: value for key, value in os.environ.items() if key != "NUMBA_CACHE_DIR"} | places
    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("compiling kernels")
