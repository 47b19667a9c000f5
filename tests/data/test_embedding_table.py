import contextlib
import os
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.testing import assert_array_equal
from polars.testing import assert_frame_equal

from refusals import assert_refused
from sightline.data.embedding_table import EmbeddingTable
from sightline.data.manifest import read_manifest
from sightline.errors import InputError

CSV = """path,split,label_0,label_1,is_query,is_gallery,x_1,y_1,x_2,y_2,id,note
a.png,test,001,birds,true,,0,0,5,5,one,ä
b.png,test,001,birds,false,true,,,,,two,
c.png,train,2,fish,,false,1,2,3,4,three,"x, y"
"""


@pytest.fixture
def manifest(tmp_path):
    (tmp_path / "set.csv").write_text(CSV, encoding="utf-8")
    return read_manifest(tmp_path / "set.csv")


@pytest.fixture
def table(manifest):
    return EmbeddingTable(manifest, np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32), "0123abc")


def test_what_is_written_is_read_from_any_folder(table, tmp_path, monkeypatch):
    file = table.write(tmp_path / "new" / "table.parquet")
    again = EmbeddingTable.read(file)
    assert_array_equal(again.vectors, table.vectors)
    assert (again.vectors.dtype, again.vectors.flags.writeable) == (np.float32, True)  # torch has no read-only tensors
    assert (again.fingerprint, again.ids, again.manifest.n_levels) == ("0123abc", ["one", "two", "three"], 2)
    assert_frame_equal(again.manifest.table, table.manifest.table)
    assert again.manifest.source == file
    assert again.manifest.boxes() == [(0, 0, 5, 5), None, (1, 2, 3, 4)]
    assert again.manifest.table["is_query"].to_list() == [True, False, None]
    assert again.manifest.table["label_0"].to_list() == ["001", "001", "2"]  # no number made of a name
    assert_array_equal(again.manifest.labels(), table.manifest.labels())
    # The images' folder is stored whole: relative to where `embed` ran it would mean nothing elsewhere.
    monkeypatch.chdir(tmp_path)
    relative = EmbeddingTable(read_manifest(Path("set.csv")), table.vectors, "f")
    assert relative.manifest.paths()[0] == Path("a.png")
    file = relative.write(Path("table.parquet")).resolve()
    monkeypatch.chdir("/")
    assert EmbeddingTable.read(file).manifest.paths()[0] == tmp_path / "a.png"


def test_a_flipped_bit_is_found_or_changes_nothing(table, tmp_path):
    file = table.write(tmp_path / "table.parquet")
    stored, generator = file.read_bytes(), np.random.default_rng(0)
    for _ in range(40):
        flipped = bytearray(stored)
        flipped[generator.integers(len(stored))] ^= 1 << int(generator.integers(8))
        file.write_bytes(flipped)
        with contextlib.suppress(InputError):
            again = EmbeddingTable.read(file)
            assert_array_equal(again.vectors, table.vectors)
            assert_frame_equal(again.manifest.table, table.manifest.table)
            assert (again.fingerprint, again.manifest.n_levels) == (table.fingerprint, 2)


def test_where_keeps_rows_and_vectors_together(table):
    for condition, kept in ((pl.col("split") == "test", [0, 1]), (~pl.col("is_query"), [1]), (pl.lit(False), [])):
        part = table.where(condition)  # the third image has no role
        assert part.ids == [table.ids[place] for place in kept]
        assert_array_equal(part.vectors, table.vectors[kept])
        assert (part.fingerprint, len(part)) == (table.fingerprint, len(part.manifest))


@pytest.mark.parametrize("shape", [(2, 5), (4, 5), (0, 5), (3,), (3, 5, 1)])
def test_vectors_that_do_not_fit_the_images_are_refused(shape, manifest):
    facts = ["vectors", "3 images", str(shape)]
    assert_refused(facts, EmbeddingTable, manifest, np.zeros(shape, np.float32), "f")


def test_files_of_another_kind_are_refused(table, tmp_path, monkeypatch):
    file = tmp_path / "table.parquet"
    assert_refused(r"table\.parquet: no such file", EmbeddingTable.read, file)
    for stored in (b"", b"a,b\n1,2\n", table.write(file).read_bytes()[:-9]):
        file.write_bytes(stored)
        assert_refused(["table.parquet", "embedding table"], EmbeddingTable.read, file)
    table.manifest.table.write_parquet(file)
    assert_refused(r"table\.parquet: .*format 1 or 2, found None", EmbeddingTable.read, file)
    monkeypatch.setattr("sightline.data.embedding_table.FORMAT", "3")
    table.write(file)
    monkeypatch.undo()
    assert_refused("format 1 or 2, found 3", EmbeddingTable.read, file)
    os.mkfifo(tmp_path / "pipe.parquet")
    assert not EmbeddingTable.is_at(tmp_path / "pipe.parquet")


def forge(table, folder, change, described=None, keep_checksum=False):
    """The table on disk, its rows changed and its description too."""
    file = table.write(folder / "table.parquet")
    left_out = ("ARROW:schema",) if keep_checksum else ("ARROW:schema", "checksum")
    known = {key: value for key, value in pl.read_parquet_metadata(file).items() if key not in left_out}
    change(pl.read_parquet(file)).write_parquet(file, metadata=known | (described or {}))
    return file


def changed(**columns):
    return lambda rows: rows.with_columns(**columns)


@pytest.mark.parametrize(
    "change",
    [
        changed(note=pl.col("note").fill_null("")),
        changed(id=pl.col("id").reverse()),
        changed(is_query=pl.col("is_query").fill_null(False)),
        changed(vector=pl.col("vector").reverse()),
        lambda rows: rows.rename({"note": "label_2"}),
    ],
)
def test_other_content_under_the_same_checksum_is_refused(change, table, tmp_path):
    file = forge(table, tmp_path, change, keep_checksum=True)
    assert_refused(r"table\.parquet: .*checksum", EmbeddingTable.read, file)
    assert len(EmbeddingTable.read(forge(table, tmp_path, change))) == 3  # written before there was a checksum


@pytest.mark.parametrize(
    ("columns", "described", "fact"),
    [
        ({}, {"n_levels": "-1"}, "-1"),
        ({}, {"n_levels": "1000000000"}, "1000000000"),
        ({}, {"n_levels": "two"}, "two"),
        ({"path": pl.lit(None, pl.String)}, {}, "path"),
        ({"label_0": pl.lit([1, 2])}, {}, "table"),
        ({"vector": pl.lit(1.5)}, {}, "float64"),
        ({"vector": pl.col("vector").cast(pl.Array(pl.Float64, 5))}, {}, "float64"),
    ],
)
def test_a_forged_table_is_refused(columns, described, fact, table, tmp_path):
    file = forge(table, tmp_path, changed(**columns), described)
    assert_refused(["table.parquet: ", fact], EmbeddingTable.read, file)
