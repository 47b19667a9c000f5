"""Scopes, tokens and sessions; host and origin checks; limits; headers and logs; settings."""

import json
import logging
import re
import threading
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

import pytest
from served_galleries import png
from typer.testing import CliRunner

from refusals import assert_refused
from sightline.cli.main import app as command_line
from sightline.serve.guard import JsonLines, RateLimit
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


def ask(client, name, token=None, **headers):
    method, path, _ = REQUESTS[name]
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    return client.request(method, path, json={"id": "super0/class00/0.png"} if name == "search" else None, headers=headers)


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


def test_other_spellings_of_tokens_open_nothing(serving, shared_gallery, tokens):
    client, token = serving(shared_gallery, token_file=tokens["file"]), tokens["write"]
    digest = read_tokens(tokens["file"])[1].sha256
    wrong = [f"Bearer {one}" for one in ("", digest, f"{token}x", token[:-1])]
    for given in ("", "Bearer", f"Basic {token}", token, *wrong):
        assert client.get("/v1/galleries", headers={"Authorization": given}).status_code == 401, given
    assert client.get(f"/v1/galleries?token={token}").status_code == 401
    assert client.get("/v1/galleries", headers={"Authorization": f"bearer  {token}"}).status_code == 200


def test_the_file_holds_no_token_is_private_and_is_read_again(serving, shared_gallery, tokens):
    file = tokens["file"]
    assert tokens["read"] not in file.read_text()
    assert file.stat().st_mode & 0o077 == 0
    client = serving(shared_gallery, token_file=file)
    file.chmod(0o640)
    later = add_token(file, "later", "read")
    assert file.stat().st_mode & 0o777 == 0o640  # the mode is kept
    assert ask(client, "galleries", later).status_code == 200
    text = file.read_text()
    file.write_text(text[: text.rindex("[[token]]")])  # revoked
    assert ask(client, "galleries", later).status_code == 401
    file.write_text("broken [")
    assert ask(client, "galleries", tokens["read"]).status_code == 401


def test_a_session_reads_images_and_nothing_else(serving, shared_gallery, image_tree, tokens):
    client = serving(shared_gallery, token_file=tokens["file"], image_roots=[image_tree])
    assert client.post("/v1/session").status_code == 401
    begun = client.post("/v1/session", headers={"Authorization": f"Bearer {tokens['write']}"})
    header = begun.headers["set-cookie"]
    assert all(word in header for word in ("HttpOnly", "SameSite=strict", "Path=/v1/items", "Max-Age=900"))
    assert tokens["write"] not in header
    assert ask(client, "image").status_code == 200  # the client keeps cookies
    assert ask(client, "add").status_code == 401
    cookie = re.search("sightline_session=([^;]*)", header)[1]
    for forged in (cookie[:-1], cookie.replace(cookie[:3], "999", 1), "", "9999999999.x.y"):
        client.cookies.clear()
        assert ask(client, "image", Cookie=f"sightline_session={forged}").status_code == 401
    client.delete("/v1/session")
    (token, _), file = read_tokens(tokens["file"]), tokens["file"]
    value = Tokens(file, "k" * 32, 1000).session(token)
    keys = ("k" * 32, "other" * 8)
    assert [Tokens(file, key, 1000).find_session(value) is None for key in keys] == [False, True]
    assert Tokens(file, keys[0], 1000).find_session(Tokens(file, keys[0], -5).session(token)) is None  # expired


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example:8000"}, 421),
        ({"Host": "[::1]:8000"}, 200),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:9000"}, 403),
        ({"Origin": "http://127.0.0.1:8000"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, 403),
        ({"X-Forwarded-For": "10.0.0.1"}, 401),
    ],
)
def test_pages_of_others_and_unknown_names_are_refused(client, headers, status):
    assert ask(client, "search", **headers).status_code == status
    assert ask(client, "health", Host="10.0.0.7:8000").status_code == 200  # probes use an address


def test_every_answer_has_the_headers(client):
    for path in ("/v1/health", "/nothing", "/v1/items/super0%2Fclass00%2F0.png/image"):
        headers = client.get(path).headers
        policy = headers["content-security-policy"]
        found = ["default-src 'none'" in policy, "frame-ancestors 'none'" in policy, "unsafe" in policy]
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
    go, forward = threading.Event(), encoding.encoder.forward
    encoding.encoder.forward = lambda images: (go.wait(), forward(images))[1]
    with ThreadPoolExecutor(12) as pool:
        running = {pool.submit(client.post, "/v1/search", files={"image": ("x", png(n))}) for n in range(12)}
        refused = []
        while len(refused) < 8:  # all but those that hold a place
            done, running = wait(running, timeout=600, return_when=FIRST_COMPLETED)
            assert done
            refused += [one.result() for one in done]
        assert client.get("/v1/health").status_code == 200  # the event loop is free meanwhile
        go.set()
        assert {one.result().status_code for one in running} == {200}
    assert [(one.status_code, one.headers["retry-after"]) for one in refused] == [(429, "1")] * 8


@pytest.mark.parametrize("says_length", [True, False])
def test_a_request_that_is_too_long_is_ended_while_it_comes(serving, shared_gallery, says_length):
    client = serving(shared_gallery, upload_bytes=100_000)

    def body():
        yield b'--b\r\nContent-Disposition: form-data; name="image"; filename="x"\r\n\r\n'
        yield from 1000 * [b"x" * 10_000]

    headers = {"Content-Type": "multipart/form-data; boundary=b"} | ({"Content-Length": "10000067"} if says_length else {})
    assert client.post("/v1/search", content=body(), headers=headers).status_code == 413
    answer = client.post("/v1/search/vector", content=b" " * 1_000_001, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.headers["content-type"]) == (413, "application/problem+json")


def test_logs_are_json_and_know_neither_ids_nor_tokens_nor_images(serving, shared_gallery, image_tree, tokens, caplog):
    client = serving(shared_gallery, token_file=tokens["file"], image_roots=[image_tree])
    bearer = {"Authorization": f"Bearer {tokens['read']}"}
    with caplog.at_level(logging.INFO, "sightline.serve"):
        ask(client, "image", tokens["read"])
        client.post("/v1/search", files={"image": ("secret.png", png())}, headers=bearer)
    lines = [JsonLines().format(record) for record in caplog.records if record.name == "sightline.serve"]
    found = [(line["route"], line["caller"], line["status"]) for line in map(json.loads, lines)]
    assert found == [("/v1/items/{id}/image", "token:reader", 200), ("/v1/search", "token:reader", 200)]
    assert not any(word in "".join(lines) for word in (tokens["read"], "class00", "secret", "PNG"))


def test_an_error_of_the_service_is_a_problem_without_its_cause(serving, shared_gallery, monkeypatch):
    client = serving(shared_gallery)
    monkeypatch.setattr(client.app.state.service.galleries["shapes"], "item", lambda _: 1 / 0)
    answer = ask(client, "image")
    assert (answer.status_code, answer.headers["content-type"]) == (500, "application/problem+json")
    assert "division" not in answer.text
    assert answer.headers["x-request-id"] in answer.json()["detail"]


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


def test_settings_that_do_not_fit_are_refused_by_name():
    one = {"galleries": ["a"]}
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


def test_the_command_makes_tokens_and_refuses_what_does_not_fit(tmp_path):
    file = tmp_path / "tokens.toml"
    run = CliRunner().invoke(command_line, ["token", "ann", "--file", str(file), "--scope", "write"])
    found = Tokens(file, "k" * 32, 1).find(run.output.strip())
    assert (run.exit_code, found.name, found.scope) == (0, "ann", "write")
    for name, scope, named in (("ann", "read", "'ann'"), ("bob", "wrote", "'write'"), ('"', "read", "name")):
        assert_refused(named, add_token, file, name, scope)


def test_files_that_hold_no_tokens_are_named(tmp_path):
    for text in ("", "token = []", "[[token]]\nname = 'a'\nscope = 'all'\nsha256 = 'zz'", "broken ["):
        (tmp_path / "tokens.toml").write_text(text)
        assert_refused(r"tokens\.toml", read_tokens, tmp_path / "tokens.toml")
