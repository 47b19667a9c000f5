"""FAISS indexes are derived: whatever befalls them, a gallery finds what its vectors say."""

from types import SimpleNamespace

import numpy as np
import pytest
from drawn import assert_same

from refusals import assert_refused
from sightline.files import locked
from sightline.gallery import index as index_module
from sightline.gallery.gallery import EncoderIdentity, Gallery
from sightline.gallery.index import choose_index, nearest_of, read_header

DIM, N_ITEMS = 16, 900
KINDS = ["Flat", "HNSW16", "SQ8", "OPQ8,IVF8,PQ8x4", "PCA8,Flat", "NSG16", "IVF16,PQ8x4,RFlat"]


def draw(n_rows, seed=0):
    """Some clusters, as embeddings have them."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).standard_normal((30, DIM))
    return (centres[rng.integers(0, 30, n_rows)] + 0.3 * rng.standard_normal((n_rows, DIM))).astype(np.float32)


def create(folder, index="Flat", n_items=N_ITEMS):
    gallery = Gallery.create(folder, EncoderIdentity("f", DIM, "by hand"), index=index)
    gallery.add([str(n) for n in range(n_items)], draw(n_items), [{"year": n} for n in range(n_items)])
    return gallery


def truth(gallery, queries, k):
    """Rows of ids by falling cosine in double precision, over what the gallery says it holds."""
    ids = gallery.ids()
    units = gallery.vectors(ids).astype(float)
    order = np.argsort(-(queries.astype(float) @ units.T), axis=1, kind="stable")[:, :k]
    return np.array(ids, object)[order]


def recall(gallery, queries, k=10):
    """Of the true first results of each query, the share that the gallery finds."""
    found, true = gallery.search(queries, k)[1], truth(gallery, queries, k)
    return np.mean([len({*a} & {*b}) / len(b) for a, b in zip(found, true, strict=True)])


@pytest.fixture
def queries():
    return draw(20, seed=1)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_built_measured_searched_and_forgets_what_is_removed(tmp_path, queries, kind):
    with create(tmp_path / "g", kind) as gallery:
        header = gallery.build_index(recall=0.9)
        assert (header.factory, gallery.stats()["index_covers"]) == (kind, N_ITEMS)
        found = recall(gallery, queries)
        assert found > max(0.75, header.recall - 0.15)
        assert found < header.recall + 0.15
        gone, late = [str(n) for n in range(N_ITEMS) if n % 3], [f"late {n}" for n in range(50)]
        gallery.remove(gone)
        assert not {*gallery.search(queries)[1].reshape(-1)} & {*gone}
        assert recall(gallery, queries) > 0.7
        gallery.add(late, draw(50, seed=2))
        assert_same(gallery.search(draw(50, seed=2), 1), (np.ones((50, 1)), [[id_] for id_ in late]))
        gallery.compact()
        assert gallery.stats()["index_covers"] == len(gallery) == N_ITEMS // 3 + 50
        assert recall(gallery, queries) > 0.7
        assert gallery.verify() == gallery.repairs == []


def test_flat_equals_exact_with_scores_and_filters(tmp_path, queries, monkeypatch):
    with create(tmp_path / "g") as gallery:
        expected = gallery.search(queries, 25)
        assert gallery.build_index().recall == 1
        assert_same(gallery.search(queries, 25), expected, 1e-6)
        assert gallery.search(queries, 9999)[1].shape == (20, N_ITEMS)
        gallery.add(["late"], queries[:1], [{"year": 2000}])
        gallery.remove(["1"])
        for limit in (0, 65_536):
            monkeypatch.setattr(index_module, "EXACT_MATCHES", limit)
            _, ids = gallery.search(queries, 700, where="year < 500 or year == 2000")
            assert ids.shape == (20, 500)
            assert all({*row} == {*(str(n) for n in range(500) if n != 1), "late"} for row in ids)
            assert gallery.search(queries, 3, where="year > 9999")[1].shape == (20, 0)


@pytest.mark.parametrize("kind", ["IVF64,Flat", "IVF64,PQ8x4,RFlat"])  # a second look hides nothing that can be tuned
def test_more_effort_is_spent_for_more_recall(tmp_path, kind):
    with create(tmp_path / "g", kind) as gallery:
        low, high = gallery.build_index(recall=0.3), gallery.build_index(recall=0.999)
        assert low.effort["nprobe"] < high.effort["nprobe"]
        assert low.recall < 0.999 <= high.recall
        assert gallery.stats()["index_recall"] == high.recall
        assert gallery.build_index("exact") is None
        assert not list(gallery.folder.glob("index-*"))
        assert gallery.stats()["index_built"] == "exact"


@pytest.mark.parametrize("part", ["index", "header", "missing"])
def test_a_damaged_index_is_rebuilt(tmp_path, queries, part):
    with create(tmp_path / "g", "HNSW16") as gallery:
        gallery.build_index()
        expected = gallery.search(queries)
    file = gallery.folder / "index.json" if part == "header" else next(gallery.folder.glob("index-*.faiss"))
    data = bytearray(file.read_bytes())
    data[0 if part == "header" else len(data) // 2] ^= 1
    file.write_bytes(data)
    if part == "missing":
        file.unlink()
    with Gallery.open(gallery.folder, read_only=True) as reader:  # may not write: searches by brute force
        assert len(reader.verify()) == 1
        assert reader.search(queries)[1].tolist() == truth(reader, queries, 10).tolist()
        assert ["brute force" in repair for repair in reader.repairs] == [True]
    with Gallery.open(gallery.folder) as again:
        assert_same(again.search(queries), expected, 1e-6)
        assert ["rebuilt" in repair for repair in again.repairs] == [True]
        assert again.verify() == []


def test_readers_take_a_new_index_when_it_is_there_even_one_replaced_while_it_is_read(tmp_path, queries, monkeypatch):
    load = index_module.load

    def late(folder, header, dim):
        monkeypatch.setattr(index_module, "load", load)
        gallery.build_index("HNSW16")  # as another process would, between the header's reading and its file's
        return load(folder, header, dim)

    with create(tmp_path / "g") as gallery, Gallery.open(gallery.folder, read_only=True) as reader:
        first = reader.search(queries)[1].tolist()
        assert reader._indexes._loaded is None
        gallery.build_index()
        assert reader.search(queries)[1].tolist() == first
        assert reader._indexes._loaded.header == read_header(gallery.folder)
        gallery.remove(["3"])
        gallery.compact()
        assert reader.search(queries)[1].tolist() == truth(gallery, queries, 10).tolist()
        gallery.build_index("SQ8")
        monkeypatch.setattr(index_module, "load", late)
        assert recall(reader, queries) > 0.75
        assert reader._indexes._loaded.header == read_header(gallery.folder)
        assert (reader._indexes._loaded.header.factory, reader.repairs) == ("HNSW16", [])


@pytest.mark.parametrize("kind", [*KINDS, "IVF16,Flat,RFlat", "RQ4x4"])
def test_few_items_are_found_and_removed_whatever_the_kind(tmp_path, queries, kind):
    for n_items in (1, 20):
        with create(tmp_path / str(n_items), kind, n_items) as gallery:
            gallery.build_index()
            assert recall(gallery, queries, 3) > 0.7
            gallery.remove(["0"])
            assert "0" not in gallery.search(queries, n_items)[1]
            assert gallery.search(queries, 99)[1].shape == (20, n_items - 1)
            gallery.remove(gallery.ids())
            assert gallery.search(queries)[1].shape == (20, 0)


def test_where_an_index_finds_fewer_or_there_are_too_few_to_train_one_the_search_is_exact(tmp_path, queries):
    with create(tmp_path / "g", "IVF64,Flat") as gallery:
        assert gallery.build_index(recall=0.3).effort["nprobe"] < 8
        assert gallery.search(queries, 600)[1].tolist() == truth(gallery, queries, 600).tolist()
        gallery.remove([str(n) for n in range(N_ITEMS) if n % 30])
        assert None not in gallery.search(queries, 20)[1]
    identity = EncoderIdentity("f", DIM, "by hand")
    with Gallery.create(tmp_path / "few", identity, index="IVF1024,PQ4") as gallery:
        for _ in range(2):
            assert gallery.build_index() is None
            gallery.upsert(["a"], draw(1))
        assert gallery.search(queries)[1].tolist() == [["a"]] * 20


def test_one_process_builds_an_index_leaves_no_litter_and_takes_away_that_of_one_killed(tmp_path):
    with create(tmp_path / "g", n_items=2) as gallery, Gallery.open(gallery.folder, read_only=True) as reader:
        assert_refused("read_only", reader.build_index)
        with locked(gallery.folder / "index.lock", wait=False):
            assert_refused("another process", gallery.build_index)
        assert not list(gallery.folder.glob("index*.[jf]*"))
        for name in (".index-0-2-1.faiss.1", ".index.json.1", "index-0-1-1.faiss"):
            (gallery.folder / name).write_bytes(b"half")
        gallery.build_index()
        assert len([path for path in gallery.folder.iterdir() if "index-" in path.name]) == 1
        assert not list(gallery.folder.glob(".*"))


def test_names_and_shares_that_do_not_fit_are_refused(tmp_path):
    identity = EncoderIdentity("f", DIM, "x")
    for name in ("HNWS32", "IVF,PQ", "PQ7", "IDMap,Flat", "HNSW99999", "IVF1000000000,Flat"):
        assert_refused(rf"16 dim.* got '{name}' \((?!Error|in )", Gallery.create, tmp_path / "g", identity, index=name)
    assert not (tmp_path / "g").exists()
    with Gallery.create(tmp_path / "g", identity) as gallery:
        for recall in (1.5, "high"):
            assert_refused(f"recall .* got {recall!r}", gallery.build_index, recall=recall)


def test_auto_chooses_by_size_recall_and_memory(monkeypatch):
    assert choose_index(10**6, 512, 0.9999, 2**40) == "exact"
    assert choose_index(200_000, 512, 0.95, 2**24) == "IVF2048,PQ64"
    for n_bytes, kind in ((950e6, "HNSW32"), (940e6, "IVF2048,SQ8"), (200e6, "IVF2048,PQ64")):  # half of the free memory
        monkeypatch.setattr("psutil.virtual_memory", lambda free=n_bytes: SimpleNamespace(available=int(free)))
        assert choose_index(200_000, 512, 0.95) == kind


def test_nearest_of_candidates_by_hand():
    table = np.array([[1, 0], [0, 1], [1, 0], [0.5, 0]], np.float32)
    scores, rows = nearest_of(table, np.array([[1, 0]], np.float32), np.array([[3, 2, -1, 0, 2]]), 4)
    assert rows.tolist() == [[0, 2, 3, -1]]
    assert scores.tolist() == [[1, 1, 0.5, -np.inf]]


def test_the_torch_methods_that_other_packages_give_faiss_do_no_harm(tmp_path):
    import faiss.contrib.torch_utils  # as pytorch-metric-learning does: `search` then takes no parameters

    assert faiss.contrib.torch_utils
    with create(tmp_path / "gallery", "HNSW16") as gallery:
        gallery.build_index()
        gallery.remove(["0", "1"])
        assert recall(gallery, gallery.vectors(["5", "6"]), 5) > 0.9
