"""The service as a process: signals, kills, several workers, and clients that send half of something, nothing, or too much.

Others are answered meanwhile, and little is kept.
"""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress

import httpx
import pytest
from page_server import png

from sightline.gallery.gallery import Gallery

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


def test_sigterm_loses_no_accepted_request(own_gallery, tmp_path):
    with process(own_gallery, held_until=tmp_path / "go", SIGHTLINE_SERVE_BATCH="4") as (server, address, log):

        def post(path, seed, **fields):
            return httpx.post(f"{address}/v1/{path}", files={"image": ("x", png(seed))}, data=fields, timeout=600)

        with ThreadPoolExecutor(16) as pool:
            asked = [pool.submit(post, "search", seed) for seed in range(8)]
            asked += [pool.submit(post, "items", seed, id=f"new{seed}") for seed in range(8)]
            until(lambda: accepted(address) == 16)
            server.send_signal(signal.SIGTERM)
            (tmp_path / "go").touch()
            answers = [one.result() for one in asked]
        server.wait()
        assert [answer.status_code for answer in answers] == [200] * 8 + [201] * 8
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{address}/v1/health")
    assert server.returncode in (0, -signal.SIGTERM)
    assert not [line for line in log if "rror" in line]
    with Gallery.open(own_gallery, read_only=True) as gallery:
        assert len(gallery.metadata([answer.json()["item"]["id"] for answer in answers[8:]])) == 8


def test_sigkill_during_writes_loses_no_acknowledged_item(own_gallery, serving):
    acknowledged: list[str] = []

    def write_on(address, worker):
        with httpx.Client(timeout=60) as client:
            for number in range(10_000):
                id_ = f"{worker}/{number}"
                try:
                    answer = client.post(f"{address}/v1/items", files={"image": ("x", png(number))}, data={"id": id_})
                except httpx.TransportError:
                    return
                if answer.status_code == 201:
                    acknowledged.append(id_)

    with process(own_gallery, SIGHTLINE_SERVE_RATE="100000", SIGHTLINE_SERVE_BURST="100000") as (server, address, _):
        with ThreadPoolExecutor(6) as pool:
            writing = [pool.submit(write_on, address, worker) for worker in range(6)]
            until(lambda: len(acknowledged) >= 40)
            server.send_signal(signal.SIGKILL)
        assert [worker.result() for worker in writing] == [None] * 6
    client = serving(own_gallery)  # restarted
    for id_ in acknowledged[-3:]:
        path = f"/v1/items/{id_.replace('/', '%2F')}"
        assert client.get(path).json()["id"] == id_
        assert client.get(f"{path}/image").status_code == 200
    with Gallery.open(own_gallery, read_only=True) as gallery:
        assert gallery.verify() == []
        there = gallery.metadata(acknowledged)
    assert all((own_gallery / row["path"]).is_file() for row in there)


@pytest.mark.slow
def test_several_workers_share_the_gallery_and_count_together(own_gallery):
    with process(own_gallery, "--workers", "2") as (server, address, _):
        httpx.get(f"{address}/v1/ready", timeout=120)
        for number in range(12):
            with httpx.Client(timeout=60) as client:  # a connection each, so that both workers are asked
                form = {"image": ("x", png(number))}
                assert client.post(f"{address}/v1/items", files=form, data={"id": str(number)}).status_code == 201
        for number in range(12):
            form = {"image": ("x", png(number))}
            found = httpx.post(f"{address}/v1/search", files=form, data={"k": 1}, timeout=60).json()
            assert found["results"][0]["id"] == str(number)
        text = httpx.get(f"{address}/metrics", timeout=30).text
        assert 'sightline_requests_total{method="POST",route="/v1/items",status="201"} 12.0' in text
        server.send_signal(signal.SIGTERM)
        assert server.wait(60) in (0, -signal.SIGTERM)


def test_what_does_not_fit_is_one_message(check_refused):
    for options, message in (
        (["nowhere"], "nowhere"),
        (["nowhere", "--host", "0.0.0.0"], "--token-file"),
        ([], "galleries"),
    ):
        check_refused(["serve", "--port", 0, *options], message)


HEAD = b"Host: 127.0.0.1\r\n"
JSON_HEAD = b"POST /v1/search/id HTTP/1.1\r\n" + HEAD + b"Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{"
FORM_START = b"POST /v1/search HTTP/1.1\r\n" + HEAD + b"Content-Type: multipart/form-data; boundary=b\r\n"
FORM_PART = b'--b\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\nhalf'
FORM_HEAD = FORM_START + b"Content-Length: 100000\r\n\r\n" + FORM_PART
CHUNKED_HEAD = FORM_START + b"Transfer-Encoding: chunked\r\n\r\n5\r\n--b\r\n\r\n"
PUT_HEAD = FORM_HEAD.replace(b"POST /v1/search", b"PUT /v1/items/new")


def connected(stack: ExitStack, address: str, sent: bytes) -> socket.socket:
    """A connection that has sent this, or was closed before it could."""
    opened = stack.enter_context(socket.socket())
    opened.settimeout(60)
    opened.connect(("127.0.0.1", int(address.rpartition(":")[2])))
    with suppress(ConnectionError):
        opened.sendall(sent)
    return opened


def heard(opened: socket.socket) -> bytes:
    """All that comes until the other side closes."""
    parts = []
    with suppress(ConnectionError):
        while part := opened.recv(65_536):
            parts.append(part)
    return b"".join(parts)


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


WHOLE_HEAD = b"GET /v1/health HTTP/1.1\r\n" + HEAD + b"\r\n"
HALF_HEAD = WHOLE_HEAD[:-2] + b"X-Half: "


def test_others_are_answered_while_more_connections_are_open_than_files(shared_gallery):
    given = {"SIGHTLINE_SERVE_RATE": "none"}
    with process(shared_gallery, "--read-only", n_files=256, **given) as (_, address, log):
        for sent in (WHOLE_HEAD, JSON_HEAD):  # the first is answered, and kept open
            with ExitStack() as stack:
                for _ in range(300):
                    connected(stack, address, sent)
                assert httpx.get(f"{address}/v1/health", timeout=120).status_code == 200
                form = {"image": ("x", png())}
                assert httpx.post(f"{address}/v1/search", files=form, timeout=120).status_code == 200
    assert sum(len(line) for line in log) < 500_000


@pytest.fixture(scope="module")
def hasty(shared_gallery):
    """The address and the log of a service that waits a second for requests."""
    given = {"SIGHTLINE_SERVE_UPLOAD_SECONDS": "1", "SIGHTLINE_SERVE_RATE": "none", "SIGHTLINE_SERVE_BACKEND": "torch"}
    with process(shared_gallery, **given) as (_, address, log):
        yield address, log
    assert "Traceback" not in "".join(log)
    for line in log:
        assert json.loads(line)["event"]
        assert line.rstrip("\n").isprintable()


def test_a_head_or_a_body_that_does_not_arrive_in_time_ends_its_connection(hasty):
    bodies = 5 * [JSON_HEAD, FORM_HEAD, CHUNKED_HEAD, PUT_HEAD]
    with ExitStack() as stack:
        opened = [connected(stack, hasty[0], sent) for sent in (*bodies, WHOLE_HEAD + HALF_HEAD, HALF_HEAD, b"")]
        *answers, answered, half, nothing = [heard(one) for one in opened]  # ends when they are closed
    assert {status(answer) for answer in answers} == {408}
    assert all(b"application/problem+json" in answer for answer in answers)
    assert (status(answered), half, nothing) == (200, b"", b"")


def test_a_client_that_does_not_listen_is_let_go(hasty):
    asked = b"GET /openapi.json HTTP/1.1\r\n" + HEAD + b"\r\n"

    def asks_on(opened):
        for _ in range(10_000):
            opened.sendall(20 * asked)

    with socket.socket() as opened:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        opened.settimeout(60)
        opened.connect(("127.0.0.1", int(hasty[0].rpartition(":")[2])))
        with pytest.raises(ConnectionError):  # a timeout otherwise
            asks_on(opened)
    assert httpx.get(f"{hasty[0]}/v1/health", timeout=60).status_code == 200


ODD = [
    b"GET /\x1b[31m HTTP/1.1\r\n" + HEAD + b"\r\n",
    b"GET /v1/items/%1b%5b31m%0a%00 HTTP/1.1\r\n" + HEAD + b"Connection: close\r\n\r\n",
    b"GET /v1/health HTTP/1.1\r\n" + HEAD + b"X: " + b"a" * 200_000,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc",
    FORM_START + b"Connection: close\r\nContent-Length: 30\r\n\r\n" + b"no boundary\x1b" * 3,
    JSON_HEAD.replace(b"Content-Length: 100", b"Content-Length: 1\r\nTransfer-Encoding: chunked"),
    JSON_HEAD.replace(b"Content-Length: 100", b"Content-Length: 999999999999"),
    JSON_HEAD.replace(b"Content-Length: 100", b"Content-Encoding: gzip\r\nConnection: close\r\nContent-Length: 1"),
]


def test_odd_requests_are_refused_and_logged_as_json_and_a_client_that_leaves_is_no_error(hasty):
    address, log = hasty
    with ExitStack() as stack:
        for sent in ODD:
            assert status(heard(connected(stack, address, sent))) in (400, 404, 413, 422), sent[:200]
    with ExitStack() as stack:
        connected(stack, address, FORM_HEAD)
    until(lambda: '"route": "/v1/search", "status": 499' in "".join(log))


def test_uploads_that_are_half_there_do_not_hold_up_the_end(own_gallery):
    with process(own_gallery) as (server, address, log), ExitStack() as stack:
        opened = [connected(stack, address, sent) for sent in (FORM_HEAD, PUT_HEAD, JSON_HEAD, CHUNKED_HEAD)]
        assert httpx.get(f"{address}/v1/health", timeout=60).status_code == 200
        assert accepted(address) == 0
        server.send_signal(signal.SIGTERM)
        assert server.wait(120) in (0, -signal.SIGTERM)
        assert [status(heard(one)) for one in opened] == [503] * 4
    assert "Traceback" not in "".join(log)
    assert [line for line in map(json.loads, log) if line.get("status") == 500] == []
