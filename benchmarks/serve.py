"""The service under load on loopback, against the bare encoder in the same run; writes its section of docs/performance.md.

python benchmarks/serve.py [--seconds 60] [--clients 32] [--items 10000] [--backbone tf_efficientnet_lite0] [--write]

Bare is ``encoder.encode`` of the same files, decoding included, in batches of as many images as there are clients, before
and after the load; the service idles meanwhile. The clients live in this process and share the machine with the service.
Then a service with ``--backend torch`` gets the same load. The two are compared by the processor time that an answer takes
the service, as a busy machine distorts throughput.
"""

import argparse
import asyncio
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import typer
from measure import PAGE, photographs, table, verdict, write_section

from sightline import Encoder, Gallery

LEAST_SHARE, MOST_TIMES, MOST_GROWTH, LEAST_GAIN = 0.8, 3.0, 0.05, 2.2


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=60)
    arguments.add_argument("--clients", type=int, default=32)
    arguments.add_argument("--items", type=int, default=10_000)
    arguments.add_argument("--backbone", default="tf_efficientnet_lite0")
    arguments.add_argument("--write", action="store_true", help="write the section of docs/performance.md")
    given = arguments.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        files = photographs(folder / "photographs", 2 * given.clients)
        weights = "bundled" if given.backbone == "tf_efficientnet_lite0" else None
        encoder = Encoder.create(given.backbone, embedding_dim=512, weights=weights)
        with Gallery.create(folder / "gallery", encoder) as gallery:
            vectors = np.random.default_rng(0).normal(size=(given.items, encoder.dim)).astype(np.float32)
            gallery.add([str(n) for n in range(given.items)], vectors)
        section = measured(folder / "gallery", encoder, files, given)
    typer.echo(section)
    if given.write:
        write_section(PAGE, "Serving", section)


def measured(gallery: Path, encoder: Encoder, files: list[Path], given: argparse.Namespace) -> str:
    """The load and what it is held against, as Markdown."""
    batch = files[: given.clients]
    with service(gallery, "auto") as (process, port):
        requests = [request_of(file, port) for file in files]
        asyncio.run(load(port, requests, given.clients, min(5.0, given.seconds)))  # does not count
        before = bare_seconds(encoder, batch)
        memory = Memory(process, max(0.2, given.seconds / 100))
        spent = -processor_seconds(process)
        latencies, n_errors, seconds = asyncio.run(load(port, requests, given.clients, given.seconds))
        cost = (spent + processor_seconds(process)) / len(latencies)
        sizes = memory.end()
        after = bare_seconds(encoder, batch)
        per_pass = images_a_pass(port)
    with service(gallery, "torch") as (process, port):
        requests = [request_of(file, port) for file in files]
        asyncio.run(load(port, requests, given.clients, min(5.0, given.seconds)))  # does not count
        spent = -processor_seconds(process)
        by_torch, n_torch_errors, _ = asyncio.run(load(port, requests, given.clients, given.seconds))
        torch_cost = (spent + processor_seconds(process)) / len(by_torch)
    n_errors += n_torch_errors
    bare = (before + after) / 2
    throughput, bare_throughput = len(latencies) / seconds, given.clients / bare
    p50, p95 = (float(np.quantile(latencies, share)) for share in (0.5, 0.95))
    share, times = throughput / bare_throughput, p95 / bare
    tail = sizes[len(sizes) // 5 :]  # once caches are full
    growth = float(np.mean(tail[-len(tail) // 4 :]) / np.mean(tail[: len(tail) // 4]) - 1)
    rows = [
        ["requests answered", f"{len(latencies)}", ""],
        ["errors", f"{n_errors}", verdict(n_errors == 0, "none")],
        ["throughput", f"{throughput:.1f} images/s", ""],
        [
            "processor time of an answer",
            f"{1000 * cost:.1f} ms; with `--backend torch` {1000 * torch_cost:.1f} ms",
            verdict(torch_cost / cost >= LEAST_GAIN, f"{torch_cost / cost:.1f} x, at least {LEAST_GAIN:g}"),
        ],
        ["bare encoder", f"{bare_throughput:.1f} images/s ({given.clients} in {1000 * bare:.0f} ms)", ""],
        ["share of the bare encoder", f"{share:.0%}", verdict(share >= LEAST_SHARE, f"at least {LEAST_SHARE:.0%}")],
        ["median latency", f"{1000 * p50:.0f} ms", ""],
        [
            "95% of latencies below",
            f"{1000 * p95:.0f} ms, {times:.2f} x bare",
            verdict(times < MOST_TIMES, f"{MOST_TIMES:g} x"),
        ],
        ["images in a pass", f"{per_pass:.1f}", ""],
        [
            "memory, first and last quarter",
            f"{growth:+.1%}, {tail[-1] / 1000:.0f} MB",
            verdict(growth < MOST_GROWTH, "flat"),
        ],
    ]
    return (
        f"`python benchmarks/serve.py --seconds {given.seconds:g} --clients {given.clients} --items {given.items} "
        f"--backbone {given.backbone} --write`, {os.cpu_count()} cores, JPEG files of 640 x 480, clients on the same "
        "machine.\n\n" + table(["", "measured", "bar"], rows)
    )


@contextmanager
def service(gallery: Path, backend: str) -> Iterator[tuple[int, int]]:
    """Process and port of a service that runs its encoder by this backend."""
    environ = {**os.environ, "SIGHTLINE_SERVE_RATE": "1e9", "SIGHTLINE_SERVE_BURST": "1e9"}
    command = [sys.executable, "-m", "sightline", "serve", str(gallery), "--port", "0", "--backend", backend]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environ) as server:
        try:
            assert server.stdout is not None
            yield server.pid, int(server.stdout.readline().rpartition(":")[2])
        finally:
            server.terminate()


def processor_seconds(process: int) -> float:
    """What a process has spent, all its threads together."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def bare_seconds(encoder: Encoder, files: list[Path], n_runs: int = 5) -> float:
    """The median time to encode these files."""
    seconds = []
    for _ in range(n_runs):
        since = time.perf_counter()
        encoder.encode(files, batch_size=len(files))
        seconds.append(time.perf_counter() - since)
    return float(np.median(seconds))


def request_of(file: Path, port: int) -> bytes:
    """A whole request: clients that build a new one each time would take the processor from the service."""
    head = b'--b\r\nContent-Disposition: form-data; name="image"; filename="x.jpg"\r\n\r\n'
    body = head + file.read_bytes() + b"\r\n--b--\r\n"
    lines = (
        "POST /v1/search HTTP/1.1",
        f"Host: 127.0.0.1:{port}",
        "Content-Type: multipart/form-data; boundary=b",
        f"Content-Length: {len(body)}",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def load(port: int, requests: list[bytes], n_clients: int, seconds: float) -> tuple[list[float], int, float]:
    """Clients that each ask again as soon as they are answered: latencies, errors, seconds until the last answer."""
    latencies: list[float] = []
    n_errors = 0
    since = time.perf_counter()

    async def client(number: int) -> None:
        nonlocal n_errors
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        place = number
        while time.perf_counter() - since < seconds:
            asked = time.perf_counter()
            writer.write(requests[place % len(requests)])
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
            assert length is not None
            await reader.readexactly(int(length[1]))
            if head.startswith(b"HTTP/1.1 200"):
                latencies.append(time.perf_counter() - asked)
            else:
                n_errors += 1
            place += n_clients
        writer.close()

    outcomes = await asyncio.gather(*(client(number) for number in range(n_clients)), return_exceptions=True)
    n_errors += sum(isinstance(outcome, BaseException) for outcome in outcomes)
    return latencies, n_errors, time.perf_counter() - since


def images_a_pass(port: int) -> float:
    """How many images shared a pass through the encoder, on average."""

    async def text() -> bytes:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET /metrics HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nConnection: close\r\n\r\n".encode())
        found = await reader.read()
        writer.close()
        return found

    found = asyncio.run(text()).decode()
    total, count = (re.search(rf"sightline_batch_images_{name} (\S+)", found) for name in ("sum", "count"))
    assert total is not None
    assert count is not None
    return float(total[1]) / float(count[1])


class Memory:
    """Looks at a process's memory again and again, until it is ended."""

    def __init__(self, process: int, pause: float) -> None:
        self._status = Path(f"/proc/{process}/status")
        self._pause = pause
        self._ended = threading.Event()
        self._kilobytes: list[int] = []
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._ended.wait(self._pause):
            found = re.search(r"VmRSS:\s+(\d+)", self._status.read_text())
            self._kilobytes.append(int(found[1]) if found else 0)

    def end(self) -> list[int]:
        """Kilobytes over time."""
        self._ended.set()
        self._thread.join()
        return self._kilobytes


if __name__ == "__main__":
    main()
