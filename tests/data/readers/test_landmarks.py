import pickle
import re

import numpy as np
import polars as pl
import pytest
import torch
from PIL import ExifTags, Image, ImageOps
from scipy.io import savemat

from refusals import assert_refused
from sightline.data.embedding_table import EmbeddingTable
from sightline.data.images import load_image
from sightline.data.manifest import Manifest
from sightline.data.readers.landmarks import GLDV2, H_GLDV2, LANDMARKS_CLEAN, ROXFORD, ROXFORD_1M, SFM_120K, read_judgements
from sightline.data.readers.source import PublishedCounts, judgements_file
from sightline.evaluation.result import Result
from sightline.evaluation.tables import evaluate_table
from sightline.models.heads import Whitening

TRAIN = {"7": ["aaa1", "abc2"], "9": ["bca3"]}
INDEX = {"bbb1": "7", "bcd2": "8", "ccc3": "8"}


def put_landmarks(tree):
    tree.text("train_clean.csv", "landmark_id,images\n" + "".join(f"{k},{' '.join(v)}\n" for k, v in TRAIN.items()))
    tree.text("index_image_to_landmark.csv", "id,landmark_id\n" + "".join(f"{k},{v}\n" for k, v in INDEX.items()))
    solution = "id,images,Usage\ndda1,ccc3 bcd2,Public\nddb2,None,Ignored\nddc3,bbb1,Private\n"
    tree.text("retrieval_solution_v2.1.csv", solution)
    for folder, names in (("images/train", [*TRAIN["7"], *TRAIN["9"]]), ("index", INDEX), ("test", ["dda1", "ddc3"])):
        tree.images(*(f"{folder}/{name[0]}/{name[1]}/{name[2]}/{name}.jpg" for name in names))


def put_hierarchy(tree, header="landmark_id,category,supercategory,hierarchical_label,natural_or_human_made"):
    tree.text("train_label_to_hierarchical.csv", f"{header}\n7,url,a church,church,human-made\n9,url,,,\n")
    tree.text("index_label_to_hierarchical.csv", f"{header}\n7,url,x,lake,natural\n8,url,y,church,human-made\n")


def test_landmarks_of_training_and_index_are_different_ones(tree, rows):
    put_landmarks(tree)
    counts = {"train": PublishedCounts(3, (2,)), "gallery": PublishedCounts(3, (2,)), "query": PublishedCounts(2, (2,))}
    found = rows(tree.prepare(GLDV2, counts=counts), "id", "split", "label_0", "is_query", "is_gallery")
    items = {"index/bbb1": "index/7", "index/bcd2": "index/8", "index/ccc3": "index/8"}
    queries = {"test/dda1": "index/8", "test/ddc3": "index/7"}
    training = {"train/aaa1": "train/7", "train/abc2": "train/7", "train/bca3": "train/9"}
    expected = [(id_, "test", label, False, True) for id_, label in items.items()]
    expected += [(id_, "test", label, True, False) for id_, label in queries.items()]
    assert found == expected + [(id_, "train", label, None, None) for id_, label in training.items()]
    gallery = ["index/ccc3", "index/bcd2", "index/bbb1"]
    found = read_judgements(judgements_file(tree.out), ["test/ddc3", "test/dda1"], gallery, kinds=["relevant"])
    assert found == [[[2], [0, 1]]]


def test_landmarks_are_measured_by_labels_and_by_the_lists(tree, tmp_path, sightline):
    put_landmarks(tree)
    tree.text("retrieval_solution_v2.1.csv", "id,images,Usage\ndda1,ccc3,Public\nddc3,bbb1,Private\n")  # without bcd2
    manifest = tree.prepare(GLDV2)
    angle = {"index/bbb1": 0.6, "index/bcd2": 0.2, "index/ccc3": 0.4, "test/dda1": 0.0, "test/ddc3": 0.1}
    turned = np.array([angle.get(name, 3.0) for name in manifest.table["id"]])
    vectors = np.stack([np.cos(turned), np.sin(turned)], 1).astype(np.float32)
    table = EmbeddingTable(manifest, vectors, "encoder").write(tmp_path / "vectors.parquet")
    # Of both queries the ranking is bcd2, ccc3, bbb1.
    assert evaluate_table(EmbeddingTable.read(table), metrics=["map@100"])["map@100"] == pytest.approx((1 + 1 / 3) / 2)
    words = ("evaluate", table, "--split", "test", "--protocol", "gldv2", "--judgements", judgements_file(tree.out))
    status, out, err = sightline(*words, "--json", tmp_path / "found.json")
    assert status == 0, err
    found = {name: Result.read_json(tmp_path / f"found.{name}.json")["map@100"] for name in ("official", "landmark")}
    assert found == pytest.approx({"official": (1 / 2 + 1 / 3) / 2, "landmark": (1 + 1 / 3) / 2})
    assert re.search(r"^HAPPIER +41\.6 +38\.8 +83\.8 +95\.7$", out, re.M), "the published values of TPAMI Table VII"


def test_images_without_a_hierarchical_label_are_left_out(tree, rows):
    put_landmarks(tree)
    put_hierarchy(tree)
    lakes, churches = ("index/bbb1", "test/ddc3"), ("index/bcd2", "index/ccc3", "test/dda1", "train/aaa1", "train/abc2")
    expected = [(name, "lake", "natural") for name in lakes] + [(name, "church", "human-made") for name in churches]
    assert rows(tree.prepare(H_GLDV2), "id", "label_1", "label_2") == sorted(expected)


def test_the_older_names_of_the_hierarchy(tree):
    put_landmarks(tree)
    for kind, lines in (("train", "7,church,human-made\n9,nan,\n"), ("index", "7,lake,natural\n")):
        tree.text(f"{kind}_label_to_subcategory_with_clusters.csv", f"landmark_id,cluster,overall_cluster\n{lines}")
    manifest = tree.prepare(H_GLDV2)
    assert sorted(manifest.table["id"]) == ["index/bbb1", "test/ddc3", "train/aaa1", "train/abc2"]
    fact = "query 'test/dda1': no list 'relevant'"
    judged = judgements_file(tree.out)
    assert_refused(fact, read_judgements, judged, ["test/dda1"], ["index/bbb1"], kinds=["relevant"])


def test_landmarks_with_faults(tree):
    put_landmarks(tree)
    tree.complaint(H_GLDV2, "no file 'train_label_to_hierarchical.csv' or")
    put_hierarchy(tree, header="landmark_id,category,b,c,d")
    tree.complaint(H_GLDV2, "train_label_to_hierarchical.csv: must have the columns 'landmark_id', 'hierarchical_label'")
    said = tree.complaint(GLDV2, "train_clean.csv (train): 3 images, 1580470 are published", counts=None)
    assert "index_image_to_landmark.csv (gallery): 3 images, 761757 are published" in said
    tree.text("retrieval_solution_v2.1.csv", "id,images,Usage\ndda1,zzz9,Public\n")
    tree.complaint(GLDV2, "dda1", "zzz9", "index_image_to_landmark.csv")


def test_landmarks_clean(tree, rows):
    tree.text("annotations/annotation_clean_train.txt", "a/1.jpg 0\nhttp://site.org/b/2.jpg?size=3 1\n")
    tree.text("annotations/annotation_clean_val.txt", "a/3.jpg 0\n")
    tree.images("a/1.jpg", "site.org/b/2.jpg", "a/3.jpg")
    assert rows(tree.prepare(LANDMARKS_CLEAN), "path", "split", "label_0") == [
        ("../files/a/1.jpg", "train", "0"),
        ("../files/a/3.jpg", "val", "0"),
        ("../files/site.org/b/2.jpg", "train", "1"),
    ]


CIDS = ["00112233aabbcc", "445566ddeeff01"]
PLACES = ["ims/cc/bb/aa/00112233aabbcc", "ims/01/ff/ee/445566ddeeff01"]


def test_sfm_from_its_pickle_or_its_matlab_file(tree, rows):
    for place in PLACES:
        tree.images(f"{place}.png")
        (tree.root / f"{place}.png").rename(tree.root / place)
    clusters = {"cids": np.array([CIDS], dtype=object), "cluster": np.array([[3, 5]])}
    savemat(tree.root / "retrieval-SfM-120k-imagenames-clusterids.mat", clusters)
    assert rows(tree.prepare(SFM_120K, counts=None), "split", "label_0") == [("train", "train/3"), ("train", "train/5")]
    parts = {split: {"cids": [cid], "cluster": [np.int64(3)]} for split, cid in zip(("train", "val"), CIDS, strict=True)}
    tree.data("retrieval-SfM-120k.pkl", pickle.dumps(parts, protocol=2))
    assert rows(tree.prepare(SFM_120K), "path", "split", "label_0") == [
        (f"../files/{PLACES[1]}", "val", "val/3"),
        (f"../files/{PLACES[0]}", "train", "train/3"),
    ]
    tree.data("retrieval-SfM-120k.pkl", pickle.dumps({"train": parts["train"]}))
    tree.complaint(SFM_120K, "retrieval-SfM-120k.pkl", "'cids'", "'cluster'", "KeyError('val')")


ITEMS = ["all_souls_000001", "oxford_000002", "oxford_000003", "oxford_000004"]
TRUTH = [
    {"bbx": [1.4, 0.0, 4.6, 99.0], "easy": [2], "hard": [0], "junk": [1]},
    {"bbx": np.array([0.0, 1.0, 3.0, 4.0]), "easy": np.array([0, 1]), "hard": [], "junk": []},
]


def put_oxford(tree, truth=TRUTH, folder="roxford5k/"):
    queries = ["all_souls_000006", "hertford_000007"]
    tree.data(f"{folder}gnd_roxford5k.pkl", pickle.dumps({"imlist": ITEMS, "qimlist": queries, "gnd": truth}))
    tree.images(*(f"{folder}jpg/{name}.jpg" for name in (*queries, *ITEMS)))
    tree.text("revisitop1m/revisitop1m.txt", "0/a.jpg\n1/b.jpg\n")
    tree.images("revisitop1m/jpg/0/a.jpg", "revisitop1m/jpg/1/b.jpg")


@pytest.mark.parametrize("folder", ["roxford5k/", ""])
def test_queries_have_boxes_and_judgements(tree, folder):
    put_oxford(tree, folder=folder)
    manifest = tree.prepare(ROXFORD)
    assert manifest.table["id"].to_list() == ["query/all_souls_000006", "query/hertford_000007", *ITEMS]
    assert manifest.boxes() == [(1, 0, 5, 5), (0, 1, 3, 4), None, None, None, None]  # the images are 6 x 5
    (tree.root / f"{folder}jpg/hertford_000007.jpg").write_bytes(b"broken")
    assert tree.prepare(ROXFORD).boxes()[1] == (0, 1, 3, 4)


@pytest.mark.parametrize("turn", range(1, 9))
def test_the_box_turns_with_the_image(tree, turn):
    put_oxford(tree)
    path, exif = tree.root / "roxford5k/jpg/hertford_000007.jpg", Image.Exif()
    exif[ExifTags.Base.Orientation] = turn
    with Image.open(path) as image:
        stored = image.convert("RGB")
    stored.save(path, "PNG", exif=exif)  # whatever its name: no pixel may change
    part = stored.crop((0, 1, 3, 4))
    part.getexif()[ExifTags.Base.Orientation] = turn
    manifest = tree.prepare(ROXFORD)
    seen = load_image(manifest.paths()[1], manifest.boxes()[1])
    np.testing.assert_array_equal(np.asarray(seen), np.asarray(ImageOps.exif_transpose(part)))


def test_judgements_with_and_without_distractors(tree):
    put_oxford(tree)
    for reader, n_items in ((ROXFORD, 4), (ROXFORD_1M, 6)):
        manifest = tree.prepare(reader, counts={"query": PublishedCounts(2), "gallery": PublishedCounts(n_items)})
        assert manifest.table["id"].to_list()[6:] == ["distractor/0/a.jpg", "distractor/1/b.jpg"][: n_items - 4]
        gallery, queries = (manifest.where(pl.col(role)) for role in ("is_gallery", "is_query"))
        items = gallery.table["id"].to_list()[::-1]
        easy, hard, junk = read_judgements(judgements_file(tree.out), queries.table["id"].to_list(), items)
        named = [[sorted(items[place] for place in one) for one in kind] for kind in (easy, hard, junk)]
        assert named == [[[ITEMS[2]], ITEMS[:2]], [[ITEMS[0]], []], [[ITEMS[1]], []]]


def revisited_by_definition(scores, easy, hard, junk, ks):
    """One query's AP and precisions for each setup, from the words of the benchmark; scores are of all items."""
    found = {}
    setups = {"easy": (easy, hard + junk), "medium": (easy + hard, junk), "hard": (hard, easy + junk)}
    for setup, (relevant, ignored) in setups.items():
        ranked = [item for item in np.argsort(-scores, kind="stable").tolist() if item not in ignored]
        ranks = [rank for rank, item in enumerate(ranked) if item in relevant]
        area = 0.0
        for number, rank in enumerate(ranks):  # two ends of a line
            before = 1.0 if rank == 0 else number / rank
            area += (before + (number + 1) / (rank + 1)) / (2 * len(ranks))
        found[setup] = {"map": area if ranks else np.nan}
        for k in ks:
            first = min(k, max(ranks, default=0) + 1)
            found[setup][f"mp@{k}"] = sum(rank < first for rank in ranks) / first if ranks else np.nan
    return found


def unit(rows):
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def put_city(tree, n_items=30, n_queries=5):
    rng = np.random.default_rng(1)
    items, queries = [f"i{number}" for number in range(n_items)], [f"q{number}" for number in range(n_queries)]
    places = [rng.permutation(n_items).tolist() for _ in queries]
    truth = [{"bbx": [0, 0, 3, 3], "easy": one[:4], "hard": one[4:9], "junk": one[9:12]} for one in places]
    truth[0]["easy"] = []
    tree.data("gnd_roxford5k.pkl", pickle.dumps({"imlist": items, "qimlist": queries, "gnd": truth}))
    tree.images(*(f"jpg/{name}.jpg" for name in (*queries, *items)))
    manifest = tree.prepare(ROXFORD)
    vectors = rng.normal(size=(len(manifest), 6)).astype(np.float32)
    table = EmbeddingTable(manifest, vectors, "encoder").write(tree.out.with_name("vectors.parquet"))
    return truth, table, vectors[:n_queries].astype(float), vectors[n_queries:].astype(float)


@pytest.mark.parametrize("steps", ["", "distractors", "distractors whiten expand"])
def test_the_revisited_protocol_by_command(tree, tmp_path, sightline, monkeypatch, steps):
    truth, table, queries, items = put_city(tree)
    words = ["evaluate", table, "--protocol", "roxford5k", "--judgements", judgements_file(tree.out)]
    words += ["--json", tmp_path / "found.json", "-k", 1, "-k", 5]
    if "distractors" in steps:
        monkeypatch.setattr("sightline.data.embedding_table.PIECE", 7)
        more = np.random.default_rng(2).normal(size=(50, 6)).astype(np.float32)
        names = [f"{number}.jpg" for number in range(50)]
        far = Manifest(tmp_path / "far.csv", tmp_path, pl.DataFrame({"id": names, "path": names, "split": "test"}), 0)
        words += ["--distractors", EmbeddingTable(far, more, "encoder").write(tmp_path / "far.parquet")]
        items = np.concatenate([items, more.astype(float)])
    queries, items = unit(queries), unit(items)
    if "whiten" in steps:
        whitening = Whitening.fit(np.random.default_rng(3).normal(size=(60, 6)).astype(np.float32), dim=4)
        words += ["--whiten", whitening.save(tmp_path / "whitening.safetensors"), "--expand", 3]
        queries, items = (unit(whitening(torch.from_numpy(side).float()).double().numpy()) for side in (queries, items))
        for query, row in enumerate(queries @ items.T):
            near = np.argsort(-row)[:3]
            queries[query] += (np.maximum(row[near], 0) ** 2) @ items[near]
    status, out, err = sightline(*words)
    assert status == 0, err
    for number, (row, one) in enumerate(zip(queries @ items.T, truth, strict=True)):
        for setup, expected in revisited_by_definition(row, one["easy"], one["hard"], one["junk"], (1, 5)).items():
            found = Result.read_json(tmp_path / f"found.{setup}.json").per_query
            np.testing.assert_allclose([found[name][number] for name in expected], [*expected.values()], rtol=0, atol=1e-12)
    assert re.search(r"^this encoder +\d", out, re.M)
    medium = "46.8" if "distractors" in steps else "60.6"  # of the listwise paper's Table 3
    assert re.search(rf"^HesAff-rSIFT-ASMK\* \+ SP +{medium} ", out, re.M)


def test_what_a_protocol_cannot_measure_is_refused(tree, tmp_path, check_refused):
    _, table, _, _ = put_city(tree)
    other, oxford = EmbeddingTable.read(table), ["--protocol", "roxford5k"]
    judged = ["--judgements", judgements_file(tree.out)]
    far = EmbeddingTable(other.manifest, other.vectors, "another").write(tmp_path / "far.parquet")
    for words, facts in (
        (["--protocol", "oxford", *judged], ["oxford", "roxford5k"]),
        (["--protocol", "rparis6k"], ["--judgements"]),
        ([*oxford, *judged, "--metric", "map"], ["--metric"]),
        ([*oxford, *judged, "--distractors", far], [far, "another encoder"]),
        ([*oxford, *judged, "--distractors", table, "--augment", 2], ["--distractors"]),
        ([*oxford, *judged, "--distractors", tmp_path / "none"], [tmp_path / "none"]),
        (["--protocol", "gldv2", *judged], ["relevant"]),
        (["--protocol", "dyml"], [table, "test_level"]),
        (["--protocol", "dyml", *judged], ["--judgements"]),
        (judged, ["--protocol"]),
    ):
        check_refused(["evaluate", table, *words], *facts)


def test_oxford_in_part_or_with_faults(tree):
    put_oxford(tree, truth=[TRUTH[0] | {"junk": [4]}, TRUTH[1]])
    tree.complaint(ROXFORD, "all_souls_000006", "place 4", "4 images")
    put_oxford(tree, truth=TRUTH[:1])
    tree.complaint(ROXFORD, "2 queries, judgements of 1")
    for second in ({"bbx": [1, 2, 3]}, {"bbx": [0, 0, np.inf, 1]}, {"easy": [np.nan]}, {"easy": 3}, {"bbx": b"\xff"}):
        put_oxford(tree, [TRUTH[0], TRUTH[1] | second])
        tree.complaint(ROXFORD, "gnd_roxford5k.pkl: ")
    put_oxford(tree)
    tree.complaint(ROXFORD, "gnd_roxford5k.pkl", "2 images", "70", counts=None)
    (tree.root / f"roxford5k/jpg/{ITEMS[2]}.jpg").unlink()
    tree.complaint(ROXFORD, "1 of 6 images")
    with pytest.warns(UserWarning, match="left out: 1 of 6 images are missing"):
        manifest = tree.prepare(ROXFORD, subset=True)
    ids = manifest.table["id"].to_list()
    found = read_judgements(judgements_file(tree.out), ids[:2], ids[2:])
    assert found == [[[], [0, 1]], [[0], []], [[1], []]]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "not a file of judgements"),
        ('{"q": []}', "not a file of judgements"),
        ('{"q": {"easy": 1}}', "not a file of judgements"),
        ('{"q": {"easy": [[]], "hard": [], "junk": []}}', "not a file of judgements"),
        ('{"r": {"easy": []}}', "query 'q': no list 'easy'"),
        ('{"q": {"easy": ["b"], "hard": [], "junk": []}}', "query 'q': 'b' is not in the gallery"),
    ],
)
def test_files_of_judgements_that_do_not_fit_are_refused(tmp_path, content, message):
    file = tmp_path / "a.judgements.json"
    if content is not None:
        file.write_text(content)
    assert_refused([f"{file}: ", message], read_judgements, file, ["q"], ["a"])
