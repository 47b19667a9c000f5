"""The service as a process of its own, as users run it."""

import os
import re
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import httpx

HELD = """
import os, sys, time
from sightline.cli.main import run
from sightline.models.encoder import Encoder
file, forward = sys.argv[1], Encoder.forward
def wait_and_forward(self, images):
    while not os.path.exists(file):
        time.sleep(0.01)
    return forward(self, images)
Encoder.forward = wait_and_forward
sys.argv = ["sightline", *sys.argv[2:]]
run()
"""


@contextmanager
def process(gallery, *options, held_until=None, n_files=None, **environ):
    """A server on a free port, its address and its log; its encoder waits until the file `held_until` exists.

    It may open `n_files` files; what it prints after its address is in `server.stdout`.
    """
    start = ["-m", "sightline"] if held_until is None else ["-c", HELD, str(held_until)]
    command = [sys.executable, *start, "serve", str(gallery), "--port", "0", *options]
    if n_files is not None:
        command = ["sh", "-c", f'ulimit -n {n_files}; exec "$@"', "sh", *command]
    by_torch = {} if held_until is None else {"SIGHTLINE_SERVE_BACKEND": "torch"}  # whose encoder is held, not its export
    environ = {**os.environ, "OMP_NUM_THREADS": "1", **by_torch, **environ}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as server:
        log: list[str] = []
        reader = threading.Thread(target=lambda: log.extend(server.stderr), daemon=True)
        reader.start()
        try:
            address = server.stdout.readline().strip()
            assert address.startswith("http://127.0.0.1:"), log
            yield server, address, log
        finally:
            server.kill()
            server.wait()
            reader.join()


def accepted(address):
    found = re.search(r"^sightline_accepted_requests (\S+)", httpx.get(f"{address}/metrics", timeout=30).text, re.MULTILINE)
    return float(found[1])


def until(condition):
    """Wait for a condition, however busy the machine is; for ten minutes at most, so that a failure ends."""
    for _ in range(60_000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("not within ten minutes")
