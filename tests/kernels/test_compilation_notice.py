"""One line on standard error while kernels are compiled, none where they come from disk."""

import os
import subprocess
import sys

CODE = """
import numpy as np
from sightline.kernels.bucket_sort import bucket
from sightline.kernels.row_loops import look_up
found = np.empty((1, 3), np.float32)
look_up(np.zeros((1, 3), np.uint8), np.ones((256, 3), np.float32), found)
print(found.tolist(), bucket(0.5, 1.0, 4.0, 8.0, 1.0))
"""


def test_the_first_process_says_that_it_compiles_and_the_second_is_silent(tmp_path):
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(sys.path)}
    runs = [
        subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, env=environment)
        for _ in range(2)
    ]
    assert [run.stdout for run in runs] == ["[[1.0, 1.0, 1.0]] 3\n"] * 2
    assert runs[0].stderr == "compiling kernels (once per installation) ...\n"
    assert runs[1].stderr == ""
