"""The service as a process: signals, kills, several workers."""

import signal
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from page_server import png
from server_process import accepted, process, until

from sightline.gallery.gallery import Gallery


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
