"""Landmarks: Google Landmarks v2 and its hierarchical labels, Landmarks-clean, SfM-120k, Revisited Oxford and Paris.

Where labels do not say which items answer which query, judgements do: a JSON file beside the manifest.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl
from PIL import ExifTags, Image, ImageOps
from pydantic import TypeAdapter, ValidationError

from sightline.data.images import open_image
from sightline.data.manifest import BOX
from sightline.data.readers.source import (
    Draft,
    PublishedCounts,
    Reader,
    SourceFiles,
    layout_faults,
    read_columns,
    read_fields,
    read_lists,
)
from sightline.data.readers.untrusted_files import as_text, read_matlab, read_pickle
from sightline.errors import named_errors, raise_faults
from sightline.files import read_json

NO_LABEL = ("", "nan", "none", "null")
PUBLIC_COLUMNS = ("landmark_id", "hierarchical_label", "natural_or_human_made")
OLDER_COLUMNS = ("landmark_id", "cluster", "overall_cluster")
GLDV2_FILES = {"train": "train_clean.csv", "gallery": "index_image_to_landmark.csv", "query": "retrieval_solution_v2.1.csv"}
KINDS = ("easy", "hard", "junk")
JUDGEMENTS = TypeAdapter(dict[str, dict[str, list[str]]])


def read_judgements(
    file: Path, query_ids: Sequence[str], gallery_ids: Sequence[str], kinds: Sequence[str] = KINDS
) -> list[list[list[int]]]:
    """The items of each kind for each query, as places in the gallery; ``evaluate_revisited`` takes the default three.

    Args:
        file: see :func:`~sightline.data.readers.source.judgements_file`.
        query_ids: the manifest's ids of the queries, in the order of their vectors.
        gallery_ids: of the items, in the order of theirs; distractors are among them.
        kinds: ``easy``, ``hard`` and ``junk``, or ``relevant`` for Google Landmarks v2.

    Returns:
        For each kind, a list for each query.
    """
    with named_errors(file, "not a file of judgements", OSError, ValidationError):
        judged = JUDGEMENTS.validate_python(read_json(Path(file)))
    place = {name: number for number, name in enumerate(gallery_ids)}
    asked = [(query, kind, judged.get(query, {}).get(kind)) for kind in kinds for query in query_ids]
    faults = [f"query {query!r}: no list {kind!r}" for query, kind, items in asked if items is None]
    faults += [
        f"query {query!r}: {item!r} is not in the gallery"
        for query, _, items in asked
        for item in items or []
        if item not in place
    ]
    raise_faults(file, faults)
    return [[[place[item] for item in judged[query][kind]] for query in query_ids] for kind in kinds]


def read_gldv2(source: SourceFiles, hierarchical: bool) -> Iterator[Draft]:
    """``train_clean.csv``, ``index_image_to_landmark.csv`` and ``retrieval_solution_v2.1.csv``.

    The index is the gallery; queries are the test images with a solution, and have the landmark of its first image.
    Numbers of landmarks mean other landmarks in training than in the index, so they carry the list's name.

    Args:
        source: the files.
        hierarchical: three levels; images whose landmark has no hierarchical label are left out.
    """
    files = {part: source.file(name, f"metadata/{name}") for part, name in GLDV2_FILES.items()}
    train = read_columns(files["train"], ("landmark_id", "images"))
    train = train.select("landmark_id", id=pl.col("images").str.split(" ")).explode("id").filter(pl.col("id") != "")
    index = read_columns(files["gallery"], ("landmark_id", "id"))
    solved = read_columns(files["query"], ("id", "images")).filter(pl.col("images") != "None")
    solved = solved.with_columns(pl.col("images").str.split(" ")).with_columns(first=pl.col("images").list.first())
    solved = solved.join(index.rename({"id": "first"}), on="first", how="left", maintain_order="left")
    lost = solved.filter(pl.col("landmark_id").is_null())["id", "first"].rows()
    raise_faults(files["query"], [f"query {query}: {item} is not in {files['gallery'].name}" for query, item in lost])
    judged = {
        f"test/{query}": {"relevant": [f"index/{item}" for item in items]} for query, items in solved["id", "images"].rows()
    }
    letters = [pl.col("id").str.slice(place, 1) for place in range(3)]
    for part, kind, images in (("train", "train", train), ("gallery", "index", index), ("query", "test", solved)):
        space = "train" if part == "train" else "index"
        rows = images.select(
            "landmark_id",
            path=pl.format("{}/{}/{}/{}.jpg", *letters, "id"),
            label_0=pl.format(f"{space}/{{}}", "landmark_id"),
            id=pl.format(f"{kind}/{{}}", "id"),
        )
        if hierarchical:
            rows = rows.join(_hierarchy(source, space), on="landmark_id", how="inner", maintain_order="left")
        folder = source.folder(f"images/{kind}", kind)
        yield Draft(part, files[part], rows.drop("landmark_id"), folder, judged if part == "query" else None)


def _hierarchy(source: SourceFiles, space: str) -> pl.DataFrame:
    """The group and the root of each landmark that has both."""
    choices = (f"{space}_label_to_hierarchical.csv", f"{space}_label_to_subcategory_with_clusters.csv")
    file = source.file(*choices, *(f"metadata/{name}" for name in choices))
    table = read_columns(file, PUBLIC_COLUMNS, OLDER_COLUMNS)
    table.columns = ["landmark_id", "label_1", "label_2"]
    empty = pl.col("label_1", "label_2").str.strip_chars().str.to_lowercase().is_in(NO_LABEL).fill_null(True)
    table = table.filter(~pl.any_horizontal(empty))
    twice = table.filter(pl.col("landmark_id").is_duplicated())["landmark_id"].unique(maintain_order=True)
    raise_faults(file, [f"landmark {number} is there more than once" for number in twice])
    return table


def read_sfm(source: SourceFiles) -> Iterator[Draft]:
    """``retrieval-SfM-120k.pkl``, or the ``.mat`` of names and clusters, which knows no validation part; ``ims/``."""
    pickled = source.find(["retrieval-SfM-120k.pkl"])
    listed = pickled or source.file("retrieval-SfM-120k-imagenames-clusterids.mat")
    with layout_faults(listed, "'train' and 'val' of a pickle, each with 'cids' of text and 'cluster' of numbers, are"):
        if pickled:
            found = as_text(read_pickle(listed.read_bytes(), listed))
            parts = {split: (found[split]["cids"], found[split]["cluster"]) for split in ("train", "val")}
        else:
            found = read_matlab(listed, "cids", "cluster")
            parts = {"train": ([cell[0] for cell in found["cids"].ravel()], found["cluster"].ravel())}
        for split, part in parts.items():
            ids = [(str(name), f"{split}/{int(number)}") for name, number in zip(*part, strict=True)]
            rows = [(f"{name[-2:]}/{name[-4:-2]}/{name[-6:-4]}/{name}", label) for name, label in ids]
            table = pl.DataFrame(rows, {"path": pl.String, "label_0": pl.String}, orient="row")
            yield Draft(split, pickled, table, source.folder("ims"))  # the .mat has another selection, which is not counted


def read_revisited(source: SourceFiles, name: str, distractors: bool) -> Iterator[Draft]:
    """``gnd_<name>.pkl`` with ``imlist``, ``qimlist`` and ``gnd``, images in ``jpg``; distractors in ``revisitop1m``."""
    listed = source.file(f"gnd_{name}.pkl", f"{name}/gnd_{name}.pkl")
    items, queries, boxes, judged = _ground_truth(listed)
    images = source.folder("jpg", f"{name}/jpg")
    corners = [_pixels(images / f"{query}.jpg", box) for query, box in zip(queries, boxes, strict=True)]
    sides = pl.DataFrame(corners, dict.fromkeys(BOX, pl.Int64), orient="row")
    asked = pl.DataFrame({"path": [f"{query}.jpg" for query in queries], "id": [f"query/{query}" for query in queries]})
    yield Draft("query", listed, pl.concat([asked, sides], how="horizontal"), images, judged)
    yield Draft("gallery", listed, pl.DataFrame({"path": [f"{item}.jpg" for item in items], "id": items}), images)
    if distractors:
        base = source.folder("revisitop1m", "../revisitop1m")
        rows = read_fields(source.file(f"{base}/revisitop1m.txt"), ["path"])
        yield Draft("gallery", listed, rows.with_columns(id=pl.format("distractor/{}", "path")), base / "jpg")


def _ground_truth(listed: Path) -> tuple[list[str], list[str], list[list[int]], dict[str, dict[str, list[str]]]]:
    """Images, queries, the box of each query, and its images of each kind."""
    with layout_faults(listed, f"imlist, qimlist and gnd with bbx of four sides, {', '.join(KINDS)} are"):
        truth: Any = as_text(read_pickle(listed.read_bytes(), listed))
        items, queries = ([str(name) for name in truth[key]] for key in ("imlist", "qimlist"))
        boxes = [[round(float(side)) for side in entry["bbx"]] for entry in truth["gnd"]]
        places = [{kind: [int(place) for place in entry[kind]] for kind in KINDS} for entry in truth["gnd"]]
        if not len(queries) == len(boxes) > 0 or any(len(box) != 4 for box in boxes):
            raise ValueError(f"{len(queries)} queries, judgements of {len(boxes)}")
    far = [
        f"query {query}: {kind} has place {place}, there are {len(items)} images"
        for query, lists in zip(queries, places, strict=True)
        for kind in KINDS
        for place in lists[kind]
        if not 0 <= place < len(items)
    ]
    raise_faults(listed, far)
    judged = [{kind: [items[place] for place in lists[kind]] for kind in KINDS} for lists in places]
    return items, queries, boxes, dict(zip((f"query/{query}" for query in queries), judged, strict=True))


def _pixels(path: Path, box: Sequence[int]) -> tuple[int, ...]:
    """The box in whole pixels, within the image where that can be read.

    Boxes are of the stored pixels; images are turned as their cameras say when they are opened, and the box with them.
    """
    left, top, right, bottom = box
    try:
        with open_image(path) as image:
            mask = Image.new("1", image.size)
            mask.paste(1, (left, top, right, bottom))
            mask.getexif()[ExifTags.Base.Orientation] = image.getexif().get(ExifTags.Base.Orientation, 1)
            return ImageOps.exif_transpose(mask).getbbox() or tuple(box)
    except Exception:  # whatever its bytes lead to; missing images are reported together
        return tuple(box)


def _revisited(name: str, city: str, n_images: int, distractors: bool) -> Reader:
    more, folder = (" and a million distractors", " and the folder 'revisitop1m'") if distractors else ("", "")
    return Reader(
        about=f"70 queries of landmarks in {city}, judged easy, hard or junk{more}",
        needs=f"'{name}/gnd_{name}.pkl', the folder '{name}/jpg'{folder}",
        read=partial(read_revisited, name=name, distractors=distractors),
        counts={"query": PublishedCounts(70), "gallery": PublishedCounts(n_images + 1_001_001 * distractors)},
        labelled=False,
    )


_GLDV2_NEEDS = (
    "'train_clean.csv', 'index_image_to_landmark.csv', 'retrieval_solution_v2.1.csv' (or in 'metadata') "
    "and the folders 'train', 'index', 'test' (or in 'images')"
)
GLDV2 = Reader(
    about="Google Landmarks v2, clean training part, index and queries",
    needs=_GLDV2_NEEDS,
    read=partial(read_gldv2, hierarchical=False),
    counts={
        "train": PublishedCounts(1580470, (81313,)),
        "gallery": PublishedCounts(761757),
        "query": PublishedCounts(1129),
    },
)
H_GLDV2 = Reader(
    about="Google Landmarks v2 with hierarchical labels: landmark < group < natural or human-made",
    needs=_GLDV2_NEEDS + ", 'train_label_to_hierarchical.csv', 'index_label_to_hierarchical.csv'",
    read=partial(read_gldv2, hierarchical=True),
    counts={"train": PublishedCounts(970981, (46593,))},
)
LANDMARKS_CLEAN = Reader(
    about="586 landmarks, cleaned by geometry",
    needs="'annotation_clean_train.txt', 'annotation_clean_val.txt' (or in 'annotations') and the images they name",
    read=partial(
        read_lists,
        files=[f"{folder}annotation_clean_{{}}.txt" for folder in ("", "annotations/", "annotations_landmarks/")],
        fields=("path", "label_0"),
        # An image given by its address is looked for where ``wget --force-directories`` puts it.
        columns={"path": pl.col("path").str.replace(r"^[^/:]*://([^?#]*).*$", "$1"), "label_0": "label_0"},
        splits=("train", "val"),
        folders=["."],
    ),
    counts={"train": PublishedCounts(42410, (586,))},
    class_disjoint=False,
)
SFM_120K = Reader(
    about="photos of buildings by the 3D model they belong to",
    needs="'retrieval-SfM-120k.pkl' (or 'retrieval-SfM-120k-imagenames-clusterids.mat') and the folder 'ims'",
    read=read_sfm,
    counts={"train": PublishedCounts(91642), "val": PublishedCounts(6403)},
)
ROXFORD = _revisited("roxford5k", "Oxford", 4993, distractors=False)
RPARIS = _revisited("rparis6k", "Paris", 6322, distractors=False)
ROXFORD_1M = _revisited("roxford5k", "Oxford", 4993, distractors=True)
RPARIS_1M = _revisited("rparis6k", "Paris", 6322, distractors=True)
