"""The gallery on Milvus, in a Milvus Lite file, compared with a gallery in a folder."""

import importlib.util
import json
import socket
from functools import partial

import numpy as np
import pytest
from drawn import assert_same

from refusals import assert_refused
from sightline.gallery import milvus as milvus_module
from sightline.gallery.filters import compile_filter
from sightline.gallery.gallery import EncoderIdentity, Gallery
from sightline.gallery.milvus import Address, MilvusGallery, index_type, milvus_filter
from sightline.gallery.query import refined_search
from sightline.ranking.refine import Refinement

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("milvus_lite") is None, reason="needs pymilvus[milvus_lite]"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of protobuf and pymilvus
]
IDENTITY = EncoderIdentity(fingerprint="00ff", dim=6, name="by hand")
ODD = "quote \" backslash \\ line\nö'"
CODES = ["26.1", "26.1.15", "26.10", "5.3", "26", ODD, "a", ".net", "ü.é"]
VALUES = [1, 2.5, "a", "b", "", ODD, True, False, None, 2, -3, 10**15 + 1]


def uri_of(folder, collection="birds"):
    return f"milvus+file:{folder}/gallery.db/{collection}"


def draw(seed, n):
    return np.random.default_rng(seed).normal(size=(n, 6)).astype(np.float32)


def items(n, seed=0):
    """Ids, vectors and metadata with values of every type, some missing."""
    metadata = [{"x": VALUES[row % 12], "year": 2000 + row, "label": "ab"[row % 2]} for row in range(n)]
    for row in metadata[::3]:
        row["two words"] = row["label"]
    for row in metadata[::5]:
        del row["x"]
    for place, row in enumerate(metadata):
        if place % 4 != 3:
            row["codes" if place % 8 else "x"] = CODES[place % 7 : place % 7 + 1 + place % 3]
    return [f"item {row}" for row in range(n)], draw(seed, n), metadata


@pytest.fixture
def folder(tmp_path):
    with Gallery.create(tmp_path / "folder", IDENTITY, index="exact") as gallery:
        gallery.add(*items(40))
        yield gallery


@pytest.fixture
def both(folder, tmp_path):
    """The same 40 items in Milvus and in a folder."""
    with MilvusGallery.make(uri_of(tmp_path), IDENTITY, index="exact") as milvus:
        milvus.add(*items(40))
        yield milvus, folder


def assert_same_results(milvus, folder, **options):
    found, expected = (gallery.search(draw(1, 7), **options) for gallery in (milvus, folder))
    assert found[0].dtype == np.float32
    assert_same(found, expected)


def test_it_holds_what_the_folder_holds_after_any_writes(both, tmp_path):
    milvus, folder = both
    rng = np.random.default_rng(0)
    for step in range(4):
        known = folder.ids()
        gone = rng.choice(known, 4, replace=False).tolist()
        replaced = [*rng.choice([one for one in known if one not in gone], 3, replace=False).tolist(), f"put {step}"]
        for gallery in both:
            gallery.remove(gone)
            gallery.add([f"new {step} {n}" for n in range(5)], draw(step + 10, 5), [{"step": step}] * 5)
            gallery.upsert(replaced, draw(step + 20, 4), [{"again": True}] * 4)
    assert (len(milvus), milvus.ids()) == (len(folder), folder.ids())
    assert_same_results(milvus, folder, k=12)
    some = folder.ids()[::-3]
    for one, other in zip(milvus.get(some), folder.get(some), strict=True):
        assert (one.id, one.metadata) == (other.id, other.metadata)
        np.testing.assert_allclose(one.vector, other.vector, atol=1e-6)
    milvus.compact()
    assert milvus.verify() == []
    milvus.close()
    milvus.close()
    with Gallery.open(uri_of(tmp_path)) as again:
        assert (type(again), again.identity, again.metric) == (MilvusGallery, IDENTITY, "cosine")
        assert again.ids() == folder.ids()
        assert_same_results(again, folder, k=12)


LEAVES = ["x == 1", "x != 1", "x < 2", "x >= 2", "2 > x", 'x < "b"', 'x >= "a"', 'x == ""', "x == None", "x != None"]
LEAVES += ["x in [1, 'a', None]", "x in []", "x not in ('b', 2.5)", "x == 2.0", "x == True", "x < True", f"x == {ODD!r}"]
LEAVES += ["1 <= x < 3", "nothing == 1", "nothing != 1", "nothing < 1", "x == -3", "x > -1e300", f"x == {10**15 + 1}"]
LEAVES += ["metadata['x'] == 1", "2 > metadata['x']"]
LEAVES += [f"metadata['two words'] {test}" for test in ("in ['a', None]", "!= 'a'")]
LEAVES += [f"{code!r} in {name}" for code in CODES for name in ("codes", "x")]
LEAVES += [f"has({name}, {code!r})" for code in (*CODES, "ü", "2", "26.") for name in ("codes", "metadata['x']")]
LEAVES += ["codes == None", "codes != '26.1'", "codes < '3'", "codes in ['26.1', None]"]
LEAVES += ["'26.1' in label", "has(nothing, 'a')"]
LEAVES += ["id == 'item 3'", "id != 'item 3'", "id < 'item 2'", "id in ['item 1', 'item 99', 5]", "id == 5", "id < 5"]
JOINED = ['label == "a" and year >= 2020', "not (x == 1 or year < 2010)", "not (x < 2 and not year > 2004)"]
JOINED += ["not not x == 'a'", "not (1 <= x < 3)", "x == 1 or x == 'a' or not id == 'item 1'"]
JOINED += ["not (x in [1, None] and year != 2001)", "has(codes, '26') and not has(codes, '26.1') or '5.3' in x"]


def test_it_finds_what_the_folder_finds_and_filters_mean_the_same(both):
    milvus, folder = both
    for text in [*LEAVES, *JOINED]:
        for condition in (text, f"not ({text})"):
            assert milvus.filter(condition) == folder.filter(condition), condition
            assert milvus.count(condition) == folder.count(condition), condition
    for options in ({"k": 1}, {"k": 100}, {"k": 8, "where": 'label == "a" and year >= 2007'}):
        assert_same_results(*both, **options)
    refinement = Refinement(expand=3, rerank="kreciprocal", depth=15, reciprocal=5)
    assert_same(*(refined_search(one, draw(4, 5), 6, refinement, where="year > 2003") for one in both), atol=1e-4)


def test_what_is_not_in_the_language_is_refused_and_a_string_cannot_leave_its_quotes():
    for text in ("__import__('os')", "x < None", "x < 1e999", 7):
        assert assert_refused("filter", milvus_filter, text) == assert_refused("filter", compile_filter, text)
    text = milvus_filter(f"x == {'a' + chr(34) + ' or id != ' + chr(34)!r}")
    assert text == 'metadata["x"] == "a\\" or id != \\""'
    for text in (f"{ODD!r} in codes", f"has(codes, {ODD!r})"):
        assert milvus_filter(text).endswith(f'"], {json.dumps(ODD, ensure_ascii=False)})')


@pytest.mark.parametrize("partition", ["label", "x"])
def test_partitions_change_where_items_are_and_not_what_is_found(folder, tmp_path, partition):
    with MilvusGallery.make(uri_of(tmp_path, "parted"), IDENTITY, index="exact", partition=partition) as parted:
        parted.add(*items(40))
        assert parted.stats()["partitions"] > 1
        same = ('label == "a"', '"a" == x', "x == 1 and label == 'b'", "x == None", "not label == 'a'", 'label == "z"')
        for where in same:
            assert parted.filter(where) == folder.filter(where)
            assert_same_results(parted, folder, k=4, where=where)
        parted.upsert(["item 0"], draw(3, 1), [{"label": "b", "x": "moved"}])
        assert len(parted) == 40
        assert parted.filter("x == 'moved' and label == 'b'") == ["item 0"]
    with MilvusGallery.connect(uri_of(tmp_path, "parted")) as again:
        assert again.partition == partition


def test_only_a_filter_that_fixes_the_partition_names_it():
    assert milvus_filter("label == 'a' and year > 1", "label").startswith('partition == "a" and ')
    for text, partition in (
        *((text, "label") for text in ("label == 'a' or year > 1", "not label == 'a'", "label == 1")),
        ("label == 'a'", None),
    ):
        assert "partition" not in milvus_filter(text, partition)


@pytest.mark.parametrize(("index", "metric"), [("auto", "dot"), ("HNSW16", "cosine"), ("IVF4,PQ3", "cosine")])
def test_every_index_and_metric(tmp_path, index, metric):
    with Gallery.create(uri_of(tmp_path), IDENTITY, index=index, metric=metric) as gallery:
        assert gallery.stats()["index"] == index_type(index)[0]
        ids, vectors, metadata = items(300)
        gallery.add(ids, vectors, metadata)
        scores, found = gallery.search(vectors[:20], k=5)
        assert found.shape == (20, 5)
        assert (np.diff(scores, axis=1) <= 1e-6).all()
        if metric == "cosine":
            assert np.mean(found[:, 0] == ids[:20]) > 0.5  # itself; quantised vectors may miss
        else:
            np.testing.assert_allclose(gallery.vectors(ids[:3]), vectors[:3], atol=1e-6)
        assert gallery.verify() == []


def test_many_queries_and_items_go_in_parts(both, monkeypatch, tmp_path):
    milvus, folder = both
    for name, value in (("WRITE_BYTES", 30_000), ("READ_IDS", 7), ("SEARCH_RESULTS", 10)):
        monkeypatch.setattr(milvus_module, name, value)
    ids, vectors, metadata = items(25, seed=5)
    for gallery in both:
        gallery.upsert(ids, vectors, metadata)
        gallery.add([f"more {one}" for one in ids], vectors + 1, metadata)
        gallery.remove(ids[:20])
    assert milvus.ids() == folder.ids()
    assert_same_results(milvus, folder, k=4)
    assert len(milvus.get(milvus.ids())) == 45


def test_an_add_that_fails_half_way_is_taken_back(both, monkeypatch):
    milvus, folder = both
    monkeypatch.setattr(milvus_module, "WRITE_BYTES", 30_000)
    insert, calls = milvus._client.insert, []

    def failing(collection, data):
        calls.append(len(data))
        if len(calls) == 3:
            raise ConnectionError("gone")
        return insert(collection, data=data)

    monkeypatch.setattr(milvus._client, "insert", failing)
    with pytest.raises(ConnectionError):
        milvus.add([f"new {n}" for n in range(30)], draw(3, 30))
    assert len(calls) == 3
    assert milvus.ids() == folder.ids()


def test_bad_input_is_refused_and_nothing_is_lost(both, tmp_path):
    milvus, folder = both
    milvus._client.create_collection("foreign", dimension=4)
    one = draw(0, 1)
    for message, call, *arguments in (
        ("gallery.db/birds: 1 .*'item 3'", milvus.add, ["n", "item 3"], draw(0, 2)),
        ("1024 bytes: 'nnn", milvus.add, ["n" * 1025], one),
        ("'by hand' .* 11ee", partial(milvus.add, encoder="11ee"), ["n"], one),
        ("1 unknown ids: 'zebra'", milvus.remove, ["item 3", "zebra"]),
        ("1 unknown ids: 'zebra'", milvus.get, ["zebra"]),
        ("16384 .* got 20000", milvus.search, one, 20_000),
        ("filter 'drop table'", partial(milvus.search, where="drop table"), one),
        ("no encoder is saved", milvus.encoder),
        (r"gallery\.db/birds: .* exists", MilvusGallery.make, uri_of(tmp_path), IDENTITY),
        (r"gallery\.db/fish: .*'birds'", MilvusGallery.connect, uri_of(tmp_path, "fish")),
        ("foreign: .*Sightline", MilvusGallery.connect, uri_of(tmp_path, "foreign")),
        (r"none\.db: no such file", MilvusGallery.connect, f"milvus+file:{tmp_path}/none.db"),
        ("no such parent folder", MilvusGallery.make, f"milvus+file:{tmp_path}/none/x.db", IDENTITY),
        ("'LSH'", index_type, "LSH"),
    ):
        assert_refused(message, call, *arguments)
    assert (milvus.ids(), (tmp_path / "none.db").exists()) == (folder.ids(), False)
    milvus.close()
    with MilvusGallery.connect(uri_of(tmp_path), read_only=True) as gallery:
        for write, *arguments in ((gallery.add, ["n"], one), (gallery.remove, ["item 1"]), (gallery.compact,)):
            assert_refused("read_only", write, *arguments)
        assert len(gallery) == 40
    assert_refused("closed", len, gallery)


def test_a_host_that_does_not_answer_is_one_sentence(monkeypatch, capfd):
    monkeypatch.setattr(milvus_module, "SECONDS", 1.0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = f"127.0.0.1:{port}/birds"
    assert_refused(rf"^milvus\+http://me@{place}: [^\n]+$", MilvusGallery.connect, f"milvus+http://me:secret@{place}")
    assert capfd.readouterr().err == ""


def test_addresses():
    for text, *expected in (
        ("milvus+https://me:secret@host/birds", "https://host", "birds", "me:secret"),
        ("milvus+http://key@host:1", "http://host:1", "sightline", "key"),
        ("milvus+file:some/where.db/birds", "some/where.db", "birds", ""),
        ("milvus+file:///some/where.db", "/some/where.db", "sightline", ""),
        ("where.db", "where.db", "sightline", ""),
    ):
        address = Address.read(text)
        assert [address.uri, address.collection, address.token] == expected
        assert "secret" not in address.shown
    for text in ("http://host/x", "milvus+ftp://host/x", "milvus+http://host/a b", "milvus+file:x.db/1a"):
        assert_refused(r"Milvus address|collection's name", Address.read, text)
