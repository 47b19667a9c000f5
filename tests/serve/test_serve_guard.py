"""Scopes, tokens and sessions; host and origin checks; limits; headers and logs; settings."""

import asyncio
import json
import logging
import re
import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from page_server import png
from typer.testing import CliRunner

from refusals import assert_refused
from sightline.cli.main import app as command_line
from sightline.serve.guard import Arrival, Arrivals, JsonLines, RateLimit, Sparse
from sightline.serve.schemas import Problem
from sightline.serve.settings import ServeSettings, Tokens, add_token, read_settings, read_tokens

ROOT = Path(__file__).parents[2]
ITEM = "/v1/items/super0%2Fclass00%2F0.png"
READ = {"galleries": "/v1/galleries", "metrics": "/metrics", "browse": "/v1/items", "image": f"{ITEM}/image"}
OPEN = {"health": "/v1/health", "ready": "/v1/ready", "page": "/", "document": "/openapi.json"}
REQUESTS = {
    "search": ("POST", "/v1/search/id", "read"),
    "add": ("POST", "/v1/items", "write"),
    "replace": ("PUT", "/v1/items/new", "write"),
    "relabel": ("POST", f"{ITEM}/label", "write"),
    "remove": ("DELETE", "/v1/items/nobody", "write"),
    "unknown": ("PATCH", "/v1/anything", "write"),
    **{name: ("GET", path, "read") for name, path in READ.items()},
    **{name: ("GET", path, None) for name, path in OPEN.items()},
}


@pytest.fixture
def tokens(tmp_path):
    file = tmp_path / "tokens.toml"
    return {"file": file, **{scope: add_token(file, f"{scope}er", scope) for scope in ("read", "write")}}


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def ask(client, name, token=None, **headers):
    method, path, _ = REQUESTS[name]
    given = headers | ({} if token is None else bearer(token))
    return client.request(method, path, json={"id": "super0/class00/0.png"} if name == "search" else None, headers=given)


@pytest.mark.parametrize("public_read", [False, True])
def test_every_request_needs_its_scope(serving, shared_gallery, tokens, public_read):
    client = serving(shared_gallery, token_file=tokens["file"], public_read=public_read, host="0.0.0.0")
    may = {None: {"read"} if public_read else set(), "wrong": set(), "read": {"read"}, "write": {"read", "write"}}
    for who, scopes in may.items():
        for name, (_, _, needed) in REQUESTS.items():
            answer = ask(client, name, tokens.get(who, who))
            if needed is None or needed in scopes:
                assert answer.status_code not in (401, 403), (who, name)
            else:
                assert answer.status_code == (403 if who == "read" else 401), (who, name)
                assert answer.headers["www-authenticate"].startswith("Bearer ")


def test_other_spellings_of_tokens_open_nothing_and_the_file_holds_none_and_is_read_again(serving, shared_gallery, tokens):
    client, token, file = serving(shared_gallery, token_file=tokens["file"]), tokens["write"], tokens["file"]
    wrong = [f"Bearer {one}" for one in ("", read_tokens(file)[1].sha256, f"{token}x", token[:-1])]
    for given in ("", "Bearer", f"Basic {token}", token, *wrong):
        assert client.get("/v1/galleries", headers={"Authorization": given}).status_code == 401, given
    assert client.get(f"/v1/galleries?token={token}").status_code == 401
    assert client.get("/v1/galleries", headers={"Authorization": f"bearer  {token}"}).status_code == 200
    assert (tokens["read"] in file.read_text(), file.stat().st_mode & 0o077) == (False, 0)
    file.chmod(0o640)
    later = add_token(file, "later", "read")
    assert file.stat().st_mode & 0o777 == 0o640  # the mode is kept
    assert ask(client, "galleries", later).status_code == 200
    text = file.read_text()
    for changed, known in ((text[: text.rindex("[[token]]")], later), ("broken [", tokens["read"])):  # revoked, lost
        file.write_text(changed)
        assert ask(client, "galleries", known).status_code == 401


def test_a_session_reads_images_and_nothing_else(serving, shared_gallery, image_tree, tokens):
    client, file = serving(shared_gallery, token_file=tokens["file"], image_roots=[image_tree]), tokens["file"]
    assert client.post("/v1/session").status_code == 401
    header = client.post("/v1/session", headers=bearer(tokens["write"])).headers["set-cookie"]
    assert all(word in header for word in ("HttpOnly", "SameSite=strict", "Path=/v1/items", "Max-Age=900"))
    assert tokens["write"] not in header
    assert [ask(client, name).status_code for name in ("image", "add")] == [200, 401]  # the client keeps cookies
    cookie = re.search("sightline_session=([^;]*)", header)[1]
    for forged in (cookie[:-1], cookie.replace(cookie[:3], "999", 1), "", "9999999999.x.y"):
        client.cookies.clear()
        assert ask(client, "image", Cookie=f"sightline_session={forged}").status_code == 401
    client.delete("/v1/session")
    (token, _), key = read_tokens(file), "k" * 32
    for signing, seconds, is_valid in ((key, 1000, True), ("other" * 8, 1000, False), (key, -5, False)):  # and expired
        session = Tokens(file, signing, seconds).session(token)
        assert (Tokens(file, key, 1000).find_session(session) is not None) is is_valid


FROM_ELSEWHERE = [
    ({"Host": "evil.example:8000"}, 421),
    ({"Host": "[::1]:8000"}, 200),
    ({"Origin": "null"}, 403),
    ({"Origin": "http://127.0.0.1:9000"}, 403),
    ({"Origin": "http://127.0.0.1:8000"}, 200),
    ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
    ({"X-Forwarded-For": "10.0.0.1"}, 401),
]


def test_pages_of_others_and_unknown_names_are_refused_and_every_answer_has_the_headers(client):
    for headers, status in FROM_ELSEWHERE:
        assert ask(client, "search", **headers).status_code == status, headers
    assert ask(client, "health", Host="10.0.0.7:8000").status_code == 200  # probes use an address
    for path in ("/v1/health", "/nothing", f"{ITEM}/image"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        found = [word in policy for word in ("default-src 'none'", "frame-ancestors 'none'", "unsafe")]
        assert found == [True, True, False]
        assert (headers["x-content-type-options"], headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert headers["x-request-id"]
    assert client.head("/").status_code == 200


def test_a_caller_that_asks_too_often_waits(serving, shared_gallery, tokens):
    client = serving(shared_gallery, token_file=tokens["file"], rate=1e-6, burst=3)
    for _ in range(3):
        assert ask(client, "search", tokens["read"]).status_code == 200
    refused = ask(client, "search", tokens["read"])
    assert (refused.status_code, int(refused.headers["retry-after"]) > 1) == (429, True)
    assert ask(client, "search", tokens["write"]).status_code == 200  # another caller
    assert client.get("/v1/health").status_code == 200
    assert 'sightline_refused_total{reason="rate"} 1.0' in client.app.state.service.metrics_text().decode()


def test_the_bucket_fills_at_its_rate():
    limit = RateLimit(rate=2, burst=4)
    taken = [limit.seconds_to_wait("a", 1, now) for now in (0, 0, 0, 0, 0, 0.25, 0.5, 0.5, 100, 100, 100, 100, 100)]
    assert taken == [0, 0, 0, 0, 0.5, 0.25, 0, 0.5, 0, 0, 0, 0, 0.5]
    assert RateLimit(None, 1).seconds_to_wait("a", 1e9, 0) == 0


def test_beyond_the_queue_requests_get_429_and_those_in_it_their_answer(serving, shared_gallery):
    client = serving(shared_gallery, waiting=4, rate=None)
    encoding = next(iter(client.app.state.service._encodings.values()))
    go, forward, refused = threading.Event(), encoding.encoder.forward, []
    encoding.encoder.forward = lambda images: (go.wait(), forward(images))[1]
    with ThreadPoolExecutor(12) as pool:
        running = {pool.submit(client.post, "/v1/search", files={"image": ("x", png(n))}) for n in range(12)}
        while len(refused) < 8:  # all but those that hold a place
            done, running = wait(running, timeout=600, return_when=FIRST_COMPLETED)
            assert done
            refused += [one.result() for one in done]
        assert client.get("/v1/health").status_code == 200  # the event loop is free meanwhile
        go.set()
        assert {one.result().status_code for one in running} == {200}
    assert [(one.status_code, one.headers["retry-after"]) for one in refused] == [(429, "1")] * 8


def test_a_request_that_is_too_long_is_ended_while_it_comes(serving, shared_gallery):
    client = serving(shared_gallery, upload_bytes=100_000)

    def body():
        yield b'--b\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n'
        yield from 1000 * [b"x" * 10_000]

    for length in ({}, {"Content-Length": "10000067"}):
        headers = {"Content-Type": "multipart/form-data; boundary=b"} | length
        assert client.post("/v1/search", content=body(), headers=headers).status_code == 413
    answer = client.post("/v1/search/vector", content=b" " * 1_000_001, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (413, "application/problem+json")


def test_logs_are_json_and_know_neither_ids_nor_tokens_nor_images(serving, shared_gallery, image_tree, tokens, caplog):
    client = serving(shared_gallery, token_file=tokens["file"], image_roots=[image_tree])
    with caplog.at_level(logging.INFO, "sightline.serve"):
        ask(client, "image", tokens["read"])
        client.post("/v1/search", files={"image": ("secret.png", png())}, headers=bearer(tokens["read"]))
    lines = [JsonLines().format(record) for record in caplog.records if record.name == "sightline.serve"]
    found = [(line["route"], line["caller"], line["status"]) for line in map(json.loads, lines)]
    assert found == [("/v1/items/{id}/image", "token:reader", 200), ("/v1/search", "token:reader", 200)]
    assert not any(word in "".join(lines) for word in (tokens["read"], "class00", "secret", "PNG"))


def test_an_error_of_the_service_is_a_problem_without_its_cause(serving, shared_gallery, monkeypatch):
    client = serving(shared_gallery)
    monkeypatch.setattr(client.app.state.service.galleries["shapes"], "item", lambda _: 1 / 0)
    answer = ask(client, "image")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert ("division" in answer.text, answer.headers["x-request-id"] in answer.json()["detail"]) == (False, True)


def test_settings_come_from_file_environment_and_command_line_in_this_order(tmp_path):
    file = tmp_path / "serve.toml"
    file.write_text('galleries = ["a"]\nport = 1\nbatch = 1\nwaiting = 1\n')
    environ = {"SIGHTLINE_SERVE_BATCH": "2", "SIGHTLINE_SERVE_WAITING": "2", "SIGHTLINE_SERVE_ALLOWED_HOSTS": "a.b, c"}
    found = read_settings(file, {"waiting": 3, "host": None}, environ)
    assert (found.port, found.batch, found.waiting, found.allowed_hosts) == (1, 2, 3, ("a.b", "c"))
    assert found.session_key not in repr(found)
    example = read_settings(ROOT / "deploy" / "serve.toml", environ={"SIGHTLINE_SERVE_RATE": "none"})
    assert (example.token_file, example.rate) == (Path("/etc/sightline/tokens.toml"), None)


def test_the_page_on_settings_names_all_with_their_defaults():
    text = (ROOT / "docs" / "serve.md").read_text()
    rows = dict(re.findall(r"^\| `(\w+)` \| (.*?) ?\|", text[text.index("| setting |") :], re.MULTILINE))
    assert rows.keys() == ServeSettings.model_fields.keys()
    for name, value in rows.items():
        default = ServeSettings.model_fields[name].default
        if isinstance(default, int | float) and not isinstance(default, bool):
            assert float(value.replace(",", "")) == default


def test_settings_and_tokens_that_do_not_fit_are_refused_by_name(tmp_path):
    one, file = {"galleries": ["a"]}, tmp_path / "tokens.toml"
    for given, named in (
        ({}, "galleries"),
        (one | {"port": 70000}, "port"),
        (one | {"prot": 1}, "prot"),
        (one | {"host": "0.0.0.0"}, "--token-file"),
        (one | {"host": "example.org"}, "--token-file"),
        ({"galleries": ["a", "b/a"]}, "'a'"),
        (one | {"image_roots": ["/nowhere/phtos"]}, "/nowhere/phtos"),
    ):
        assert_refused(named, read_settings, given=given, environ={})
    run = CliRunner().invoke(command_line, ["token", "ann", "--file", str(file), "--scope", "write"])
    found = Tokens(file, "k" * 32, 1).find(run.output.strip())
    assert (run.exit_code, found.name, found.scope) == (0, "ann", "write")
    for name, scope, named in (("ann", "read", "'ann'"), ("bob", "wrote", "'write'"), ('"', "read", "name")):
        assert_refused(named, add_token, file, name, scope)
    for text in ("", "token = []", "[[token]]\nname = 'a'\nscope = 'all'\nsha256 = 'zz'", "broken ["):
        file.write_text(text)
        assert_refused(r"tokens\.toml", read_tokens, file)


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
