"""What the C library does with memory that is freed."""

import ctypes
from typing import Any

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # as <malloc.h> of glibc numbers them


def _of_glibc(name: str) -> Any:
    """A function of the C library; None where it is another one, or Windows."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, TypeError):
        return None


def keep_freed_memory() -> bool:
    """Have this process keep the memory it frees, for what it asks for next; True where the C library can (glibc).

    A training step on a CPU frees and asks for the same gigabytes again. Left alone, glibc hands large blocks back to the
    system each time, which then clears and maps every page anew: a quarter of a step of EfficientNet-Lite0. The process
    stays as large as it ever was, so this is for commands that train, not for a library's caller.
    """
    mallopt = _of_glibc("mallopt")
    return mallopt is not None and bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, -1))


def release_freed_memory() -> None:
    """Hand back to the system what this process has freed and kept, wherever it lies; nothing where the C library cannot.

    What a stage leaves behind in blocks of other sizes would otherwise lie idle beside those of the next one.
    """
    trim = _of_glibc("malloc_trim")
    if trim is not None:
        trim(0)
