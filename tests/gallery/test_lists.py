"""Metadata that is a list, such as the codes of a trademark: from a manifest to the gallery, its answers and back."""

import json

import polars as pl
import pytest

from refusals import assert_refused
from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import read_manifest
from sightline.gallery.gallery import Gallery
from sightline.models.embed import embed_manifest

CODES = [["26.1.15", "5.3.13"], ["26.10"], None, ["ü", "26.1"], ["3.1.1"], ["26.1.15"]]


@pytest.fixture
def images(image_tree, tmp_path):
    """Writes a manifest of six images with a column ``marks``: lists in Parquet, text in CSV."""

    def write(name, codes=CODES):
        rows = read_manifest(image_tree).table[: len(codes)]
        rows = rows.with_columns(path=pl.Series([str(image_tree / path) for path in rows["path"]]))
        if name.endswith(".parquet"):
            rows.with_columns(pl.Series("marks", codes)).write_parquet(tmp_path / name)
        else:
            texts = [one if isinstance(one, str | None) else " ; ".join(one) for one in codes]
            rows.with_columns(pl.Series("marks", texts)).write_csv(tmp_path / name)
        return tmp_path / name

    return write


def stored(gallery):
    return [row.get("marks") for row in gallery.metadata(gallery.ids())]


def test_lists_of_every_source_are_kept_shown_and_written_back(encoder, images, tmp_path, sightline):
    encoder.save_pretrained(tmp_path / "encoder")
    csv = images("marks.csv")
    status, *printed = sightline("index", "build", tmp_path / "encoder", csv, "--out", tmp_path / "g", "--codes", "marks")
    assert status == 0, printed
    embed_manifest(encoder, read_manifest(csv)).write(tmp_path / "text.parquet")
    embed_manifest(encoder, read_manifest(images("marks.parquet"))).write(tmp_path / "lists.parquet")
    assert EmbeddingTable.read(tmp_path / "lists.parquet").manifest.table["marks"].to_list() == CODES
    with Gallery.open(tmp_path / "g") as gallery:
        assert stored(gallery) == CODES
        for name, codes in (("lists", None), ("text", "marks")):
            assert str(gallery.add_images(tmp_path / f"{name}.parquet", codes=codes)) == "6 unchanged"
        assert str(gallery.add_images(images("marks.parquet", [["7"], *CODES[1:]]))) == "1 relabelled, 5 unchanged"
        assert (stored(gallery)[-1], gallery.filter('"7" in marks')) == (["7"], gallery.ids()[-1:])
        assert gallery.verify() == []
        first = gallery.ids()[0]
    search = ("search", first, "--gallery", tmp_path / "g", "--where", 'has(marks, "26.1")')
    lines = sightline(*search)[1].splitlines()[1:]
    assert sorted(line.split("  marks ")[1] for line in lines) == ["26.1.15", "ü; 26.1"]
    found = json.loads(sightline(*search, "--json")[1])[0]["results"]
    assert sorted(hit["metadata"]["marks"] for hit in found) == [["26.1.15"], ["ü", "26.1"]]
    sightline(*search, "--html", tmp_path / "found.html")
    assert "marks ü; 26.1" in (tmp_path / "found.html").read_text(encoding="utf-8")
    for name, expected in (("all.parquet", [CODES[3]]), ("all.csv", ["ü;26.1"])):
        assert sightline("index", "manifest", tmp_path / "g", "--out", tmp_path / name)[0] == 0
        rows = read_manifest(tmp_path / name).table
        assert rows.filter(pl.col("id") == read_manifest(csv).table["id"][3])["marks"].to_list() == expected


FAULTS = [
    ("a.csv", ["1", "2;;3"], r"a.csv: 1 fault\n  line 3: marks must list text .* got ''"),
    ("a.csv", ["1;2;1", "2;2"], r"(?s)a.csv: 2 faults\n  line 2: marks lists '1' twice.*line 3: marks lists '2' twice"),
    ("a.csv", ["1", "x" * 201], r"line 3: marks lists 'xxx.* 201 characters, at most 200"),
    ("a.csv", ["1", ";".join(map(str, range(101)))], "line 3: marks lists 101 values, at most 100"),
    ("a.parquet", [["1"], []], "row 2: marks is an empty list"),
    ("a.parquet", [["1", None], ["2"]], "row 1: marks must list text .* got None"),
    ("a.parquet", [[1], [2, 3]], "(?s)2 faults.*row 1: marks must list text .* got 1"),
    ("a.parquet", [1.5, 2.5], "a.parquet: marks must be text with ; or lists of text, found Float64"),
]


def test_lists_at_fault_are_named_by_their_row_and_a_column_of_another_meaning_is_not_split(encoder, images, tmp_path):
    with Gallery.create(tmp_path / "g", encoder) as gallery:
        for name, codes, message in FAULTS:
            assert_refused(message, gallery.add_images, images(name, codes), codes="marks")
        for column in ("codes", "label_0", "path"):
            assert_refused(
                rf"a\.csv: no column '{column}' .* it has 'marks'", gallery.add_images, images("a.csv"), codes=column
            )
        assert gallery.generation == len(gallery) == 0  # before anything is embedded
        assert str(gallery.add_images(images("a.csv"))) == "6 added"
        assert stored(gallery)[0] == "26.1.15 ; 5.3.13"  # text stays text
