"""How many threads a compiled loop runs in: as many as torch."""

from collections.abc import Iterator
from contextlib import contextmanager

import numba
import torch


@contextmanager
def torch_threads() -> Iterator[None]:
    """Inside, compiled loops use as many threads as torch does."""
    n_threads = torch.get_num_threads()
    numba.set_num_threads(min(n_threads, numba.config.NUMBA_NUM_THREADS))  # type: ignore[attr-defined]
    torch.set_num_threads(n_threads)  # numba's start sets the pool they share to all cores
    yield


def n_chunks(n_rows: int) -> int:
    """Parts in which a compiled loop works on so many rows."""
    return max(1, min(n_rows, torch.get_num_threads()))
