import json

import numpy as np
import pytest
from scipy.io import savemat

from sightline.data.readers.fine_grained import CARS, CUB, INATURALIST_BASE, INATURALIST_FULL, bird_families, body_of
from sightline.data.readers.products import IN_SHOP, SOP
from sightline.data.readers.source import PublishedCounts

BIRDS = ("001.Black_footed_Albatross", "002.Gadwall", "003.Mallard", "004.Sayornis")


def put_birds(tree, folder=""):
    tree.images(*(f"{folder}images/{bird}/{number}.jpg" for bird in BIRDS for number in range(2)))


EXPECTED_BIRDS = [
    ("001.Black_footed_Albatross", "Diomedeidae", "Procellariiformes", "train"),
    ("002.Gadwall", "Anatidae", "Anseriformes", "train"),
    ("003.Mallard", "Anatidae", "Anseriformes", "test"),
    ("004.Sayornis", "Tyrannidae", "Passeriformes", "test"),
]
BIRD_COUNTS = {"train": PublishedCounts(4, (2, 2, 2)), "test": PublishedCounts(4, (2, 2, 2))}


def test_cub_from_its_folders(tree, rows):
    put_birds(tree)
    manifest = tree.prepare(CUB, counts=BIRD_COUNTS)
    assert rows(manifest, "label_0", "label_1", "label_2", "split")[::2] == EXPECTED_BIRDS


def test_cub_from_its_list_names_a_missing_image(tree):
    put_birds(tree, "CUB_200_2011/")
    listed = [f"{bird}/{number}.jpg" for bird in BIRDS for number in range(2)]
    tree.text(
        "CUB_200_2011/images.txt", "".join(f"{n} {path}\n" for n, path in enumerate([*listed, f"{BIRDS[3]}/9.jpg"], 1))
    )
    assert "1 of 9 images are not there: 'CUB_200_2011/images/004.Sayornis/9.jpg'" in tree.complaint(CUB)


def test_cub_from_its_archive(tree, rows):
    put_birds(tree, "CUB_200_2011/")
    tree.archive("CUB_200_2011.tgz", "CUB_200_2011")
    manifest = tree.prepare(CUB, counts=BIRD_COUNTS)
    assert manifest.table["path"][0] == "set_images/CUB_200_2011/images/001.Black_footed_Albatross/0.jpg"
    assert rows(manifest, "label_0", "label_1", "label_2", "split")[::2] == EXPECTED_BIRDS
    assert "set_images: already there" in tree.complaint(CUB)


def test_a_truncated_archive(tree):
    put_birds(tree, "CUB_200_2011/")
    tree.archive("CUB_200_2011.tgz", "CUB_200_2011")
    whole = (tree.root / "CUB_200_2011.tgz").read_bytes()
    for kept in (len(whole) // 2, 3):
        tree.data("CUB_200_2011.tgz", whole[:kept])
        assert "ROOT/CUB_200_2011.tgz: cannot be unpacked" in tree.complaint(CUB)


def test_an_unknown_bird(tree):
    tree.images("images/001.Dodo/0.jpg", "images/002.Gadwall/0.jpg")
    assert "class '001.Dodo': not one of the 200 birds of this set" in tree.complaint(CUB)


def test_birds_are_in_as_many_families_as_the_reader_asserts():
    birds = bird_families()
    assert (len(birds), *(birds[column].n_unique() for column in ("species", "family", "order"))) == (200, 200, 37, 13)


MODELS = ("AM General Hummer SUV 2000", "Acura Integra Type R 2001", "BMW M3 Coupe 2012", "Ram C/V Cargo Van Minivan 2012")


def put_cars(tree, classes=(1, 2, 3, 4, 4), models=MODELS):
    kind = [("relative_im_path", object), ("class", object)]
    paths = [f"car_ims/{number:06d}.jpg" for number in range(1, len(classes) + 1)]
    notes = np.array([list(zip(paths, map(np.uint8, classes), strict=True))], dtype=kind)
    tree.images(*paths)
    savemat(tree.root / "cars_annos.mat", {"annotations": notes, "class_names": np.array([models], dtype=object)})


def test_cars(tree, rows):
    put_cars(tree)
    manifest = tree.prepare(CARS, counts={"train": PublishedCounts(2, (2, 2)), "test": PublishedCounts(3, (2, 2))})
    assert rows(manifest, "path", "label_0", "label_1", "split") == [
        ("../files/car_ims/000001.jpg", MODELS[0], "SUV", "train"),
        ("../files/car_ims/000002.jpg", MODELS[1], "Coupe", "train"),
        ("../files/car_ims/000003.jpg", MODELS[2], "Coupe", "test"),
        ("../files/car_ims/000004.jpg", MODELS[3], "Minivan", "test"),
        ("../files/car_ims/000005.jpg", MODELS[3], "Minivan", "test"),
    ]


def test_cars_from_their_archive(tree):
    put_cars(tree)
    tree.archive("car_ims.tgz", "car_ims")
    assert tree.prepare(CARS).table["path"].to_list() == [f"set_images/car_ims/{n:06d}.jpg" for n in range(1, 6)]


def test_cars_with_faults(tree):
    put_cars(tree, classes=(1, 5))
    assert "class 5 of 'car_ims/000002.jpg': there are 4" in tree.complaint(CARS)
    put_cars(tree, models=("Trabant 601", *MODELS[1:]))
    assert "class 'Trabant 601': its kind of body is not known" in tree.complaint(CARS)
    tree.data("cars_annos.mat", (tree.root / "cars_annos.mat").read_bytes()[:200])
    assert "cars_annos.mat: not a readable MATLAB file" in tree.complaint(CARS)
    savemat(tree.root / "cars_annos.mat", {"annotations": [1]})
    assert "cars_annos.mat: no variable 'class_names'; it has 'annotations'" in tree.complaint(CARS)


@pytest.mark.parametrize(
    ("model", "body"),
    [("Ford Ranger SuperCab 2011", "Cab"), ("Infiniti G Coupe IPL 2012", "Coupe"), ("Ford E-Series Wagon Van 2012", "Van")],
)
def test_bodies_by_the_last_word_that_says_one(model, body):
    assert body_of(model) == body


def test_sop(tree, rows):
    header = "image_id class_id super_class_id path\n"
    tree.text("Ebay_train.txt", header + "1 1 1 bicycle_final/1_0.JPG\n2 2 2 sofa_final/2_0.JPG\n")
    tree.text("Ebay_test.txt", header + "3 3 2 sofa_final/3_0.JPG\r\n")
    tree.images("bicycle_final/1_0.JPG", "sofa_final/2_0.JPG", "sofa_final/3_0.JPG")
    manifest = tree.prepare(SOP, counts={"train": PublishedCounts(2, (2, 2)), "test": PublishedCounts(1, (1, 1))})
    assert rows(manifest, "path", "split", "label_0", "label_1") == [
        ("../files/bicycle_final/1_0.JPG", "train", "1", "bicycle"),
        ("../files/sofa_final/2_0.JPG", "train", "2", "sofa"),
        ("../files/sofa_final/3_0.JPG", "test", "3", "sofa"),
    ]
    tree.text("Ebay_test.txt", "3 3 2 sofa_final/3_0.JPG\n")
    assert "Ebay_test.txt: line 1: the header 'image_id class_id super_class_id path' is needed" in tree.complaint(SOP)
    tree.data("Ebay_test.txt", b"\xff\xfe")
    assert "Ebay_test.txt: not UTF-8 text" in tree.complaint(SOP)


def test_sop_from_its_archive(tree):
    header, folder = "image_id class_id super_class_id path\n", "Stanford_Online_Products"
    tree.text(f"{folder}/Ebay_train.txt", header + "1 1 1 bicycle_final/1_0.JPG\n")
    tree.text(f"{folder}/Ebay_test.txt", header + "2 2 1 bicycle_final/2_0.JPG\n")
    tree.images(f"{folder}/bicycle_final/1_0.JPG", f"{folder}/bicycle_final/2_0.JPG")
    tree.archive("Stanford_Online_Products.zip", folder)
    whole = (tree.root / "Stanford_Online_Products.zip").read_bytes()
    tree.data("Stanford_Online_Products.zip", whole[:-30])
    assert "Stanford_Online_Products.zip: cannot be unpacked: File is not a zip file" in tree.complaint(SOP)
    tree.data("Stanford_Online_Products.zip", whole)
    paths = (
        tree.prepare(SOP, counts={"train": PublishedCounts(1, (1, 1)), "test": PublishedCounts(1, (1, 1))})
        .table["path"]
        .to_list()
    )
    assert paths == [f"set_images/{folder}/bicycle_final/{number}_0.JPG" for number in (1, 2)]


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
    manifest = tree.prepare(
        IN_SHOP,
        counts={
            "train": PublishedCounts(1, (1, 1, 1)),
            "query": PublishedCounts(1, (1,)),
            "gallery": PublishedCounts(2, (2, 2, 2)),
        },
    )
    found = rows(manifest, "label_0", "label_1", "label_2", "split", "is_gallery", "is_query")
    assert found[0] == ("id_00000001", "WOMEN/Dresses", "WOMEN", "train", None, None)
    assert found[1:] == [
        ("id_00000002", "MEN/Shorts", "MEN", "test", False, True),
        ("id_00000002", "MEN/Shorts", "MEN", "test", True, False),
        ("id_00000003", "WOMEN/Shorts", "WOMEN", "test", True, False),
    ]


def test_in_shop_from_its_archive(tree):
    put_clothes(tree)
    (tree.root / "Img/img").rename(tree.root / "img")
    tree.archive("Img/img.zip", "img")
    assert tree.prepare(IN_SHOP).table["path"].to_list() == [f"set_images/{path}" for path in CLOTHES]


def test_in_shop_with_faults(tree):
    put_clothes(tree, n_said=52712)
    assert "line 1 says '52712' rows, 4 are there: the file is short" in tree.complaint(IN_SHOP)
    put_clothes(tree)
    (tree.root / "Img" / "img").rename(tree.root / "Img" / "pictures")
    assert tree.complaint(IN_SHOP) == "ROOT: no folder 'img' or 'Img/img' in this folder; it has 'Eval/', 'Img/'"


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


def test_inaturalist_by_folders(tree, rows):
    put_species(tree)
    manifest = tree.prepare(
        INATURALIST_BASE, counts={"train": PublishedCounts(4, (2, 2)), "test": PublishedCounts(2, (1, 1))}
    )
    found = rows(manifest, "split", "label_0", "label_1")
    assert found[::2] == [("test", "17", "Aves"), ("train", "0", "Aves"), ("train", "23", "Plantae")]


def test_inaturalist_by_its_taxonomy(tree, rows):
    put_species(tree)
    manifest = tree.prepare(
        INATURALIST_FULL, counts={"train": PublishedCounts(4, (2, None, *(2,) * 5)), "test": PublishedCounts(2, (1,) * 7)}
    )
    assert manifest.n_levels == 7
    assert rows(manifest, "label_0", "label_1", "label_6")[::2] == [
        ("0", "genus of Aves", "kingdom of Aves"),
        ("17", "genus of Aves", "kingdom of Aves"),
        ("23", "genus of Plantae", "kingdom of Plantae"),
    ]


def test_inaturalist_asserts_the_levels_whose_size_is_published(tree):
    put_species(tree)
    said = tree.complaint(INATURALIST_FULL, counts=None)
    assert "(train): 2 classes in label_6, 5 are published" in said
    assert "label_1" not in said, "names of genera recur, and how they were counted is not published"


def test_inaturalist_with_faults(tree):
    put_species(tree)
    tree.text("train2018.json", json.dumps({"categories": []}))
    assert "category '23' is not in train2018.json" in tree.complaint(INATURALIST_FULL)
    tree.text("train2018.json", '{"categories": [')
    assert "train2018.json: 'categories', each with id, genus, family" in tree.complaint(INATURALIST_FULL)
    tree.text("Inat_dataset_splits/Inaturalist_test_set1.txt", "train_val2018/Aves/3.jpg")
    assert "train_val2018/Aves/3.jpg: not of the form" in tree.complaint(INATURALIST_BASE)
