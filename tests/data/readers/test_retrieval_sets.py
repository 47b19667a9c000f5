"""Birds, cars, species, products, clothes and DyML, from tiny trees in the published layouts."""

import json
import re
import shutil

import numpy as np
import pytest
from scipy.io import savemat

from refusals import assert_refused
from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import read_manifest
from sightline.data.readers import retrieval_sets as published
from sightline.data.readers.source import PublishedCounts
from sightline.evaluation.benchmark_protocols import Asked, evaluate_protocol
from sightline.evaluation.tables import evaluate_table

EXPECTED_BIRDS = [
    ("001.Black_footed_Albatross", "Diomedeidae", "Procellariiformes", "train"),
    ("002.Gadwall", "Anatidae", "Anseriformes", "train"),
    ("003.Mallard", "Anatidae", "Anseriformes", "test"),
    ("004.Sayornis", "Tyrannidae", "Passeriformes", "test"),
]
BIRDS = [bird for bird, *_ in EXPECTED_BIRDS]


def put_birds(tree, folder=""):
    tree.images(*(f"{folder}images/{bird}/{number}.jpg" for bird in BIRDS for number in range(2)))


def test_cub_from_its_folders_its_list_or_its_archive(tree, rows):
    columns = ("label_0", "label_1", "label_2", "split")
    put_birds(tree)
    assert rows(tree.prepare(published.CUB), *columns)[::2] == EXPECTED_BIRDS
    listed = [*(f"{bird}/{number}.jpg" for bird in BIRDS for number in range(2)), f"{BIRDS[3]}/9.jpg"]
    tree.text("images.txt", "".join(f"{n} {path}\n" for n, path in enumerate(listed, 1)))
    tree.complaint(published.CUB, "9 images", "'images/004.Sayornis/9.jpg'")
    tree.text("images.txt", "1 001.Dodo/0.jpg\n")
    tree.complaint(published.CUB, "'001.Dodo'", "200 birds")
    (tree.root / "images.txt").unlink()
    shutil.rmtree(tree.root / "images")
    put_birds(tree, "CUB_200_2011/")
    tree.archive("CUB_200_2011.tgz", "CUB_200_2011")
    whole = (tree.root / "CUB_200_2011.tgz").read_bytes()
    tree.data("CUB_200_2011.tgz", whole[: len(whole) // 2])
    tree.complaint(published.CUB, "ROOT/CUB_200_2011.tgz", "unpacked")
    tree.data("CUB_200_2011.tgz", whole)
    manifest = tree.prepare(published.CUB)
    assert manifest.table["path"][0] == "set_images/CUB_200_2011/images/001.Black_footed_Albatross/0.jpg"
    assert rows(manifest, *columns)[::2] == EXPECTED_BIRDS
    tree.complaint(published.CUB, "set_images", "empty")


MODELS = ("AM General Hummer SUV 2000", "Acura Integra Type R 2001", "BMW M3 Coupe 2012", "Ram C/V Cargo Van Minivan 2012")


def put_cars(tree, classes=(1, 2, 3, 4, 4), models=MODELS):
    kind = [("relative_im_path", object), ("class", object)]
    paths = [f"car_ims/{number:06d}.jpg" for number in range(1, len(classes) + 1)]
    notes = np.array([list(zip(paths, map(np.uint8, classes), strict=True))], dtype=kind)
    tree.images(*paths)
    savemat(tree.root / "cars_annos.mat", {"annotations": notes, "class_names": np.array([models], dtype=object)})


@pytest.mark.parametrize(("packed", "folder"), [(False, "../files"), (True, "set_images")])
def test_cars(tree, rows, packed, folder):
    put_cars(tree)
    if packed:
        tree.archive("car_ims.tgz", "car_ims")
    kinds = (("SUV", "train"), ("Coupe", "train"), ("Coupe", "test"), ("Minivan", "test"), ("Minivan", "test"))
    assert rows(tree.prepare(published.CARS), "path", "label_0", "label_1", "split") == [
        (f"{folder}/car_ims/00000{n}.jpg", MODELS[min(n, 4) - 1], *kind) for n, kind in enumerate(kinds, start=1)
    ]


def test_cars_with_faults(tree):
    put_cars(tree, classes=(1, 5))
    tree.complaint(published.CARS, "class 5", "'car_ims/000002.jpg'")
    put_cars(tree, models=("Trabant 601", *MODELS[1:]))
    tree.complaint(published.CARS, "'Trabant 601'")
    annotations = tree.root / "cars_annos.mat"
    savemat(annotations, {"annotations": [1]})
    tree.complaint(published.CARS, "cars_annos.mat", "'class_names'", "'annotations'")
    savemat(annotations, {"annotations": [1], "class_names": [1]})
    tree.complaint(published.CARS, "cars_annos.mat: 'class_names' of text")


SOP_HEADER = "image_id class_id super_class_id path\n"


def test_sop(tree, rows):
    tree.text("Ebay_train.txt", SOP_HEADER + "1 1 1 bicycle_final/1_0.JPG\n2 2 2 sofa_final/2_0.JPG\n")
    tree.text("Ebay_test.txt", SOP_HEADER + "3 3 2 sofa_final/3_0.JPG\r\n")
    tree.images("bicycle_final/1_0.JPG", "sofa_final/2_0.JPG", "sofa_final/3_0.JPG")
    assert rows(tree.prepare(published.SOP), "path", "split", "label_0", "label_1") == [
        ("../files/bicycle_final/1_0.JPG", "train", "1", "bicycle"),
        ("../files/sofa_final/2_0.JPG", "train", "2", "sofa"),
        ("../files/sofa_final/3_0.JPG", "test", "3", "sofa"),
    ]
    tree.text("Ebay_test.txt", "3 3 2 sofa_final/3_0.JPG\n")
    tree.complaint(published.SOP, "Ebay_test.txt", "line 1", "'image_id class_id super_class_id path'")
    tree.data("Ebay_test.txt", b"\xff\xfe")
    tree.complaint(published.SOP, "Ebay_test.txt", "UTF-8")


CLOTHES = {
    "img/WOMEN/Dresses/id_00000001/01_1_front.jpg": ("id_00000001", "train"),
    "img/MEN/Shorts/id_00000002/01_1_front.jpg": ("id_00000002", "query"),
    "img/MEN/Shorts/id_00000002/01_2_side.jpg": ("id_00000002", "gallery"),
    "img/WOMEN/Shorts/id_00000003/01_1_front.jpg": ("id_00000003", "gallery"),
}


def put_clothes(tree, listed="Eval/list_eval_partition.txt", n_said=4, images="Img/"):
    lines = [f"{path}   {item}  {role} " for path, (item, role) in CLOTHES.items()]
    tree.text(listed, "\n".join([str(n_said), "image_name item_id evaluation_status", *lines]))
    tree.images(*(images + path for path in CLOTHES))


@pytest.mark.parametrize(("listed", "images"), [("Eval/list_eval_partition.txt", "Img/"), ("list_eval_partition.txt", "")])
def test_in_shop(tree, rows, listed, images):
    put_clothes(tree, listed, images=images)
    counts = {"query": PublishedCounts(1, (1,)), "gallery": PublishedCounts(2, (2, 2, 2))}
    manifest = tree.prepare(published.IN_SHOP, counts=counts)
    found = rows(manifest, "label_0", "label_1", "label_2", "split", "is_gallery", "is_query")
    assert found[0] == ("id_00000001", "WOMEN/Dresses", "WOMEN", "train", None, None)
    assert found[1:] == [
        ("id_00000002", "MEN/Shorts", "MEN", "test", False, True),
        ("id_00000002", "MEN/Shorts", "MEN", "test", True, False),
        ("id_00000003", "WOMEN/Shorts", "WOMEN", "test", True, False),
    ]


def test_in_shop_with_faults_or_as_an_archive(tree):
    put_clothes(tree, n_said=52712)
    tree.complaint(published.IN_SHOP, "line 1", "'52712'", "4 are there")
    tree.text("Eval/list_eval_partition.txt", "1\nimage_name item_id evaluation_status\nimg/a.jpg id_1 tests\n")
    tree.complaint(published.IN_SHOP, "img/a.jpg", "'tests'", "'gallery'", "<category>")
    put_clothes(tree)
    (tree.root / "Img/img").rename(tree.root / "img")
    tree.archive("Img/img.zip", "img")
    assert tree.prepare(published.IN_SHOP).table["path"].to_list() == [f"set_images/{path}" for path in CLOTHES]


SPECIES = {"0": "Aves", "17": "Aves", "23": "Plantae"}


def put_species(tree):
    ranks = ("genus", "family", "order", "class", "phylum", "kingdom")
    categories = [
        {"id": int(n), "name": f"species {n}"} | {rank: f"{rank} of {kind}" for rank in ranks}
        for n, kind in SPECIES.items()
    ]
    tree.text("train2018.json", json.dumps({"categories": categories, "images": []}))
    paths = {n: [f"train_val2018/{kind}/{n}/{i}.jpg" for i in range(2)] for n, kind in SPECIES.items()}
    tree.text("Inat_dataset_splits/Inaturalist_train_set1.txt", "\n".join(paths["0"] + paths["23"]))
    tree.text("Inat_dataset_splits/Inaturalist_test_set1.txt", "\n".join(paths["17"]) + "\n")
    tree.images(*(path for listed in paths.values() for path in listed))


def test_inaturalist_by_folders_by_its_taxonomy_or_with_faults(tree, rows):
    put_species(tree)
    found = rows(tree.prepare(published.INATURALIST_BASE), "split", "label_0", "label_1")[::2]
    assert found == [("test", "17", "Aves"), ("train", "0", "Aves"), ("train", "23", "Plantae")]
    manifest = tree.prepare(published.INATURALIST_FULL)
    assert manifest.n_levels == 7
    found = rows(manifest, "label_0", "label_1", "label_6")[::2]
    assert found == [(number, f"genus of {kind}", f"kingdom of {kind}") for number, kind in SPECIES.items()]
    said = tree.complaint(published.INATURALIST_FULL, "(train): 2 classes in label_6, 5 are published", counts=None)
    assert "label_1" not in said, "names of genera recur, and how they were counted is not published"
    tree.text("train2018.json", json.dumps({"categories": []}))
    tree.complaint(published.INATURALIST_FULL, "'23'", "train2018.json")
    tree.text("train2018.json", '{"categories": [')
    tree.complaint(published.INATURALIST_FULL, "train2018.json", "'categories'")
    tree.text("Inat_dataset_splits/Inaturalist_test_set1.txt", "train_val2018/Aves/3.jpg")
    tree.complaint(published.INATURALIST_BASE, "train_val2018/Aves/3.jpg")


TRAIN = ["0.jpg, 4, 3, 2", "1.jpg, 4, 3, 2", "2.jpg, 4, 9, 7"]  # coarse, middle, fine
TRAIN_HEADER, TEST_HEADER = "fname, coarse_id, middle_id, fine_id", "fname, labels"


def csv(header, rows, glued=True):
    return header + ("" if glued else "\n") + "\n".join(rows) + "\n"


def put_training(tree, glued=True):
    tree.text("train/label.csv", csv(TRAIN_HEADER, TRAIN, glued))
    tree.images(*(f"train/imgs/{number}.jpg" for number in range(3)))


def put_levels(tree, glued=True):
    """Galleries of four images in two classes; the two queries are the third and the first of them."""
    put_training(tree, glued)
    for level in ("fine", "middle", "coarse"):
        tree.text(f"bmk_{level}/gallery.csv", csv(TEST_HEADER, [f"{n}.jpg, {n % 2}" for n in range(4)], glued))
        tree.text(f"bmk_{level}/query.csv", csv(TEST_HEADER, ["0.jpg, 0", "1.jpg, 0"], glued))
        tree.images(*(f"bmk_{level}/gallery/{number}.jpg" for number in range(4)))
        for query, twin in ((0, 2), (1, 0)):
            tree.data(f"bmk_{level}/query/{query}.jpg", (tree.root / f"bmk_{level}/gallery/{twin}.jpg").read_bytes())


@pytest.mark.parametrize("glued", [True, False])
def test_no_image_is_lost_to_a_header_without_its_line_break(tree, rows, glued):
    put_levels(tree, glued)
    labels = (("2", "3", "4"), ("2", "3", "4"), ("7", "9", "4"))
    tree.images("bmk_fine/query/1.jpg")  # no longer in the gallery: another row
    manifest = tree.prepare(published.DYML_ANIMAL)
    found = rows(manifest.split("train"), "path", "label_0", "label_1", "label_2")
    assert found == [(f"../files/train/imgs/{number}.jpg", *row) for number, row in enumerate(labels)]
    test = rows(manifest.split("test"), "test_level", "path", "is_query", "is_gallery")
    flags = [(True, True), (False, True), (True, True), (False, True)]  # query and gallery at once is one row
    assert test[:4] == [("coarse", f"../files/bmk_coarse/gallery/{number}.jpg", *row) for number, row in enumerate(flags)]
    assert (len(test), test.count(("fine", "../files/bmk_fine/query/1.jpg", True, False))) == (13, 1)


def test_each_level_is_measured_on_its_own_images(tree, sightline):
    put_levels(tree)
    manifest = tree.prepare(published.DYML_ANIMAL)
    sets = published.level_sets(manifest)
    assert list(sets) == ["fine", "middle", "coarse"]
    vectors = np.random.default_rng(0).normal(size=(len(manifest), 4))
    ids = manifest.table["id"].to_numpy()
    for level, (queries, gallery, labels) in sets.items():
        assert (len(queries), len(gallery)) == (2, 4)
        assert {f"bmk_{level}" in path for path in ids[gallery]} == {True}
        assert labels[queries[0]] == labels[queries[1]] == labels[gallery[0]] != labels[gallery[1]]
    table = EmbeddingTable(manifest, vectors.astype(np.float32), "0" * 64)
    status, out, err = sightline("evaluate", table.write(tree.out.with_name("vectors.parquet")), "--protocol", "dyml")
    assert status == 0, err
    results = evaluate_protocol("dyml", Asked(table))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for level, (queries, gallery, labels) in sets.items():  # one relevant item each: AP is one over its rank
        expected = []
        for query in queries:
            others = sorted((g for g in gallery if g != query), key=lambda g: -unit[g] @ unit[query])
            expected.append(1 / (1 + [labels[g] == labels[query] for g in others].index(True)))
        assert results[level]["map"] == pytest.approx(np.mean(expected))
    mean = np.mean([[result[name] for name in ("map", "asi", "recall@1")] for result in results.values()], axis=0)
    assert re.search(r"^this encoder +(.*)$", out, re.M)[1].split() == [f"{100 * value:.1f}" for value in mean]
    assert re.search(r"^HAPPIER, DyML-Animal +43\.8 +50\.8 +68\.9$", out, re.M), "the published values of TPAMI Table VIII"
    assert_refused(["three sets", "sl.evaluate_dyml"], evaluate_table, table)


def test_product_has_all_levels_in_one(tree):
    put_training(tree)
    tree.text("mini-bmk_all_in_one/label.csv", csv(TRAIN_HEADER, ["0.jpg, 1, 1, 1", "1.jpg, 1, 2, 2", "2.jpg, 1, 2, 2"]))
    tree.images(*(f"mini-bmk_all_in_one/imgs/{number}.jpg" for number in range(3)))
    manifest = tree.prepare(published.DYML_PRODUCT, counts={"test": PublishedCounts(3, (2, 2, 1))})
    for (queries, gallery, labels), n_classes in zip(published.level_sets(manifest).values(), (2, 2, 1), strict=True):
        assert queries.tolist() == gallery.tolist() == [3, 4, 5]
        assert len(set(labels[queries])) == n_classes
        assert not set(labels[queries]) & set(labels[:3])


def test_dyml_with_faults(tree):
    put_levels(tree)
    tree.text("train/label.csv", csv(TRAIN_HEADER, [*TRAIN[:2], "2.jpg, 4"]))
    tree.complaint(published.DYML_ANIMAL, "train/label.csv", "line 3", "4 fields")
    tree.text("train/label.csv", "fname, fine_id\n")
    tree.complaint(published.DYML_ANIMAL, "coarse_id", "middle_id", "fine_id")
    put_training(tree)
    tree.complaint(published.DYML_ANIMAL, "train/label.csv", "2 classes", "label_0", "495", counts=None)
    (tree.root / "bmk_middle/gallery.csv").unlink()
    tree.complaint(published.DYML_ANIMAL, "no file 'bmk_middle/gallery.csv'")
    put_training(tree)
    assert_refused("not the manifest of a DyML set", published.level_sets, read_manifest(tree.root))
