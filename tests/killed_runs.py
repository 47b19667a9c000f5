"""Train in processes that die by SIGKILL: ``python killed_runs.py <manifest> <out> <overrides> <moments>``.

A moment is ``what:number``: the number-th step, validation, checkpoint or encoder from the start of that process, in the
middle of it (a checkpoint half written), or ``time:milliseconds`` after training began. Processes are forked from this one,
which imports but never computes, so that each starts at once. Prints how many died.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import torch

import sightline.models.encoder as encoder
import sightline.training.run as training_run
from sightline import read_recipe
from sightline.training import engine

MOMENTS = ("step", "validation", "checkpoint", "encoder", "time")


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def half_written(file: Path | BinaryIO) -> None:
    """Cut what was saved to a path or an open stream in half."""
    if isinstance(file, Path):
        os.truncate(file, file.stat().st_size // 2)
    else:
        file.truncate(file.tell() // 2)


def arm(what: str, number: int) -> None:
    """Let this process die at that moment."""
    left = [number]

    def dying(call: Callable[..., Any], first: Callable[..., None] = lambda *_, **__: None) -> Callable[..., Any]:
        def instead(*args: Any, **kwargs: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                first(*args, **kwargs)
                die()
            return call(*args, **kwargs)

        return instead

    if what == "step":
        engine.back_propagate = dying(engine.back_propagate, engine.back_propagate)  # before the optimizer moves
    elif what == "validation":
        training_run.evaluate_table = dying(training_run.evaluate_table)
    elif what == "checkpoint":
        save = torch.save
        torch.save = dying(save, lambda state, file: (save(state, file), half_written(file)))
    elif what == "encoder":
        save_file = encoder.save_file
        encoder.save_file = dying(save_file, lambda state, file: (save_file(state, file), half_written(file)))
    else:
        fit = training_run.TrainingRun.fit

        def timed(*args: Any, **kwargs: Any) -> Any:
            threading.Timer(number / 1000, die).start()
            return fit(*args, **kwargs)

        training_run.TrainingRun.fit = timed


def main(manifest: str, out: str, overrides: str, moments: str) -> None:
    died = 0
    for what, number in (moment.split(":") for moment in json.loads(moments)):
        child = os.fork()
        if child == 0:
            try:
                arm(what, int(number))
                training_run.train(
                    read_recipe("images", [f"data.manifest={manifest}", *json.loads(overrides)]), Path(out), True
                )
            except BaseException as error:
                sys.stderr.write(f"{what}:{number}: {error!r}\n")
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status) and os.WEXITSTATUS(status):
            sys.exit(1)
        died += os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
    sys.stdout.write(f"{died}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
