"""The review page in a real browser, and its server without one."""

import signal
import subprocess
import sys
from importlib import import_module

import httpx
import numpy as np
import polars as pl
import pytest
from page_server import running
from PIL import Image
from safetensors.numpy import save_file

from refusals import assert_refused
from sightline.hierarchy.collect import digest, write_step
from sightline.hierarchy.journal import Review
from sightline.serve.review import create_review_app, serve_review
from sightline.serve.run import uvicorn_config
from sightline.serve.settings import ServeSettings

GROUPS = {"pets": ["cat", "dog", "car", "bus"], "wild": ["lion"], "trees": ["oak", "elm"]}
PLACES = {"cat": 0.0, "dog": 0.1, "lion": 0.3, "car": 3.0, "bus": 3.1, "oak": 1.5, "elm": 1.6}


@pytest.fixture
def folder(tmp_path):
    Image.fromarray(np.full((200, 300, 3), 90, np.uint8)).save(tmp_path / "cat.png")
    texts = [text for group in GROUPS.values() for text in group]
    examples = [str(tmp_path / "cat.png") if text == "cat" else "" for text in texts]
    terms = pl.DataFrame({"text": texts, "n_labels": 1, "n_images": 2, "labels": texts, "examples": examples})
    write_step(tmp_path, "terms.csv", terms)
    angles = np.array([PLACES[text] for text in texts])
    vectors = np.stack([np.cos(angles), np.sin(angles)], 1).astype(np.float32)
    save_file({"vectors": vectors}, tmp_path / "vectors.safetensors", {"terms": digest(tmp_path / "terms.csv")})
    above = {"pets": "animals", "wild": "animals", "trees": "plants"}
    rows = [(text, 1, 2, group, above[group]) for group, texts in GROUPS.items() for text in texts]
    columns = ["text", "n_labels", "n_images", "group_1", "group_2"]
    write_step(tmp_path, "clusters.csv", pl.DataFrame(rows, schema=columns, orient="row"))
    return tmp_path


@pytest.fixture
def server(folder):
    settings = ServeSettings(rate=None)
    with running(uvicorn_config(settings, create_review_app(Review(folder), settings))) as address:
        yield address


@pytest.fixture
def visitor(server):
    with httpx.Client(base_url=server, timeout=60) as opened:
        yield opened


def groups_on_disk(folder):
    """What somebody who opens the folder again finds."""
    state, found = Review(folder).state, {}
    for text in state.home:
        found.setdefault("/".join(reversed(state.path(text))), set()).add(text)
    return found


FIRST = {"animals/pets": {"cat", "dog", "car", "bus"}, "animals/wild": {"lion"}, "plants/trees": {"oak", "elm"}}


@pytest.fixture
def tab(server, chromium):
    import_module("sklearn.cluster")  # which the command loads in the background
    tab = chromium.new_page()
    tab.set_default_timeout(60_000)
    tab.troubles = []
    tab.on("pageerror", lambda error: tab.troubles.append(str(error)))
    tab.on("console", lambda message: message.type == "error" and tab.troubles.append(message.text))
    tab.on("request", lambda request: "127.0.0.1" in request.url or tab.troubles.append(request.url))
    tab.goto(server)
    tab.wait_for_selector(".member")
    yield tab
    tab.close()
    assert tab.troubles == []


def shown(tab):
    return {*tab.locator(".member b").all_inner_texts()}


def open_group(tab, name):
    tab.locator("#tree .entry", has=tab.get_by_text(name, exact=True)).click()
    tab.wait_for_function("name => document.getElementById('name').value === name", arg=name)


def says(tab, text):
    tab.locator("#toast", has_text=text).wait_for()


def fill(tab, selector, text):
    tab.locator(selector).fill(text)
    tab.locator(selector).press("Enter")


def test_a_review_by_hand(tab, folder):
    open_group(tab, "pets")
    assert shown(tab) == {"cat", "dog", "car", "bus"}
    tab.wait_for_function("() => [...document.querySelectorAll('.member img')].some(image => image.naturalWidth > 0)")
    fill(tab, "#name", "house pets")
    says(tab, "Renamed to house pets")
    tab.keyboard.press("s")
    says(tab, "Split in two")
    halves = [texts for path, texts in groups_on_disk(folder).items() if path.startswith("animals") and len(texts) == 2]
    assert {frozenset(texts) for texts in halves} == {frozenset({"cat", "dog"}), frozenset({"car", "bus"})}
    tab.locator("#undo").click()
    says(tab, "Undone")
    assert groups_on_disk(folder)["animals/house pets"] == {"cat", "dog", "car", "bus"}
    for member in ("car", "bus"):
        tab.locator(".member", has_text=member).click()
    tab.locator("#new").click()
    fill(tab, "#answer", "vehicles")
    says(tab, "vehicles made")
    tab.locator(".member", has_text="dog").click()
    tab.keyboard.press("m")
    fill(tab, "#picker-find", "wild")
    says(tab, "Moved to wild")
    open_group(tab, "vehicles")
    tab.locator("#move").click()
    tab.locator("#choices .choice", has_text="plants").click()
    says(tab, "Moved below plants")
    tab.keyboard.press("g")
    tab.locator("#choices .choice", has_text="trees").click()
    says(tab, "Merged into trees")
    made = {"animals/house pets": {"cat"}, "animals/wild": {"lion", "dog"}, "plants/trees": {"oak", "elm", "car", "bus"}}
    assert groups_on_disk(folder) == made
    tab.reload()
    tab.wait_for_selector(".member")
    assert shown(tab) == {"oak", "elm", "car", "bus"}
    tab.locator(".member", has_text="bus").click()
    tab.keyboard.press("x")
    says(tab, "1 left out")
    assert groups_on_disk(folder)[""] == {"bus"}
    while tab.locator("#undo").is_enabled():
        with tab.expect_response("**/api/act"), tab.expect_response("**/api/members*"):
            tab.locator("#undo").click()
        tab.wait_for_function("() => document.getElementById('toast').textContent.startsWith('Undone')")
    assert groups_on_disk(folder) == FIRST


def test_a_mistake_is_shown_and_a_phone_shows_one_thing_at_a_time(tab, folder):
    tab.set_viewport_size({"width": 390, "height": 800})
    open_group(tab, "wild")
    assert not tab.locator("#tree").is_visible()
    fill(tab, "#name", "trees")
    says(tab, "'trees'")
    tab.wait_for_function("() => document.getElementById('name').value === 'wild'")
    assert tab.evaluate("document.documentElement.scrollWidth") <= 390
    tab.locator("#back").click()
    assert tab.locator("#tree").is_visible()
    assert groups_on_disk(folder) == FIRST
    tab.troubles[:] = [one for one in tab.troubles if "409" not in one]  # the browser's own line about the refusal


def test_a_key_pressed_twice_makes_one_change_which_can_be_undone_at_once(tab, folder):
    open_group(tab, "pets")
    acts, members = [], []
    tab.route("**/api/act", lambda route: route.continue_() if acts else acts.append(route))
    tab.keyboard.press("s")
    tab.keyboard.press("s")
    says(tab, "Working…")
    tab.route("**/api/members*", lambda route: members.append(route))
    acts[0].continue_()
    says(tab, "Split in two")
    assert len((folder / "journal.jsonl").read_text().splitlines()) == 2, "one line says which clusters, one is the change"
    tab.keyboard.press("u")
    says(tab, "Undone")
    for request in members:
        request.continue_()
    assert groups_on_disk(folder) == FIRST


def test_a_stale_page_and_wrong_requests_change_nothing(visitor, folder):
    change = {"action": "drop", "texts": ["cat"]}
    whole = {"version": 0, "change": change}
    for body, headers, status in (
        ({"version": 3, "change": change}, {}, 409),
        ({"change": change}, {}, 422),
        (whole, {"Host": "evil.example:80"}, 421),
        (whole, {"Origin": "http://evil.example"}, 403),
    ):
        assert visitor.post("/api/act", json=body, headers=headers).status_code == status
    assert visitor.get("/api/members?group=99").status_code == 409
    assert groups_on_disk(folder) == FIRST
    assert visitor.post("/api/act", json=whole).status_code == 200
    assert "cat" in groups_on_disk(folder)[""]


def test_the_command_serves_this_machine_alone_until_it_is_interrupted(folder):
    assert_refused(r"--host .*0\.0\.0\.0", serve_review, Review(folder), "0.0.0.0", 0, False, print)
    command = [sys.executable, "-m", "sightline", "hierarchy", "review", str(folder), "--port", "0", "--no-open"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        page = httpx.get(process.stdout.readline().split()[0], timeout=30).text
        process.send_signal(signal.SIGINT)
        rest = process.stdout.read()
    assert "<title>Review of a label tree</title>" in page
    assert (process.returncode, rest.strip()) == (0, str(folder / "review.csv"))
    assert len(pl.read_csv(folder / "review.csv")) == len(PLACES)


def test_pictures_are_small_and_only_those_of_the_texts(visitor):
    texts = ("cat&n=0", "cat&n=1", "..%2Fclusters.csv&n=0")
    small, *others = (visitor.get(f"/picture?text={text}") for text in texts)
    assert (small.status_code, small.headers["content-type"], len(small.content) < 5000) == (200, "image/png", True)
    assert [one.status_code for one in others] == [409, 409]


def test_the_nearest_groups_come_first_and_texts_are_found(visitor):
    def asked(path):
        return visitor.get(f"/api/{path}").json()

    groups = asked("overview")["groups"]
    number = {group["name"]: group["id"] for group in groups}
    centre = {name: np.mean([np.exp(1j * PLACES[text]) for text in texts]) for name, texts in GROUPS.items()}
    gaps = {name: abs(centre[name] - centre["wild"]) for name in ("pets", "trees")}
    assert asked(f"near?group={number['wild']}&level=1") == [number[name] for name in sorted(gaps, key=gaps.get)]
    assert asked("find?words=lio") == [{"text": "lion", "group": number["wild"]}]
    assert next(group["counts"] for group in groups if group["name"] == "animals") == [5, 5, 10]
