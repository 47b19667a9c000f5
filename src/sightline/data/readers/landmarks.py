"""Google Landmarks v2, its hierarchical labels, Landmarks-clean and SfM-120k."""

from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import polars as pl

from sightline.data.readers.matlab import read_matlab
from sightline.data.readers.pickles import as_text, read_pickle
from sightline.data.readers.source import Draft, Part, Reader, Source, read_columns, read_fields, rows_of
from sightline.errors import InputError, names, raise_faults

NO_LABEL = ("", "nan", "none", "null")
PUBLIC_COLUMNS = ("landmark_id", "hierarchical_label", "natural_or_human_made")
OLDER_COLUMNS = ("landmark_id", "cluster", "overall_cluster")


def read_gldv2(source: Source, hierarchical: bool) -> Draft:
    """``train_clean.csv``, ``index_image_to_landmark.csv`` and ``retrieval_solution_v2.1.csv``.

    The index is the gallery; queries are the test images with a solution, and have the landmark of its first image.
    Numbers of landmarks mean other landmarks in training than in the index, so they carry the list's name.

    Args:
        source: the files.
        hierarchical: three levels; images whose landmark has no hierarchical label are left out.
    """
    names_of = {
        "train": "train_clean.csv",
        "gallery": "index_image_to_landmark.csv",
        "query": "retrieval_solution_v2.1.csv",
    }
    files = {part: source.file(name, f"metadata/{name}") for part, name in names_of.items()}
    train = read_columns(files["train"], ("landmark_id", "images"))
    train = train.select("landmark_id", id=pl.col("images").str.split(" ")).explode("id").filter(pl.col("id") != "")
    index = read_columns(files["gallery"], ("landmark_id", "id"))
    solved = read_columns(files["query"], ("id", "images")).filter(
        pl.col("images").is_not_null() & (pl.col("images") != "None")
    )
    solved = solved.with_columns(relevant=pl.col("images").str.split(" "))
    found = solved.with_columns(first=pl.col("relevant").list.first())
    found = found.join(index.rename({"id": "first"}), on="first", how="left", maintain_order="left")
    lost = found.filter(pl.col("landmark_id").is_null())
    raise_faults(
        files["query"], [f"query {a}: {b} is not in {files['gallery'].name}" for a, b in lost["id", "first"].rows()]
    )
    parts = [
        _images_of(source, train, "train", "train", None, None),
        _images_of(source, index, "index", "test", False, True),
        _images_of(source, found.select("landmark_id", "id"), "test", "test", True, False),
    ]
    if hierarchical:
        above = {kind: _hierarchy(source, kind) for kind in ("train", "index")}
        parts = [
            part.join(above["train" if place == 0 else "index"], on="landmark_id", how="inner", maintain_order="left")
            for place, part in enumerate(parts)
        ]
    table = pl.concat(parts).drop("landmark_id")
    judged = {
        f"test/{query}": {"relevant": [f"index/{image}" for image in relevant]}
        for query, relevant in solved["id", "relevant"].rows()
    }
    return Draft(table, files, judged)


def _images_of(
    source: Source, images: pl.DataFrame, kind: str, split: str, is_query: bool | None, is_gallery: bool | None
) -> pl.DataFrame:
    """The rows of one list: ``<kind>/a/b/c/abc....jpg``, after the first three letters of the id."""
    base = source.folder(f"images/{kind}", kind)
    letters = [pl.col("id").str.slice(place, 1) for place in range(3)]
    space = "train" if kind == "train" else "index"
    return images.select(
        "landmark_id",
        path=pl.format(f"{base}/{{}}/{{}}/{{}}/{{}}.jpg", *letters, pl.col("id")),
        split=pl.lit(split),
        label_0=pl.format(f"{space}/{{}}", "landmark_id"),
        is_query=pl.lit(is_query, pl.Boolean),
        is_gallery=pl.lit(is_gallery, pl.Boolean),
        id=pl.format(f"{kind}/{{}}", "id"),
    )


def _hierarchy(source: Source, kind: str) -> pl.DataFrame:
    """The group and the root of each landmark that has both."""
    choices = (f"{kind}_label_to_hierarchical.csv", f"{kind}_label_to_subcategory_with_clusters.csv")
    file = source.file(*choices, *(f"metadata/{name}" for name in choices))
    table = read_columns(file, PUBLIC_COLUMNS, OLDER_COLUMNS)
    empty = [
        pl.col(name).str.strip_chars().str.to_lowercase().is_in(NO_LABEL).fill_null(True) for name in PUBLIC_COLUMNS[1:]
    ]
    table = table.filter(~pl.any_horizontal(empty)).rename(
        dict(zip(PUBLIC_COLUMNS[1:], ("label_1", "label_2"), strict=True))
    )
    twice = table.filter(pl.col("landmark_id").is_duplicated())["landmark_id"].unique(maintain_order=True)
    raise_faults(file, [f"landmark {number} is there more than once" for number in twice])
    return table


def read_landmarks_clean(source: Source) -> Draft:
    """``annotation_clean_{train,val}.txt``: an image and its landmark in each line.

    An image given by its address is looked for where ``wget --force-directories`` puts it.
    """
    tables, files = [], {}
    for split in ("train", "val"):
        name = f"annotation_clean_{split}.txt"
        folders = ("", "annotations/", "annotations_landmarks/")
        files[split] = listed = source.file(*(folder + name for folder in folders))
        rows = read_fields(listed, 2)
        places = [f"{urlsplit(row[0]).netloc}{urlsplit(row[0]).path}" if "://" in row[0] else row[0] for row in rows]
        tables.append(rows_of([source.root / place for place in places], split, [[row[1] for row in rows]]))
    return Draft(pl.concat(tables), files)


def read_sfm(source: Source) -> Draft:
    """``retrieval-SfM-120k.pkl``, or the ``.mat`` of names and clusters, which knows no validation part; ``ims/``."""
    parts: dict[str, tuple[list[str], list[str]]] = {}
    pickled = source.find(["retrieval-SfM-120k.pkl"], Path.is_file)
    if pickled is not None:
        listed = pickled
        pickle = read_pickle(listed.read_bytes(), listed)
        for split in ("train", "val"):
            try:
                found = as_text(pickle)
                parts[split] = [str(name) for name in found[split]["cids"]], [str(int(n)) for n in found[split]["cluster"]]
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                needed = names(("train", "val"))
                raise InputError(f"{listed}: {needed}, each with 'cids' and 'cluster', are needed: {error!r}") from error
    else:
        listed = source.file("retrieval-SfM-120k-imagenames-clusterids.mat")
        arrays = read_matlab(listed, "cids", "cluster")
        try:
            ids = [str(cell[0]) for cell in arrays["cids"].ravel()]
            parts["train"] = ids, [str(int(n)) for n in arrays["cluster"].ravel()]
        except (TypeError, IndexError, ValueError) as error:
            raise InputError(f"{listed}: 'cids' of text and 'cluster' of numbers are needed: {error!r}") from error
    images = source.folder("ims")
    tables = []
    for split, (ids, clusters) in parts.items():
        if len(ids) != len(clusters):
            raise InputError(f"{listed}: {split}: {len(ids)} images and {len(clusters)} clusters")
        paths = [images / name[-2:] / name[-4:-2] / name[-6:-4] / name for name in ids]
        tables.append(rows_of(paths, split, [[f"{split}/{cluster}" for cluster in clusters]]))
    return Draft(pl.concat(tables), dict.fromkeys(parts, listed) if pickled else {})  # the .mat has another selection


_GLDV2_NEEDS = (
    "'train_clean.csv', 'index_image_to_landmark.csv', 'retrieval_solution_v2.1.csv' (or in 'metadata') "
    "and the folders 'train', 'index', 'test' (or in 'images')"
)
GLDV2 = Reader(
    about="Google Landmarks v2, clean training part, index and queries",
    needs=_GLDV2_NEEDS,
    read=partial(read_gldv2, hierarchical=False),
    counts={"train": Part(1580470, (81313,)), "gallery": Part(761757), "query": Part(1129)},
)
H_GLDV2 = Reader(
    about="Google Landmarks v2 with hierarchical labels: landmark < group < natural or human-made",
    needs=_GLDV2_NEEDS + ", 'train_label_to_hierarchical.csv', 'index_label_to_hierarchical.csv'",
    read=partial(read_gldv2, hierarchical=True),
    counts={"train": Part(970981, (46593,))},
)
LANDMARKS_CLEAN = Reader(
    about="586 landmarks, cleaned by geometry",
    needs="'annotation_clean_train.txt', 'annotation_clean_val.txt' (or in 'annotations') and the images they name",
    read=read_landmarks_clean,
    counts={"train": Part(42410, (586,))},
    class_disjoint=False,
)
SFM_120K = Reader(
    about="photos of buildings by the 3D model they belong to",
    needs="'retrieval-SfM-120k.pkl' (or 'retrieval-SfM-120k-imagenames-clusterids.mat') and the folder 'ims'",
    read=read_sfm,
    counts={"train": Part(91642), "val": Part(6403)},
)
