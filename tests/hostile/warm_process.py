"""A process that has imported everything and computed nothing, and forks a child for each request.

As a script it reads requests, one JSON object a line, and answers each with one: what every step of the child printed, how
it ended and how much processor time it took. Starting Python 500 times would take half an hour; forking takes seconds.
"""

import importlib
import io
import json
import os
import pkgutil
import resource
import select
import signal
import sys
import threading
import traceback
from pathlib import Path

import faiss
import numpy as np
import torch
from PIL import Image

import sightline
from sightline import Encoder, files
from sightline.cli.main import run
from sightline.data.readers import glyphs
from sightline.errors import InputError
from sightline.gallery.query import QueryOptions
from sightline.serve.collection import Collection, SearchJob
from sightline.serve.schemas import Problem

CPU_SECONDS = 10
ASLEEP = 15  # seconds that a child may sleep at a stretch; one that the machine gives no time to is not asleep
IDLE_TICKS = 2  # of processor time a second, which threads of libraries take while nothing happens
MORE_MEMORY = 3 << 30
LARGEST_FILE = 1 << 30


def import_all():
    for module in pkgutil.walk_packages(sightline.__path__, "sightline."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    for name in ("matplotlib.pyplot", "sklearn.manifold", "lightning_fabric", "torch.utils.tensorboard"):
        importlib.import_module(name)
    torch.set_num_threads(1)
    faiss.omp_set_num_threads(1)


def warm_up():
    """Use the model once: libraries load more on first use, and children then have it. No thread may be started by that."""
    n_threads = len(os.listdir("/proc/self/task"))  # those of allocators, which survive a fork
    Encoder.create("tiny", 8, image_size=32).encode([Image.new("RGB", (40, 36))])
    assert len(os.listdir("/proc/self/task")) == n_threads


def main():
    import_all()
    warm_up()
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()


def answer(request):
    """What became of the child: its finished steps, and the signal that ended it or None."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            run_steps(request, writing)
        except BaseException:
            os.write(writing, (json.dumps({"broken": traceback.format_exc()}) + "\n").encode())
        os._exit(0)
    os.close(writing)
    text, is_hung = received(reading, child)
    if is_hung:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    steps = [json.loads(line) for line in text.decode().splitlines() if line.endswith("}")]
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    printed = Path(request["printed"]).read_text(errors="replace")
    return {"steps": steps, "signal": number, "hung": is_hung, "last": printed}


def received(pipe, child):
    """All that a child writes until it ends, and whether it is asleep instead."""
    text, ticks, n_asleep = b"", 0, 0
    while n_asleep < ASLEEP:
        if select.select([pipe], [], [], 1)[0]:
            part = os.read(pipe, 1 << 16)
            text += part
            if not part:
                break
        before, (state, ticks) = ticks, activity(child)
        n_asleep = n_asleep + 1 if state == "S" and ticks - before <= IDLE_TICKS else 0
    os.close(pipe)
    return text, n_asleep == ASLEEP


def activity(child):
    """Whether it runs or sleeps, and the ticks of processor time it has had."""
    words = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
    return words[0], int(words[11]) + int(words[12])


def run_steps(request, pipe):
    os.setpgrp()
    os.chdir(request["cwd"])
    nothing = os.open(os.devnull, os.O_RDONLY)
    printed = os.open(request["printed"], os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    for number, descriptor in ((0, nothing), (1, printed), (2, printed)):
        os.dup2(descriptor, number)
    sys.stdout, sys.stderr = (
        os.fdopen(number, "w", encoding="utf-8", errors=errors, closefd=False)
        for number, errors in ((1, "strict"), (2, "backslashreplace"))
    )
    limit_memory()
    counts = arm(request.get("kill"))
    for step in request["steps"]:
        os.ftruncate(1, 0)
        started = cpu_seconds()
        limit = int(started) + CPU_SECONDS + 1 if request["is_limited"] else resource.RLIM_INFINITY
        resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
        status = STEPS[step[0]](*step[1:])
        sys.stdout.flush()
        sys.stderr.flush()
        printed = Path(request["printed"]).read_text("utf-8", "replace")
        found = {"status": status, "cpu": cpu_seconds() - started, "printed": printed}
        os.write(pipe, (json.dumps(found | counts) + "\n").encode())


def cpu_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def limit_memory():
    """So that a file that claims terabytes ends as an error that is found here, not as a machine that swaps."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MORE_MEMORY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST_FILE, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def command(*words):
    """The console command, as the shell would run it; its status."""
    sys.argv = ["sightline", *words]
    try:
        run()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def serve_operations(folder):
    """What a service does with a gallery: search, show, write and remove; the status a service would have."""

    def attempt(call, *words):
        try:
            return call(*words)
        except (InputError, Problem) as error:
            sys.stderr.write(f"{error}\n")
            return None

    try:
        if collection := attempt(Collection, Path(folder)):
            operate(collection, attempt)
            collection.close()
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def operate(collection, attempt):
    """One operation after another, each tried whatever became of the others."""
    attempt(collection.warm)
    vector = np.ones(8, np.float32)
    for answer in attempt(collection.search, [SearchJob(vector, QueryOptions(3))]) or []:
        attempt(raised, answer)
    upload = picture(), ".png", vector
    for metadata in ({"year": 1}, None):
        attempt(collection.write, "new one", metadata, upload, True)
    with collection.gallery() as gallery:
        ids = attempt(gallery.ids) or []
    for id_ in ids[-6:]:
        attempt(collection.item, id_)
        attempt(collection.write, id_, {"year": 2}, upload, True)
    for id_ in ids[:3] + ids[-6:]:
        attempt(collection.remove, id_)


def raised(answer):
    if isinstance(answer, Exception):
        raise answer


def picture():
    held = io.BytesIO()
    Image.new("RGB", (8, 8), "red").save(held, "PNG")
    return held.getvalue()


def upload_image(folder):
    """Put one item with an uploaded image into a gallery."""
    collection = Collection(Path(folder))
    vector = np.ones(collection.identity().dim, np.float32)
    collection.write("uploaded", {"label_0": "class0"}, (picture(), ".png", vector), replace=False)
    collection.close()
    return 0


def new_encoder(folder):
    torch.manual_seed(0)
    Encoder.create("tiny", 8, image_size=32).save_pretrained(folder)
    return 0


def few_glyphs(folder):
    """``sightline data prepare glyphs``, of 6 characters instead of 500."""
    glyphs.SIZES["small"] = glyphs.GlyphSize(6, 4)
    return command("data", "prepare", "glyphs", "--out", folder)


STEPS = {"command": command, "serve": serve_operations, "upload": upload_image}
STEPS |= {"encoder": new_encoder, "glyphs": few_glyphs}


def arm(kill):
    """Let this process die at a moment: ``rename`` and ``line`` count exactly, ``cpu`` is in seconds of the processor.

    Returns:
        Counts of the moments there are, filled in as they pass.
    """
    counts = {"renames": 0, "lines": 0}
    if kill is None:
        return counts
    if kill["at"] == "cpu":
        signal.signal(signal.SIGPROF, signal.SIG_DFL)  # ends the process as it stands
        signal.setitimer(signal.ITIMER_PROF, kill["n"])
        return counts
    if kill["at"] in ("rename", "count"):
        watch_renames(counts, kill)
    if kill["at"] in ("line", "count"):
        watch_lines(counts, kill)
    return counts


def die():
    os.kill(os.getpid(), signal.SIGKILL)


def watch_renames(counts, kill):
    depth = [0]

    def dying(call):
        def instead(*args, **kwargs):
            if depth[0]:  # a rename inside an exchange is that exchange
                return call(*args, **kwargs)
            counts["renames"] += 1
            is_it = kill["at"] == "rename" and counts["renames"] == kill["n"]
            if is_it and kill["when"] == "before":
                die()
            depth[0] += 1
            try:
                return call(*args, **kwargs)
            finally:
                depth[0] -= 1
                if is_it:
                    die()

        return instead

    os.rename, os.replace = dying(os.rename), dying(os.replace)
    files._exchange = dying(files._exchange)


def watch_lines(counts, kill):
    root = str(Path(sightline.__file__).parent)

    def each_line(frame, event, argument):
        if event == "line":
            counts["lines"] += 1
            if kill["at"] == "line" and counts["lines"] == kill["n"]:
                die()
        return each_line

    def each_call(frame, event, argument):
        return each_line if frame.f_code.co_filename.startswith(root) else None

    threading.settrace(each_call)
    sys.settrace(each_call)


if __name__ == "__main__":
    main()
