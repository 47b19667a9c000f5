"""What the C library does with memory that is freed."""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # as <malloc.h> of glibc numbers them


def keep_freed_memory() -> bool:
    """Have this process keep the memory it frees, for what it asks for next; True where the C library can (glibc).

    A training step on a CPU frees and asks for the same gigabytes again. Left alone, glibc hands large blocks back to the
    system each time, which then clears and maps every page anew: a quarter of a step of EfficientNet-Lite0. The process
    stays as large as it ever was, so this is for commands that train, not for a library's caller.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, TypeError):  # another C library, or Windows
        return False
    return bool(mallopt(M_MMAP_MAX, 0) and mallopt(M_TRIM_THRESHOLD, -1))
