"""A gallery holds what was put into it, finds what brute force finds, and refuses what does not fit."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sightline.errors import InputError
from sightline.gallery import store
from sightline.gallery.gallery import EncoderIdentity, Gallery
from sightline.models.encoder import Encoder

DIM = 8
IDENTITY = EncoderIdentity("f" * 32, DIM, "by hand")


def draw(n_rows, seed=0, dim=DIM):
    return np.random.default_rng(seed).standard_normal((n_rows, dim)).astype(np.float32)


def best_by_definition(items, query, k, keep=lambda metadata: True):
    """(score, id) by falling cosine in double precision, from a dictionary of id: (vector, metadata)."""
    wide = np.asarray(query, float) / np.linalg.norm(np.asarray(query, float))
    scored = [
        (float(wide @ (vector.astype(float) / np.linalg.norm(vector.astype(float)))), id_)
        for id_, (vector, metadata) in items.items()
        if keep(metadata)
    ]
    return sorted(scored, key=lambda pair: -pair[0])[:k]


def assert_finds(gallery, items, queries, k=7, where=None, keep=lambda metadata: True):
    scores, ids = gallery.search(queries, k, where=where)
    n_found = min(k, sum(keep(metadata) for _, metadata in items.values()))
    assert scores.shape == ids.shape == (len(queries), n_found)
    assert (scores.dtype, ids.dtype) == (np.float32, object)
    for query, row_scores, row_ids in zip(queries, scores, ids, strict=True):
        expected = best_by_definition(items, query, k, keep)
        assert row_ids.tolist() == [id_ for _, id_ in expected]
        np.testing.assert_allclose(row_scores, [score for score, _ in expected], atol=2e-6)


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


def test_finds_what_brute_force_finds_after_every_kind_of_write(filled):
    gallery, items = filled
    queries = draw(5, seed=1)
    assert_finds(gallery, items, queries)
    gone = [f"item {n}" for n in range(0, 100, 3)]
    gallery.remove(gone)
    items = {id_: item for id_, item in items.items() if id_ not in gone}
    assert_finds(gallery, items, queries)
    newer = draw(3, seed=2)
    gallery.upsert(["item 1", "new", "item 3"], newer, [{"year": 1}, {}, {"year": 3}])
    items |= {"item 1": (newer[0], {"year": 1}), "new": (newer[1], {}), "item 3": (newer[2], {"year": 3})}
    assert_finds(gallery, items, queries, k=200)
    gallery.compact()
    assert_finds(gallery, items, queries, k=200)
    assert len(gallery) == len(items) == len(gallery.ids())
    assert gallery.verify() == []
    with Gallery.open(gallery.folder, read_only=True) as again:
        assert_finds(again, items, queries, k=200)
        assert again.repairs == []


@pytest.mark.parametrize(
    ("where", "keep"),
    [
        ("year >= 2050", lambda m: m["year"] >= 2050),
        ('label_0 == "c3" and year < 2060', lambda m: m["label_0"] == "c3" and m["year"] < 2060),
        ("year == 1995", lambda m: m["year"] == 1995),
        ("year > 1990", lambda m: m["year"] > 1990),
        ("year > 9999", lambda m: False),
    ],
)
def test_a_filter_leaves_the_rest_in_order(filled, where, keep):
    gallery, items = filled
    assert_finds(gallery, items, draw(4, seed=3), 10, where, keep)
    assert gallery.filter(where) == [id_ for id_, (_, metadata) in items.items() if keep(metadata)]
    gallery.remove(["item 5", "item 99"])
    items = {id_: item for id_, item in items.items() if id_ not in ("item 5", "item 99")}
    assert_finds(gallery, items, draw(4, seed=3), 10, where, keep)


def test_what_was_put_in_comes_out(gallery):
    vectors = draw(3)
    metadata = [
        {"path": "ä/1.png", "n": 2**62, "x": 0.1, "yes": True, "none": None, "a \"quoted\" 'key'": 'a "value"\n'},
        {},
        {"big": np.int64(3), "half": np.float32(0.5)},
    ]
    gallery.add(["a", "b/ü 'x'", "c"], vectors, metadata)
    items = gallery.get(["c", "a", "b/ü 'x'"])
    assert [item.id for item in items] == ["c", "a", "b/ü 'x'"]
    assert [item.metadata for item in items] == [{"big": 3, "half": 0.5}, metadata[0], {}]
    assert gallery.metadata(["b/ü 'x'", "a"]) == [{}, metadata[0]]
    assert type(items[1].metadata["yes"]) is bool
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    np.testing.assert_allclose([item.vector for item in items], units[[2, 0, 1]], atol=1e-6)
    np.testing.assert_allclose(gallery.vectors(["b/ü 'x'", "c"]), units[[1, 2]], atol=1e-6)
    assert gallery.vectors([]).shape == (0, DIM)
    assert gallery.get([]) == []


def test_metadata_may_be_a_table_with_the_ids(gallery):
    table = pl.DataFrame({"id": ["a", "b"], "path": ["a.png", "b.png"], "year": [1, None], "good": [True, False]})
    gallery.add(table["id"].to_list(), draw(2), table)
    assert [item.metadata for item in gallery.get(["a", "b"])] == [
        {"path": "a.png", "year": 1, "good": True},
        {"path": "b.png", "year": None, "good": False},
    ]


@pytest.mark.parametrize("scale", [1e-11, 1e-5, 1e25, 3e37])
def test_vectors_of_any_length_have_a_direction(gallery, scale):
    gallery.add(["a", "b"], draw(2) * np.array([[1], [scale]], np.float32))
    units = draw(2) / np.linalg.norm(draw(2), axis=1, keepdims=True)
    np.testing.assert_allclose(gallery.vectors(["a", "b"]), units, atol=1e-6)
    scores, ids = gallery.search(draw(2) * np.float32(scale), 1)
    assert ids.tolist() == [["a"], ["b"]]
    np.testing.assert_allclose(scores, 1, atol=1e-6)


def test_dot_keeps_lengths(tmp_path):
    vectors, queries = draw(50), draw(3, seed=1)
    with Gallery.create(tmp_path / "g", IDENTITY, metric="dot") as gallery:
        gallery.add([str(n) for n in range(50)], vectors)
        scores, ids = gallery.search(queries, 5)
        np.testing.assert_array_equal(gallery.vectors(["7"])[0], vectors[7])
    products = queries.astype(float) @ vectors.astype(float).T
    expected = np.argsort(-products, 1)[:, :5]
    assert ids.astype(int).tolist() == expected.tolist()
    np.testing.assert_allclose(scores, np.take_along_axis(products, expected, 1), rtol=1e-5)


def test_equal_scores_come_in_the_order_they_were_added(gallery):
    gallery.add([str(n) for n in range(40)], np.tile(draw(1), (40, 1)))
    gallery.upsert(["3"], draw(1))
    assert gallery.search(draw(1), 40)[1][0].tolist() == [*(str(n) for n in range(40) if n != 3), "3"]


def test_an_empty_gallery_finds_nothing(gallery):
    scores, ids = gallery.search(draw(2))
    assert scores.shape == ids.shape == (2, 0)
    assert gallery.filter("year > 3") == gallery.ids() == gallery.verify() == []
    gallery.add(["a"], draw(1))
    gallery.remove(["a"])
    assert gallery.search(draw(2))[0].shape == (2, 0)
    gallery.compact()
    assert gallery.search(draw(2))[0].shape == (2, 0)
    assert len(gallery) == 0
    assert gallery.search(draw(0))[0].shape == (0, 0)


def with_fault(value):
    vectors = draw(3)
    vectors[1, 2] = value
    return vectors


@pytest.mark.parametrize(
    ("ids", "vectors", "metadata", "message"),
    [
        (["a", "b", "c"], with_fault(np.nan), None, "vectors: NaN or infinity in 1 of . rows: 'b'"),
        (["a", "b", "c"], draw(3) * [[1], [0], [1]], None, "vectors of length 0 have no cosine: 'b'"),
        (["a", "b", "c"], draw(3) * [[1], [1e-20], [1]], None, "vectors of length 0 have no cosine: 'b'"),
        (["a"], draw(1, dim=7), None, "vectors have 7 dimensions, the gallery 8"),
        (["a"], draw(1)[0], None, r"a table of floating point numbers \(N, 8\) is needed, found float32 \(8,\)"),
        (["a"], np.ones((1, 8), int), None, "a table of floating point numbers .* found int64"),
        (["a", "b"], draw(3), None, "3 vectors for 2 ids"),
        (["a", "b", "a"], draw(3), None, "1 ids are there more than once in one call: 'a'"),
        (["a", "", 3], draw(3), None, "(?s)2 faults.*id '' is not a string.*id 3 is not"),
        (["a\0b"], draw(1), None, "is not a string of at least one letter"),
        ("abc", draw(3), None, "a list of ids is needed, found the single string 'abc'"),
        (["new", "item 7"], draw(2), None, "1 ids are there already: 'item 7'"),
        (["a"], draw(1), [], "0 rows of metadata for 1 ids"),
        (["a"], draw(1), [{"x": [1]}], "'a': x is of type list, not str, int, float, bool or None"),
        (["a"], draw(1), [{"x": float("nan")}], "'a': x is nan; a number or None is needed"),
        (["a"], draw(1), [{"x": 2**63}], "'a': x is 9223372036854775808, which does not fit in 64 bits"),
        (["a"], draw(1), [{"x": "\ud800"}], "'a': x is .*, which is not UTF-8"),
        (["a"], draw(1), [{"id": "b"}], "'a': its metadata has another id"),
        (["a"], draw(1), [{3: "b"}], "the key 3 is not a string"),
        (["a", "b"], draw(2), [{}, "year"], "a dictionary is needed for each item, found .row 1: 'year'"),
        (["a", "b"], [[1.0] * 8, [1.0]], None, "vectors: .* found rows of different lengths"),
        (["a"], np.full((1, 8), 1e300), None, "vectors: NaN or infinity in 1 of . rows: 'a'"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_changes(filled, ids, vectors, metadata, message):
    gallery, items = filled
    before = gallery.generation
    with pytest.raises(InputError, match=message):
        gallery.add(ids, vectors, metadata)
    if "there already" not in message:
        with pytest.raises(InputError, match=message):
            gallery.upsert(ids, vectors, metadata)
    assert gallery.generation == before
    assert gallery.ids() == list(items)
    assert gallery.verify() == []


def test_unknown_ids_are_named_and_none_is_removed(filled):
    gallery, items = filled
    for call in (gallery.remove, gallery.get, gallery.vectors, gallery.metadata):
        with pytest.raises(InputError, match="gallery: 2 unknown ids: 'x', 'y'"):
            call(["item 1", "x", "y"])
        with pytest.raises(InputError, match="a list of ids is needed, found the single string 'item 1'"):
            call("item 1")
    for call in (gallery.get, gallery.vectors, gallery.metadata):  # of a file name that is not UTF-8, or no string at all
        with pytest.raises(InputError, match=r"gallery: 2 unknown ids: '.udcff', '3'"):
            call(["item 1", "\udcff", 3])
    assert gallery.ids() == list(items)
    with pytest.raises(InputError, match="more than once in one call: 'item 1'"):
        gallery.remove(["item 1", "item 1"])


@pytest.mark.parametrize(
    ("queries", "k", "message"),
    [
        (draw(2), 0, "k is 0; at least 1 is needed"),
        (draw(2, dim=3), 1, "queries have 3 dimensions, the gallery 8"),
        (with_fault(np.nan), 1, "queries: NaN or infinity in 1 of 3 rows: '1'"),
        (draw(2).astype(float) * [[1], [1e300]], 1, "queries: NaN or infinity in 1 of 2 rows: '1'"),
    ],
)
def test_bad_queries_are_refused(filled, queries, k, message):
    with pytest.raises(InputError, match=message):
        filled[0].search(queries, k)


def test_vectors_of_another_encoder_are_refused_by_name(tmp_path):
    encoder, other = (Encoder.create("tiny", embedding_dim=DIM, image_size=32, seed=seed) for seed in (0, 1))
    with Gallery.create(tmp_path / "g", encoder) as gallery:
        assert gallery.identity == EncoderIdentity(encoder.fingerprint(), DIM, "tiny")
        assert gallery.encoder().fingerprint() == encoder.fingerprint()
        gallery.add(["a"], draw(1), encoder=encoder)
        message = f"of another encoder: 'tiny' with the fingerprint {encoder.fingerprint()}; .* has {other.fingerprint()}"
        for made_by in (other, other.fingerprint(), EncoderIdentity.of(other)):
            with pytest.raises(InputError, match=message):
                gallery.add(["b"], draw(1), encoder=made_by)
            with pytest.raises(InputError, match=message):
                gallery.search(draw(1), encoder=made_by)
        assert gallery.ids() == ["a"]


def test_a_gallery_without_an_encoder_says_so(gallery):
    with pytest.raises(InputError, match=r"no encoder is saved in this gallery.*'by hand'"):
        gallery.encoder()


def test_folders_that_are_no_gallery_are_refused_and_left_alone(tmp_path, filled):
    with pytest.raises(InputError, match=r"nowhere: not a gallery: it has no gallery\.db"):
        Gallery.open(tmp_path / "nowhere")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "gallery.db").write_text("this is no database " * 100)
    with pytest.raises(InputError, match="text: the database is damaged or was closed: file is not a database"):
        Gallery.open(tmp_path / "text")
    with pytest.raises(InputError, match="exists and is not empty"):
        Gallery.create(filled[0].folder, IDENTITY)
    with pytest.raises(InputError, match="unknown metric 'cosin': did you mean 'cosine'"):
        Gallery.create(tmp_path / "new", IDENTITY, metric="cosin")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["gallery", "text"]
    assert len(filled[0]) == 100


def test_a_reader_sees_another_connections_writes_at_its_next_search(filled):
    gallery, items = filled
    with Gallery.open(gallery.folder, read_only=True) as reader:
        queries = draw(3, seed=4)
        assert_finds(reader, items, queries)
        before = reader.generation
        gallery.add(["late"], queries[:1], [{"year": 5}])
        items["late"] = (queries[0], {"year": 5})
        assert reader.generation > before
        assert reader.search(queries[:1], 1)[1].tolist() == [["late"]]
        assert_finds(reader, items, queries)
        gallery.remove(["item 0"])
        del items["item 0"]
        assert_finds(reader, items, queries, k=200)
        gallery.compact()
        assert_finds(reader, items, queries, k=200)
        assert reader.filter("year == 5") == ["late"]
        with pytest.raises(InputError, match="was opened for reading only"):
            reader.add(["x"], draw(1))


WRITER = """
import os, sys, numpy as np
from sightline.gallery.gallery import Gallery
with Gallery.open(sys.argv[1]) as gallery:
    for n in range(20):
        gallery.add([f"{sys.argv[2]} {n}"], np.random.default_rng(n).standard_normal((1, 8)))
"""


class TestFolderThatMayNotBeWritten:
    """Its readers miss no acknowledged write, whether a writer is at it, was killed, or comes and goes."""

    @pytest.fixture
    def reader(self, filled, monkeypatch):
        """A function that opens the gallery as one who may not write."""
        opened = []

        def opening():
            with monkeypatch.context() as patched:
                patched.setattr(os, "access", lambda *_: False)
                opened.append(Gallery.open(filled[0].folder, read_only=True))
            return opened[-1]

        yield opening
        for gallery in opened:
            gallery.close()

    def test_while_a_writer_is_at_it(self, filled, reader):
        gallery, items = filled
        late = reader()
        assert late.ids() == list(items)
        gallery.add(["late"], draw(1))
        assert late.ids() == [*items, "late"]

    def test_after_a_writer_was_killed(self, filled, reader):
        gallery, items = filled
        gallery.close()
        subprocess.run([sys.executable, "-c", WRITER + "    os.kill(os.getpid(), 9)", gallery.folder, "new"])
        assert (gallery.folder / "gallery.db-wal").stat().st_size
        assert reader().ids() == [*items, *(f"new {n}" for n in range(20))]

    def test_when_a_writer_comes_and_goes(self, filled, reader, tmp_path):
        gallery, items = filled
        gallery.close()
        still = reader()
        assert still.ids() == list(items)
        assert not list(gallery.folder.glob("gallery.db-*"))  # nothing was made: the reader may not
        still.backup(tmp_path / "copy")
        with Gallery.open(gallery.folder) as writer:
            writer.add(["one"], draw(1))
            assert len(still) == 101
            assert_finds(still, items | {"one": (draw(1)[0], {})}, draw(2, seed=3), k=200)
            writer.remove(["one"])
        assert still.ids() == list(items)
        again = reader()
        with Gallery.open(gallery.folder) as writer:
            writer.add(["two"], draw(1))
        assert again.ids() == still.ids() == [*items, "two"]
        again.close()
        with pytest.raises(InputError, match="damaged or was closed"):
            again.ids()
        with Gallery.open(tmp_path / "copy") as copy:
            assert copy.ids() == list(items)


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
    faults = []

    def searching():
        try:
            while any(writer.poll() is None for writer in writers):
                scores, ids = gallery.search(draw(2), 200)
                if len({*ids[0]}) != ids.shape[1] or not np.isfinite(scores).all():
                    faults.append(ids)
                time.sleep(0.02)
        except Exception as error:
            faults.append(error)

    threads = [threading.Thread(target=searching) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [writer.wait() for writer in writers] == [0, 0]
    assert faults == []
    assert len(gallery) == gallery.search(draw(1), 999)[1].shape[1] == 140
    assert gallery.verify() == []


def test_a_backup_is_a_gallery_of_its_own(filled, tmp_path):
    gallery, items = filled
    gallery.remove(["item 3"])
    del items["item 3"]
    gallery.backup(tmp_path / "copy")
    gallery.remove(["item 4"])
    with Gallery.open(tmp_path / "copy") as copy:
        assert_finds(copy, items, draw(3, seed=5), k=200)
        assert copy.verify() == []
        copy.add(["only here"], draw(1))
    assert "only here" not in gallery.ids()
    with pytest.raises(InputError, match="exists and is not empty"):
        gallery.backup(tmp_path / "copy")


def test_compacting_gives_space_back(gallery):
    gallery.add([str(n) for n in range(20_000)], draw(20_000))
    gallery.remove([str(n) for n in range(19_000)])
    before = gallery.stats()
    gallery.compact()
    after = gallery.stats()
    assert (before["removed"], after["removed"], after["items"]) == (19_000, 0, 1000)
    assert after["folder_bytes"] < before["folder_bytes"] / 4


def test_a_block_of_writes_is_kept_whole_or_not_at_all(filled):
    gallery, _ = filled
    before, ids = gallery.generation, gallery.ids()

    def exchange(old, new):
        with gallery.writing():
            gallery.remove([old])
            gallery.add([new], draw(1))

    with pytest.raises(InputError, match="there already"):
        exchange("item 3", "item 4")
    assert (gallery.generation, gallery.ids()) == (before, ids)
    exchange("item 3", "new")
    assert (gallery.generation, gallery.ids()) == (before + 1, [*(id_ for id_ in ids if id_ != "item 3"), "new"])


def test_files_that_go_while_their_sizes_are_added_up_do_not_count(filled, monkeypatch):
    gallery, _ = filled
    before = gallery.stats()["folder_bytes"]
    passing = gallery.folder / "passing.png"
    passing.write_bytes(b"image")
    is_file = Path.is_file

    def gone_afterwards(file):
        found = is_file(file)
        if file == passing:
            passing.unlink()
        return found

    monkeypatch.setattr(Path, "is_file", gone_afterwards)
    assert gallery.stats()["folder_bytes"] == before


class TestDamage:
    """A flipped byte is found wherever it is."""

    def test_in_the_table_of_vectors_is_repaired_on_opening(self, filled):
        gallery, items = filled
        gallery.search(draw(1))
        gallery.close()
        file = gallery.folder / "vectors-0.f32"
        flip(file, file.stat().st_size // 2)
        with Gallery.open(gallery.folder) as again:
            assert_finds(again, items, draw(3, seed=6))
            assert len(again.repairs) == 1
            assert "vectors-0.f32" in again.repairs[0]
        file.unlink()
        with Gallery.open(gallery.folder) as again:
            assert_finds(again, items, draw(3, seed=6))

    def test_in_the_table_of_an_open_gallery_is_reported_and_then_repaired(self, filled):
        gallery, items = filled
        gallery.search(draw(1))
        with (gallery.folder / "vectors-0.f32").open("r+b") as file:
            file.seek(1000)
            file.write(b"\xff\xff")
        (fault,) = gallery.verify()
        assert fault.startswith("vectors-0.f32: 1 blocks are damaged")
        assert_finds(gallery, items, draw(3, seed=6))
        assert gallery.verify() == []

    def test_in_the_database_is_reported(self, filled):
        gallery, _ = filled
        gallery.close()
        file = gallery.folder / "gallery.db"
        whole = file.read_bytes()
        places = {"vectors": whole.index(draw_units(100).tobytes()[:16]) + 5}
        places |= {"metadata": whole.index(b'"year": 2000'), "id": whole.index(b"item 42{")}
        for place in places.values():
            file.write_bytes(whole)
            flip(file, place)
            with Gallery.open(gallery.folder) as again:
                assert again.verify()
        file.write_bytes(whole)
        with Gallery.open(gallery.folder) as again:
            assert again.verify() == []

    def test_in_the_metadata_is_not_made_good_by_compacting(self, filled):
        gallery, _ = filled
        gallery.remove(["item 0"])
        gallery.close()
        file = gallery.folder / "gallery.db"
        flip(file, file.read_bytes().index(b'"year": 2001') + 3)
        with Gallery.open(gallery.folder) as again:
            before = again.generation
            with pytest.raises(InputError, match="damaged: wrong checksum of 'item 11'; nothing was changed"):
                again.compact()
            assert again.generation == before
            assert any("'item 11'" in fault for fault in again.verify())


def draw_units(n_rows):
    vectors = draw(n_rows)
    with_lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))
    return (vectors / with_lengths[:, None]).astype(np.float32)


def flip(file, place):
    data = bytearray(file.read_bytes())
    data[place] ^= 0x10
    file.write_bytes(data)


class AnyOrder(RuleBasedStateMachine):
    """Any sequence of writes leaves the gallery equal to a dictionary that was written the same way."""

    @initialize()
    def begin(self):
        import tempfile
        from pathlib import Path

        self.folder = Path(tempfile.mkdtemp()) / "g"
        self.gallery = Gallery.create(self.folder, IDENTITY)
        self.items = {}
        self.n_drawn = 0

    def drawn(self, n):
        self.n_drawn += 1
        return draw(n, seed=self.n_drawn)

    @rule(names=st.sets(st.integers(0, 30), min_size=1, max_size=8))
    def upsert(self, names):
        ids, vectors = [str(name) for name in names], self.drawn(len(names))
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
