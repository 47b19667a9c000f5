"""Another kind of gallery, from outside: one class, found by the scheme of its address."""

import importlib
import json

import numpy as np
import pytest

import sightline as sl
from changed_packages import write_package
from refusals import assert_refused
from sightline.gallery.gallery import GALLERIES, Gallery
from sightline.gallery.query import QueryOptions, query

BACKEND = '''
import json
import sqlite3

import numpy as np

import sightline as sl
from sightline.gallery.filters import compile_filter

KEPT = {}


class MemoryGallery(sl.Gallery):
    """A gallery in the memory of this process."""

    def __init__(self, uri, identity, metric):
        super().__init__(uri, identity, metric)
        self.items = {}

    @classmethod
    def make(cls, uri, encoder, *, index, metric, recall):
        KEPT[uri] = cls(uri, sl.EncoderIdentity.of(encoder), metric)
        return KEPT[uri]

    @classmethod
    def connect(cls, uri, *, read_only):
        if uri not in KEPT:
            raise sl.InputError(f"{uri}: no such gallery")
        return KEPT[uri]

    @classmethod
    def exists(cls, uri):
        return uri in KEPT

    def close(self):
        pass

    def __len__(self):
        return len(self.items)

    def write(self, ids, vectors, metadata, replace):
        if not replace and (there := [id_ for id_ in ids if id_ in self.items]):
            raise sl.InputError(f"{self.address}: is there already: {there}")
        self.items |= zip(ids, zip(vectors, metadata, strict=True), strict=True)

    def delete(self, ids, remember):
        self.metadata(ids)
        for id_ in ids:
            del self.items[id_]

    def ids(self):
        return list(self.items)

    def metadata(self, ids):
        if unknown := [id_ for id_ in ids if id_ not in self.items]:
            raise sl.InputError(f"{self.address}: unknown ids: {unknown}")
        return [dict(self.items[id_][1]) for id_ in ids]

    def vectors(self, ids):
        return np.array([self.items[id_][0] for id_ in ids], np.float32).reshape(len(ids), self.identity.dim)

    def filter(self, where):
        condition, database = compile_filter(where), sqlite3.connect(":memory:")
        database.execute("CREATE TABLE items (id, metadata)")
        rows = [(id_, json.dumps(known)) for id_, (_, known) in self.items.items()]
        database.executemany("INSERT INTO items VALUES (?, ?)", rows)
        found = database.execute(f"SELECT id FROM items WHERE {condition.sql}", condition.values).fetchall()
        database.close()
        return [id_ for id_, in found]

    def nearest(self, queries, k, where):
        shown = self.ids() if where is None else self.filter(where)
        scores = queries @ self.vectors(shown).T
        order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        return np.take_along_axis(scores, order, 1), np.array(shown, object)[order]

    def verify(self):
        return []
'''


@pytest.fixture
def memory(tmp_path, monkeypatch):
    """An installed package that adds the scheme ``memory`` by an entry point; a gallery of it, filled."""
    write_package(tmp_path, "memory_backend", BACKEND, galleries="memory = memory_backend:MemoryGallery")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    GALLERIES.__dict__.pop("_added", None)  # entry points are read once
    with Gallery.create("memory://shapes", sl.EncoderIdentity("00ff", 2, "by hand")) as gallery:
        gallery.add(["a", "b", "c"], np.array([[1.0, 0], [0.8, 0.6], [0, 2.0]]), [{"year": year} for year in (1, 2, 3)])
    yield "memory://shapes"
    GALLERIES.__dict__.pop("_added", None)


def test_it_is_found_by_its_scheme_and_says_what_it_lacks(memory):
    assert (Gallery.is_at(memory), Gallery.is_at("memory://others")) == (True, False)
    with Gallery.open(memory, read_only=True) as gallery:
        assert not any(vars(gallery.capabilities).values())
        assert (gallery.folder, gallery.rejector(), gallery.removed()) == (None, None, {})
        assert_refused("HNSW32", gallery.build_index, "HNSW32")
        assert_refused("memory://shapes: no encoder", gallery.encoder)
        assert_refused("compact", gallery.compact)
        assert_refused("transactions", gallery.writing)
    assert_refused("unknown gallery 'memry'", Gallery.open, "memry://shapes")


def test_it_answers_queries_and_takes_images_like_any_other(memory, image_tree):
    with Gallery.open(memory) as gallery:
        options = QueryOptions(k=2, where="year >= 2", refinement=sl.Refinement(expand=1))
        (answer,) = query(gallery, gallery.vectors(["a"]), options, own=["a"])
        assert [hit.id for hit in answer.results] == ["b", "c"]
        assert answer.results[0].metadata == {"year": 2}
        (nothing,) = query(gallery, gallery.vectors(["a"]), QueryOptions(where="size == 1", explain=True))
        assert nothing.unknown == ("size",)
    encoder = sl.Encoder.create("tiny", 8, image_size=32)
    with Gallery.create("memory://images", encoder) as gallery:
        assert str(gallery.add_images(image_tree / "super0", encoder=encoder)) == "24 added"
        assert str(gallery.add_images(image_tree / "super0", encoder=encoder)) == "24 unchanged"
        (answer,) = gallery.search_images(image_tree / "super0/class00/0.png", 1, encoder=encoder)
        assert (answer.results[0].id, answer.results[0].labels) == ("class00/0.png", ("class00",))
        assert "MemoryGallery" in gallery._repr_html_()


def test_the_command_line_reads_it(memory, sightline):
    status, out, _ = sightline("index", "stats", memory, "--json")
    found = json.loads(out)
    assert (status, found["items"], found["encoder"], found["rejector"]) == (0, 3, "by hand", None)
    status, out, _ = sightline("search", "a", "--gallery", memory, "-k", 2)
    assert (status, [line.split()[2] for line in out.splitlines()[1:]]) == (0, ["b", "c"])
    status, out, err = sightline("index", "remove", memory, "c")
    assert (status, "1 removed, 2 left" in out, "does not remember" in err) == (0, True, True)
    assert sightline("index", "verify", memory)[0] == 0
    assert sightline("search", "nobody", "--gallery", memory)[0] == 2
