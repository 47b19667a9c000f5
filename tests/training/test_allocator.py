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
KEPT_AND_RELEASED = """
import re
from pathlib import Path
import numpy as np
from sightline.training.allocator import keep_freed_memory, release_freed_memory

def kilobytes():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

keep_freed_memory()
before = kilobytes()
blocks = [np.full(1 << 24, 1, np.uint8) for _ in range(8)]
last = np.full(1 << 10, 1, np.uint8)  # stays, above them
del blocks
kept = kilobytes() - before
release_freed_memory()
print(kept, kilobytes() - before)
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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc_trim is glibc's")
def test_what_was_kept_is_handed_back_when_asked_for():
    done = subprocess.run([sys.executable, "-c", KEPT_AND_RELEASED], capture_output=True, text=True, check=True)
    kept, released = map(int, done.stdout.split())
    assert kept > 100_000  # kB
    assert released < 20_000


def test_another_c_library_is_left_alone(monkeypatch):
    from sightline.training import allocator

    monkeypatch.setattr(allocator.ctypes, "CDLL", lambda name: object())
    assert allocator.keep_freed_memory() is False
    allocator.release_freed_memory()
