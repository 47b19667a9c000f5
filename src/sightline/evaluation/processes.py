"""The processes that ``torchrun`` starts, joined for an evaluation."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist


@contextmanager
def joined_processes() -> Iterator[bool]:
    """Inside, the processes of ``torchrun`` share the queries of an evaluation; True in the one that prints and writes."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield True
        return
    dist.init_process_group("gloo")
    try:
        yield dist.get_rank() == 0
        dist.barrier()
    finally:
        dist.destroy_process_group()
