"""Freed memory is kept, and handed out again without a page fault."""

import platform
import subprocess
import sys

import pytest

PROGRAM = """
import resource
import numpy as np
from sightline.training.allocator import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.full(1 << 26, 1, np.uint8)  # written and freed; above what glibc keeps by itself
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

left_alone = [faults() for _ in range(3)]
assert keep_freed_memory()
print(min(left_alone), max([faults() for _ in range(4)][1:]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_pages_are_not_mapped_anew_for_what_was_freed_before():
    # Large pages of the system would hide what is counted: numpy asks for them.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env={"NUMPY_MADVISE_HUGEPAGE": "0"}
    )
    left_alone, kept = map(int, done.stdout.split())
    assert left_alone > 10_000  # 64 MB have 16,384 pages
    assert kept < 100


def test_another_c_library_is_left_alone(monkeypatch):
    from sightline.training import allocator

    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    assert allocator.keep_freed_memory() is False
