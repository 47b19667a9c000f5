"""Clients that send half of something, nothing, or too much at once: others are answered meanwhile, and little is kept."""

import asyncio
import json
import logging
import signal
import socket
from contextlib import ExitStack, suppress

import httpx
import pytest
from page_server import png
from server_process import accepted, process, until

from sightline.serve.guard import Arrival, Arrivals, Sparse
from sightline.serve.schemas import Problem

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


def body_of(*parts):
    """A receive that gives these parts, and then nothing for ever."""
    left = list(parts)

    async def receive():
        if not left:
            await asyncio.Event().wait()
        part = left.pop(0)
        return {"type": "http.request", "body": part, "more_body": part != b"end"}

    return receive


def test_beyond_the_budget_the_oldest_body_alone_arrives():
    async def run():
        arrivals = Arrivals(budget_bytes=10, most=8, seconds=60)
        old, new = Arrival(), Arrival()
        of_old, of_new = body_of(b"123456", b"7", b"end"), body_of(b"123456", b"end")
        await arrivals.message(old, of_old)
        await arrivals.message(new, of_new)  # 12 bytes are held
        waits = asyncio.create_task(arrivals.message(new, of_new))
        await arrivals.message(old, of_old)
        await arrivals.message(old, of_old)
        await asyncio.sleep(0)
        assert not waits.done()  # the old one is whole, and not answered yet
        arrivals.release(old)
        assert (await waits)["body"] == b"end"
        arrivals.release(new)
        arrivals.release(new)
        assert arrivals.n_bytes() == 0

    asyncio.run(asyncio.wait_for(run(), 60))


def test_for_one_body_more_than_may_arrive_the_oldest_goes():
    async def run():
        arrivals = Arrivals(budget_bytes=1000, most=2, seconds=60)
        asked = [asyncio.create_task(arrivals.message(Arrival(), body_of())) for _ in range(2)]
        await asyncio.sleep(0)
        assert (await arrivals.message(Arrival(), body_of(b"end")))["body"] == b"end"
        with pytest.raises(Problem) as refused:
            await asked[0]
        assert (refused.value.status_code, refused.value.headers["Retry-After"]) == (429, "1")
        assert not asked[1].done()
        asked[1].cancel()

    asyncio.run(asyncio.wait_for(run(), 60))


def test_a_message_that_comes_often_is_logged_some_times_and_counted():
    sparse = Sparse(most=2, seconds=60)
    record, other = (logging.LogRecord("a", 40, "f", 1, text, (), None) for text in ("full", "other"))
    assert [sparse.filter(record) for _ in range(5)] == [True, True, False, False, False]
    assert sparse.filter(other)
    record.created += 31
    assert sparse.filter(record)
    assert record.fields == {"left_out": 3}
