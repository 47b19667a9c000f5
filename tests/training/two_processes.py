"""One of two processes: ``torchrun --nproc-per-node 2 two_processes.py <command lines as JSON> <file>``.

Saves what every loss gives on this process's half of the batches, then runs the command lines one after the other.
"""

import json
import sys

import torch
from lightning_fabric import Fabric
from staged_batches import IN_PROCESSES, steps

from sightline.cli.main import run


def main(lines, file):
    torch.set_num_threads(1)
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
    fabric.launch()
    half = slice(8 * fabric.global_rank, 8 * fabric.global_rank + 8)
    torch.save({name: steps(fabric, name, half) for name in IN_PROCESSES}, f"{file}{fabric.global_rank}")
    for words in json.loads(lines):
        sys.argv = ["sightline", *words]
        try:
            run()
        except SystemExit as ended:
            if ended.code:
                raise


if __name__ == "__main__":
    main(*sys.argv[1:])
