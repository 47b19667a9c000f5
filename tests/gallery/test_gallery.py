"""A gallery holds what was put into it, finds what brute force finds, and refuses what does not fit."""

import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from drawn import DIM, IDENTITY, draw
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from refusals import assert_refused
from sightline.errors import InputError
from sightline.gallery import store
from sightline.gallery.gallery import EncoderIdentity, Gallery


def unit(vectors):
    wide = np.asarray(vectors, float)
    return wide / np.linalg.norm(wide, axis=-1, keepdims=True)


def assert_finds(gallery, items, queries, k=7, where=None, keep=lambda metadata: True):
    """The gallery ranks by falling cosine in double precision, over a dictionary of id: (vector, metadata)."""
    scores, ids = gallery.search(queries, k, where=where)
    kept = {id_: vector for id_, (vector, metadata) in items.items() if keep(metadata)}
    assert scores.shape == ids.shape == (len(queries), min(k, len(kept)))
    assert (scores.dtype, ids.dtype) == (np.float32, object)
    for query, row_scores, row_ids in zip(queries, scores, ids, strict=True):
        expected = sorted(((-float(unit(query) @ unit(vector)), id_) for id_, vector in kept.items()))[:k]
        assert row_ids.tolist() == [id_ for _, id_ in expected]
        np.testing.assert_allclose(row_scores, [-score for score, _ in expected], atol=2e-6)


@pytest.fixture
def gallery(tmp_path):
    with Gallery.create(tmp_path / "gallery", IDENTITY) as opened:
        yield opened


@pytest.fixture
def filled(gallery):
    """100 items, and what was put in."""
    vectors, metadata = draw(100), [{"year": 1990 + n, "label_0": f"c{n % 7}"} for n in range(100)]
    ids = [f"item {n}" for n in range(100)]
    gallery.add(ids, vectors, metadata)
    return gallery, dict(zip(ids, zip(vectors, metadata, strict=True), strict=True))


def test_a_filter_leaves_the_rest_in_order(filled):
    gallery, items = filled
    conditions = {
        'label_0 == "c3" and year < 2060': lambda m: m["label_0"] == "c3" and m["year"] < 2060,
        "year > 1990": lambda m: m["year"] > 1990,
        "year > 9999": lambda m: False,
    }
    for gone in (["item 5", "item 99"], ["item 6"]):
        for where, keep in conditions.items():
            assert_finds(gallery, items, draw(4, seed=3), 10, where, keep)
            kept = [id_ for id_, (_, metadata) in items.items() if keep(metadata)]
            assert (gallery.filter(where), gallery.count(where), gallery.count()) == (kept, len(kept), len(items))
        gallery.remove(gone)
        items = {id_: item for id_, item in items.items() if id_ not in gone}


def test_what_was_put_in_comes_out(gallery):
    vectors = draw(5)
    odd = {"path": "ä/1.png", "a \"quoted\" 'key'": 'a "value"\n', "codes": ["ü;", "1"], "yes": True, "none": None}
    rows = [{"n": 2**62, "x": 0.1, **odd}, {}, {"big": np.int64(3), "half": np.float32(0.5)}]
    gallery.add(["a", "b/ü 'x'", "c"], vectors[:3], rows)
    table = pl.DataFrame({"id": ["d", "e"], "year": [1, None], "good": [True, False]})
    gallery.add(table["id"].to_list(), vectors[3:], table)
    ids = ["c", "a", "b/ü 'x'", "e"]
    items, expected = gallery.get(ids), [{"big": 3, "half": 0.5}, rows[0], {}, {"year": None, "good": False}]
    assert [item.id for item in items] == ids
    assert [item.metadata for item in items] == gallery.metadata(ids) == expected
    assert type(items[1].metadata["yes"]) is bool
    np.testing.assert_allclose([item.vector for item in items], unit(vectors)[[2, 0, 1, 4]], atol=1e-6)
    assert (gallery.vectors([]).shape, gallery.get([])) == ((0, DIM), [])


def test_lengths_are_taken_off_for_cosine_and_kept_for_dot_whatever_kind_of_array_holds_them(gallery, tmp_path):
    for scale in (1e-11, 1e25, 3e37):
        gallery.upsert(["a", "b"], draw(2) * np.array([[1], [scale]], np.float32))
        np.testing.assert_allclose(gallery.vectors(["a", "b"]), unit(draw(2)), atol=1e-6)
        scores, ids = gallery.search(draw(2) * np.float32(scale), 1)
        assert ids.tolist() == [["a"], ["b"]]
        np.testing.assert_allclose(scores, 1, atol=1e-6)
    vectors = draw(50)
    tensor, queries = torch.from_numpy(vectors).requires_grad_(), draw(3, seed=1)
    with Gallery.create(str(tmp_path / "dot"), IDENTITY, metric="dot") as dot:
        for given in (vectors.tolist(), vectors.astype(float), tensor, tensor.double()):
            ids = np.array([str(n) for n in range(50)])  # ids may be an array too
            dot.upsert(ids, given)
            np.testing.assert_allclose(dot.vectors(ids), vectors, atol=1e-6)
            assert dot.search(given[:3], np.int64(1))[1].shape == (3, 1)
        scores, ids = dot.search(queries, 5)
        dot.add(["half"], tensor[:1].bfloat16())
        assert dot.ids()[-1] == "half"
    products = queries.astype(float) @ vectors.astype(float).T
    expected = np.argsort(-products, 1)[:, :5]
    assert ids.astype(int).tolist() == expected.tolist()
    np.testing.assert_allclose(scores, np.take_along_axis(products, expected, 1), rtol=1e-5)


def test_equal_scores_come_in_the_order_they_were_added_and_nothing_in_an_empty_gallery(gallery):
    assert gallery.filter("year > 3") == gallery.ids() == gallery.verify() == []
    assert gallery.search(draw(2))[1].shape == (2, 0)
    gallery.add([str(n) for n in range(40)], np.tile(draw(1), (40, 1)))
    gallery.upsert(["3"], draw(1))
    assert gallery.search(draw(1), 40)[1][0].tolist() == [*(str(n) for n in range(40) if n != 3), "3"]
    assert gallery.search(draw(0))[0].shape == (0, 10)
    gallery.remove(gallery.ids())
    for _ in range(2):
        assert (gallery.search(draw(2))[0].shape, len(gallery)) == ((2, 0), 0)
        gallery.compact()


NAN = np.where(np.arange(24).reshape(3, 8) == 10, np.nan, draw(3))
REFUSED = [  # ids, vectors, metadata, and the facts that the message must name
    (["a", "b", "c"], NAN, None, "vectors .* 1 of 3 rows: 'b'"),
    (["a", "b", "c"], draw(3) * [[1], [1e-20], [1]], None, "length 0 .*'b'"),
    (["a"], np.full((1, 8), 1e300), None, "1 of 1 rows: 'a'"),
    (["a"], draw(1, dim=7), None, "vectors .* 8 dimensions, got 7"),
    (["a"], draw(1)[0], None, r"\(N, 8\), got float32 \(8,\)"),
    (["a"], torch.ones(1, 8, dtype=torch.int64), None, r"\(N, 8\), got int64"),
    (["a", "b"], [[1.0] * 8, [1.0]], None, r"vectors .*\(N, 8\)"),
    (["a", "b"], draw(3), None, "2 ids and 3 vectors"),
    (["a", "b", "a"], draw(3), None, "1 more than once: 'a'"),
    (["a", "", 3, "a\0b"], draw(4), None, "(?s)3 faults.*''.*3"),
    ("abc", draw(3), None, "list of strings, got str 'abc'"),
    (None, draw(3), None, "list of strings, got NoneType"),
    (["a"], draw(1), [], "0 rows for 1 ids"),
    (["a"], draw(1), 5, "metadata .* got int"),
    (["a"], draw(1), [{"x": (1,)}], "'a': x .* got tuple"),
    (["a"], draw(1), [{"x": [1]}], "'a': x .* got 1"),
    (["a"], draw(1), [{"x": []}], "'a': x .* empty list"),
    (["a"], draw(1), [{"x": ["1", "2", "1"]}], "'a': x .* '1' twice"),
    (["a"], draw(1), [{"x": ["1", ""]}], "'a': x .* got ''"),
    (["a"], draw(1), [{"x": ["a\0"]}], "'a': x .* NUL"),
    (["a"], draw(1), [{"x": ["\ud800"]}], "'a': x .* UTF-8"),
    (["a"], draw(1), [{"x": [str(n) for n in range(101)]}], "'a': x .* 101 .* 100"),
    (["a"], draw(1), [{"x": ["a" * 201]}], "'a': x .* 201 .* 200"),
    (["a"], draw(1), [{"label_1": ["a"]}], "'a': label_1 must have one value"),
    (["a"], draw(1), [{"x": float("nan")}], "'a': x .* got nan"),
    (["a"], draw(1), [{"x": 2**63}], "'a': x is 9223372036854775808, .* 64 bits"),
    (["a"], draw(1), [{"x": "\ud800"}], "'a': x .* UTF-8"),
    (["a"], draw(1), [{"id": "b"}], "'a': .* id 'b'"),
    (["a"], draw(1), [{3: "b"}], "key .* got 3"),
    (["a", "b"], draw(2), [{}, "year"], "row 1: 'year'"),
]


REFUSED_QUERIES = [
    (draw(2), 0, "k .* got 0"),
    (draw(2), "3", "k .* got '3'"),
    (draw(2, dim=3), 1, "queries .* 8 dimensions, got 3"),
    (draw(2).astype(float) * [[1], [1e300]], 1, "1 of 2 rows: '1'"),
    ("a", 1, "queries"),
]


def test_what_does_not_fit_is_refused_and_nothing_changes(filled):
    gallery, items = filled
    before = gallery.generation
    for ids, vectors, metadata, message in REFUSED:
        for write in (gallery.add, gallery.upsert):
            assert_refused(message, write, ids, vectors, metadata)
    assert_refused(["1 ids", "'item 7'"], gallery.add, ["new", "item 7"], draw(2))
    for call in (gallery.remove, gallery.get, gallery.vectors, gallery.metadata):
        assert_refused(["2 unknown", "'x'", "'y'"], call, ["item 1", "x", "y"])
        assert_refused("got str 'item 1'", call, "item 1")
    for call in (gallery.get, gallery.vectors, gallery.metadata):  # of a file name that is not UTF-8, or no string at all
        assert_refused(["2 unknown", "udcff'", "'3'"], call, ["item 1", "\udcff", 3])
    for queries, k, message in REFUSED_QUERIES:
        assert_refused(message, gallery.search, queries, k)
    assert (gallery.generation, gallery.ids(), gallery.verify()) == (before, list(items), [])


def test_vectors_of_another_encoder_are_refused_by_name(tmp_path, encoder, other_encoder):
    with Gallery.create(tmp_path / "g", encoder) as gallery:
        assert gallery.identity == EncoderIdentity(encoder.fingerprint(), DIM, "tiny")
        assert gallery.encoder().fingerprint() == encoder.fingerprint()
        gallery.add(["a"], draw(1), encoder=encoder)
        other = other_encoder.fingerprint()
        message = f"'tiny' with fingerprint {encoder.fingerprint()}; .* has {other}"
        for made_by in (other_encoder, other, EncoderIdentity.of(other_encoder)):
            assert_refused(message, gallery.add, ["b"], draw(1), encoder=made_by)
            assert_refused(message, gallery.search, draw(1), encoder=made_by)
        assert gallery.ids() == ["a"]


def test_folders_that_are_no_gallery_are_refused_and_left_alone(tmp_path, filled):
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "gallery.db").write_text("this is no database " * 100)
    new = tmp_path / "new"
    for message, call, *arguments in (
        ("nowhere: not a gallery: no such folder", Gallery.open, tmp_path / "nowhere"),
        ("text: the database is damaged", Gallery.open, tmp_path / "text"),
        ("str or Path, got NoneType", Gallery.open, None),
        ("exists and is not empty", Gallery.create, filled[0].folder, IDENTITY),
        ("metric 'cosin': did you mean 'cosine'", partial(Gallery.create, metric="cosin"), new, IDENTITY),
        ("EncoderIdentity, got .*Path", Gallery.create, new, tmp_path),
        ("fingerprint", EncoderIdentity, "", 8, "x"),
        ("no encoder is saved .*'by hand'", filled[0].encoder),
    ):
        assert_refused(message, call, *arguments)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gallery", "text"]


def test_a_reader_sees_another_connections_writes_at_its_next_search_and_maps_the_table(filled):
    gallery, items = filled
    with Gallery.open(gallery.folder, read_only=True) as reader:

        def finds_all():
            assert_finds(reader, items, draw(3, seed=4), k=200)
            assert reader._snapshot.is_mapped  # never copied

        finds_all()
        before = reader.generation
        for number in range(8):
            items["late"] = draw(1, seed=number)[0], {"year": 5}
            gallery.upsert(["late"], draw(1, seed=number), [{"year": 5}])
            finds_all()
        gallery.remove(["item 0"])
        del items["item 0"]
        finds_all()
        gallery.compact()
        finds_all()
        assert [file.name for file in gallery.folder.glob("vectors-*")] == ["vectors-1.f32"]
        assert reader.generation > before
        assert (reader.filter("year == 5"), reader.repairs, reader.verify()) == (["late"], [], [])
        assert_refused("read_only", reader.add, ["x"], draw(1))


WRITER = """
import os, sys, numpy as np
from sightline.gallery.gallery import Gallery
with Gallery.open(sys.argv[1]) as gallery:
    for n in range(20):
        gallery.add([f"{sys.argv[2]} {n}"], np.random.default_rng(n).standard_normal((1, 8)))
"""


@pytest.fixture
def reader(filled, monkeypatch):
    """A function that opens the gallery as one who may not write to its folder."""
    with ExitStack() as opened:

        def opening():
            with monkeypatch.context() as patched:
                patched.setattr(os, "access", lambda *_: False)
                return opened.enter_context(Gallery.open(filled[0].folder, read_only=True))

        yield opening


def test_who_may_not_write_misses_no_write_beside_a_writer_and_after_one_was_killed(filled, reader):
    gallery, items = filled
    late = reader()
    gallery.add(["late"], draw(1))
    assert late.ids() == [*items, "late"]
    gallery.close()
    late.close()
    subprocess.run([sys.executable, "-c", WRITER + "    os.kill(os.getpid(), 9)", gallery.folder, "new"])
    assert (gallery.folder / "gallery.db-wal").stat().st_size
    assert reader().ids() == [*items, "late", *(f"new {n}" for n in range(20))]


def test_who_may_not_write_misses_no_write_when_a_writer_comes_and_goes(filled, reader):
    gallery, items = filled
    gallery.close()
    still = reader()
    assert still.ids() == list(items)
    assert not list(gallery.folder.glob("gallery.db-*"))  # the reader may write nothing
    with Gallery.open(gallery.folder) as writer:
        writer.add(["one"], draw(1))
        assert_finds(still, items | {"one": (draw(1)[0], {})}, draw(2, seed=3), k=200)
        writer.remove(["one"])
    assert still.ids() == list(items)
    again = reader()
    with Gallery.open(gallery.folder) as writer:
        writer.add(["two"], draw(1))
    assert again.ids() == still.ids() == [*items, "two"]
    again.close()
    assert_refused("closed", again.ids)


def test_a_second_writer_waits_and_then_says_why(filled, monkeypatch):
    gallery, _ = filled
    monkeypatch.setattr(store, "BUSY_SECONDS", 0.1)
    with Gallery.open(gallery.folder) as second:
        with gallery._store.writing(), pytest.raises(InputError, match=r"another process is writing; waited 0\.1 s"):
            second.add(["x"], draw(1))
        second.add(["x"], draw(1))
    assert gallery.ids()[-1] == "x"


def test_two_writing_processes_take_turns_while_threads_search(filled):
    gallery, _ = filled
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, gallery.folder, name]) for name in ("one", "two")]

    def searching():
        while any(writer.poll() is None for writer in writers):
            scores, ids = gallery.search(draw(2), 200)
            assert len({*ids[0]}) == ids.shape[1]
            assert np.isfinite(scores).all()
            time.sleep(0.02)

    with ThreadPoolExecutor(2) as pool:
        searches = [pool.submit(searching) for _ in range(2)]
    assert [search.result() for search in searches] == [None, None]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert len(gallery) == gallery.search(draw(1), 999)[1].shape[1] == 140
    assert gallery.verify() == []


def test_a_backup_is_a_gallery_of_its_own_and_compacting_gives_space_back(filled, reader, tmp_path):
    gallery, items = filled
    reader().backup(tmp_path / "copy")
    with Gallery.open(tmp_path / "copy") as copy:
        assert_finds(copy, items, draw(3, seed=5), k=200)
        copy.add([str(n) for n in range(5000)], draw(5000))
        copy.remove([str(n) for n in range(4700)])
        before = copy.stats()
        copy.compact()
        after = copy.stats()
        assert (before["removed"], after["removed"], after["items"]) == (4700, 0, 400)
        assert after["folder_bytes"] < before["folder_bytes"] / 3
        assert copy.verify() == []
    assert gallery.ids() == list(items)
    assert_refused("exists and is not empty", gallery.backup, tmp_path / "copy")


def test_a_block_of_writes_is_kept_whole_or_not_at_all(filled):
    gallery, _ = filled
    before, ids = gallery.generation, gallery.ids()

    def exchange(old, new):
        with gallery.writing():
            gallery.remove([old])
            gallery.add([new], draw(1))

    assert_refused("item 4", exchange, "item 3", "item 4")
    assert (gallery.generation, gallery.ids()) == (before, ids)
    exchange("item 3", "new")
    assert (gallery.generation, gallery.ids()) == (before + 1, [*(id_ for id_ in ids if id_ != "item 3"), "new"])


@pytest.mark.parametrize("step", ["remove", "append", "readmit"])
def test_a_write_that_ends_half_way_changes_nothing(filled, monkeypatch, step):
    gallery, items = filled
    real, before = getattr(store.Store, step), gallery.generation

    def last(*words):
        real(*words)
        raise KeyboardInterrupt

    monkeypatch.setattr(store.Store, step, last)
    with pytest.raises(KeyboardInterrupt):
        gallery.upsert(["item 3", "new"], draw(2))
    with Gallery.open(gallery.folder) as again:
        assert (again.generation, again.ids(), again.verify()) == (before, list(items), [])
        assert_finds(again, items, draw(2, seed=3))


def test_files_that_go_while_their_sizes_are_added_up_do_not_count(filled, monkeypatch):
    before, passing, is_file = filled[0].stats()["folder_bytes"], filled[0].folder / "passing.png", Path.is_file
    passing.write_bytes(b"image")
    monkeypatch.setattr(Path, "is_file", lambda file: is_file(file) and (file != passing or passing.unlink() is None))
    assert filled[0].stats()["folder_bytes"] == before


def flip(file, place):
    data = bytearray(file.read_bytes())
    data[place] ^= 0x10
    file.write_bytes(data)


def test_damage_in_the_table_of_vectors_is_reported_and_repaired(filled):
    gallery, items = filled
    gallery.search(draw(1))
    file = gallery.folder / "vectors-0.f32"
    with file.open("r+b") as opened:
        opened.seek(1000)
        opened.write(b"\xff\xff")
    assert [fault[:13] for fault in gallery.verify()] == [file.name]
    assert_finds(gallery, items, draw(3, seed=6))
    assert gallery.verify() == []
    gallery.close()
    for damage, repaired in ((lambda: flip(file, file.stat().st_size // 2), [file.name]), (file.unlink, [])):
        damage()
        with Gallery.open(gallery.folder) as again:
            assert_finds(again, items, draw(3, seed=6))
            assert [repair[:13] for repair in again.repairs] == repaired


def test_damage_in_the_database_is_reported_and_not_hidden_by_compacting(filled):
    gallery, _ = filled
    gallery.remove(["item 0"])
    gallery.close()
    file = gallery.folder / "gallery.db"
    whole = file.read_bytes()
    vector = unit(draw(100)).astype(np.float32)[1].tobytes()[4:12]
    for place in (whole.index(vector) + 5, whole.index(b"item 42{"), whole.index(b'"year": 2001') + 3):
        file.write_bytes(whole)
        for is_damaged in (False, True):
            with Gallery.open(gallery.folder) as again:
                assert bool(again.verify()) is is_damaged
            flip(file, place)
        flip(file, place)
    with Gallery.open(gallery.folder) as again:
        before = again.generation
        assert_refused("checksum of 'item 11'", again.compact)
        assert again.generation == before
        assert any("'item 11'" in fault for fault in again.verify())


class AnyOrder(RuleBasedStateMachine):
    """Any sequence of writes leaves the gallery equal to a dictionary that was written the same way."""

    @initialize()
    def begin(self):
        self.folder = Path(tempfile.mkdtemp()) / "g"
        self.gallery = Gallery.create(self.folder, IDENTITY)
        self.items, self.n_drawn = {}, 0

    @rule(names=st.sets(st.integers(0, 30), min_size=1, max_size=8))
    def upsert(self, names):
        self.n_drawn += 1
        ids, vectors = [str(name) for name in names], draw(len(names), seed=self.n_drawn)
        metadata = [{"year": name, "turn": self.n_drawn} for name in names]
        self.gallery.upsert(ids, vectors, metadata)
        for id_, vector, row in zip(ids, vectors, metadata, strict=True):
            self.items.pop(id_, None)
            self.items[id_] = (vector, row)

    @precondition(lambda self: self.items)
    @rule(data=st.data())
    def remove(self, data):
        gone = data.draw(st.sets(st.sampled_from(sorted(self.items)), min_size=1))
        self.gallery.remove(sorted(gone))
        self.items = {id_: item for id_, item in self.items.items() if id_ not in gone}

    @rule()
    def compact(self):
        self.gallery.compact()

    @rule()
    def reopen(self):
        self.gallery.close()
        self.gallery = Gallery.open(self.folder)

    @invariant()
    def is_the_dictionary(self):
        assert self.gallery.ids() == list(self.items)
        assert_finds(self.gallery, self.items, draw(1, seed=99), k=40)
        assert_finds(self.gallery, self.items, draw(1, seed=98), 40, "year >= 20", lambda m: m["year"] >= 20)

    def teardown(self):
        assert self.gallery.verify() == []
        self.gallery.close()


TestAnyOrder = AnyOrder.TestCase
TestAnyOrder.settings = settings(derandomize=True, database=None, deadline=None, max_examples=8, stateful_step_count=12)
