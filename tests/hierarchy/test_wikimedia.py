"""The client of the Wikimedia API against a server on this machine that answers from a recording."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

import pytest

from refusals import assert_refused
from sightline.hierarchy.wikimedia import Wikimedia


def statement(item, rank="normal"):
    return {"mainsnak": {"datavalue": {"value": {"id": item}, "type": "wikibase-entityid"}}, "rank": rank}


def without(kind):
    return {"mainsnak": {"snaktype": kind}, "rank": "normal"}


# As wbgetentities answers, cut to what is asked for.
PAGES = {
    "Eiffel Tower": ("Q243", [statement("Q1440476"), statement("Q570116")]),
    "Notre-Dame": ("Q2981", [statement("Q2977"), statement("Q1", "deprecated")]),
    "Nowhere": ("Q9", [without("novalue")]),
}
NAMES = {"Q1440476": "lattice tower", "Q570116": "tourist attraction", "Q2977": "cathedral"}
NAMES |= {"Q12518": "tower", "Q16970": "church building"}
ABOVE = {  # "subclass of"; the last two are subclasses of each other
    "Q1440476": [statement("Q1"), statement("Q12518", "preferred")],
    "Q570116": [without("somevalue")],
    "Q2977": [statement("Q16970"), statement("Q44539")],
    "Q16970": [statement("Q12518")],
    "Q12518": [statement("Q16970")],
}


def entity_of(item):
    return {"id": item, "claims": {"P31": dict(PAGES.values()).get(item, []), "P279": ABOVE.get(item, [])}}


def entities_of(asked):
    if "ids" in asked:
        items = asked["ids"].split("|")
        if asked["props"] == "labels":
            return {item: {"id": item, "labels": {"en": {"language": "en", "value": NAMES[item]}}} for item in items}
        return {item: entity_of(item) for item in items}
    found = {}
    for number, title in enumerate(asked["titles"].split("|"), start=1):
        if title in PAGES:
            item = PAGES[title][0]
            found[item] = entity_of(item) | {"sitelinks": {asked["sites"]: {"site": asked["sites"], "title": title}}}
        else:  # as the site writes it, or not found
            found[f"-{number}"] = {"site": "enwiki", "title": title, "missing": ""}
    return found


class Recorded(BaseHTTPRequestHandler):
    """Answers; ``troubles`` are given first, one a request."""

    def do_GET(self):
        asked = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        self.server.asked.append((self.headers["User-Agent"], asked))
        status, headers, body = self.server.troubles.pop(0) if self.server.troubles else (200, {}, None)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write((json.dumps({"entities": entities_of(asked), "success": 1}) if body is None else body).encode())

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Recorded)
    server.asked, server.troubles = [], []
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def client(server, folder, **options):
    usual = {"per_second": 1000.0, "wait": 0.001}
    return Wikimedia(folder, "me@example.org", f"http://127.0.0.1:{server.server_address[1]}/w/api.php", **usual | options)


LABELS = ["Eiffel_Tower", "Atlantis", "Notre-Dame", "Nowhere", "Q2981"]
FOUND = [["lattice tower", "tourist attraction"], [], ["cathedral"], [], ["cathedral"]]


def test_instance_of_titles_and_items_is_asked_for_once_and_not_too_fast(server, tmp_path):
    waited = []
    assert client(server, tmp_path, per_second=0.001, sleep=waited.append).instance_of(LABELS) == FOUND
    assert len(server.asked) == 3
    assert [round(wait, -3) for wait in waited] == [1000, 2000]  # nothing passes while this clock sleeps
    assert all(agent.startswith("Sightline/") and "me@example.org" in agent for agent, _ in server.asked)
    assert all(asked["maxlag"] == "5" for _, asked in server.asked)
    assert client(server, tmp_path).instance_of(LABELS) == FOUND
    assert len(server.asked) == 3
    client(server, tmp_path, site="commonswiki").instance_of(["Eiffel Tower"])
    assert server.asked[3][1]["sites"] == "commonswiki"


@pytest.mark.parametrize(
    ("steps", "tower", "cathedral"),
    [(1, ["tower", "tourist attraction"], ["church building"]), (2, ["church building", "tourist attraction"], ["tower"])],
)
def test_superclasses_are_followed_as_far_as_asked(server, tmp_path, steps, tower, cathedral):
    found = client(server, tmp_path).instance_of(LABELS, superclasses=steps)
    assert found == [tower, [], cathedral, [], cathedral]
    assert len(server.asked) == 3 + steps


def test_a_stopped_run_goes_on(server, tmp_path):
    labels = [f"Page {number}" for number in range(120)]
    client(server, tmp_path, retries=0).instance_of(labels[:50])
    server.troubles = [(200, {}, json.dumps({"entities": {}})), (500, {}, "broken")]
    assert_refused(r"no answer \(500 .*run it again to go on", client(server, tmp_path, retries=0).instance_of, labels)
    assert len(server.asked) == 3
    assert client(server, tmp_path).instance_of(labels) == [[]] * 120
    assert [asked["titles"].split("|")[0] for _, asked in server.asked[3:]] == ["Page 100"]


def test_it_waits_longer_each_time_as_long_as_it_is_asked_to_and_takes_no_half_answer(server, tmp_path):
    lag = json.dumps({"error": {"code": "maxlag", "info": "Waiting for a server"}})
    server.troubles = [(503, {}, ""), (429, {"Retry-After": "7"}, ""), (200, {}, lag), (200, {}, "{half")]
    server.troubles += [(200, {"Content-Length": "999"}, '{"entities": {')]
    waited = []
    found = client(server, tmp_path, wait=1.0, sleep=waited.append).instance_of(["Notre-Dame"])
    assert found == [["cathedral"]]
    assert [wait for wait in waited if wait >= 1] == [1.0, 7.0, 14.0, 28.0, 56.0]
    assert sorted(file.suffix for file in tmp_path.iterdir()) == [".json"] * 2
    server.troubles = [(200, {"Content-Length": "999"}, "{}")] * 2
    half = client(server, tmp_path / "new", retries=1)
    assert_refused(r"no answer \(IncompleteRead.*run it again to go on", half.instance_of, LABELS)


def test_what_will_not_get_better_is_reported_at_once(server, tmp_path):
    error = json.dumps({"error": {"code": "no-such-entity", "info": "Could not find an entity"}})
    server.troubles = [(200, {}, error), (403, {}, "")]
    for fact in ("Could not find an entity", "403"):
        assert_refused(fact, client(server, tmp_path).instance_of, ["Notre-Dame"])
    assert (len(server.asked), [*tmp_path.iterdir()]) == (2, [])
    assert_refused("contact", Wikimedia, tmp_path, " ")  # whoever asks must say who it is
    assert_refused(r"api.*ftp://x", Wikimedia, tmp_path, "me", api="ftp://x")
