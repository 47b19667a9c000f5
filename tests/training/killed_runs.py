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
from pathlib import Path

import torch

import sightline.models.encoder as encoder
import sightline.training.run as training_run
from sightline import read_recipe
from sightline.training import engine


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def half_written(save):
    """Save to a path or an open stream, and cut what was saved in half."""

    def instead(state, file):
        save(state, file)
        if isinstance(file, Path):
            os.truncate(file, file.stat().st_size // 2)
        else:
            file.truncate(file.tell() // 2)

    return instead


def arm(what, number):
    """Let this process die at that moment."""
    left = [number]

    def dying(call, first=lambda *_, **__: None):
        def instead(*args, **kwargs):
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
        torch.save = dying(torch.save, half_written(torch.save))
    elif what == "encoder":
        encoder.save_file = dying(encoder.save_file, half_written(encoder.save_file))
    else:
        fit = training_run.TrainingRun.fit
        training_run.TrainingRun.fit = lambda *args: (threading.Timer(number / 1000, die).start(), fit(*args))[1]


def main(manifest, out, overrides, moments):
    died = 0
    for what, number in (moment.split(":") for moment in json.loads(moments)):
        child = os.fork()
        if child == 0:
            try:
                arm(what, int(number))
                recipe = read_recipe("images", [f"data.manifest={manifest}", *json.loads(overrides)])
                training_run.train(recipe, out, resume=True)
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
