"""Several codes an image in a manifest: read alike from every file, refused by line, held out for validation."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from refusals import assert_refused
from sightline.data.manifest import Manifest, read_manifest, write_table
from sightline.labels.code_column import CodeTree, code_lists, hold_out_codes, read_code_tree, read_codes
from sightline.labels.codes import tree_of_codes

LISTS = [["26.1.15", "5.3.13"], ["5.3.13"], ["29.1.1"]]


def of_codes(*sets):
    ids = [f"{n}.png" for n in range(len(sets))]
    table = pl.DataFrame({"id": ids, "path": ids, "split": "train", "codes": pl.Series(sets, dtype=pl.List(pl.String))})
    return Manifest(Path("made"), Path(), table, 0)


def test_text_and_lists_are_read_alike_and_written_back(tmp_path):
    rows = {"path": ["a.png", "b.png", "c.png"], "split": ["train"] * 3}
    text = pl.DataFrame(rows | {"codes": ["26.01.15; 5.3.13", "5.3.13", " 29.1.1. "]})
    lists = pl.DataFrame(rows | {"codes": LISTS})
    for name, table in {"t.csv": text, "t.parquet": text, "l.parquet": lists, "l.csv": lists}.items():
        read = read_codes(read_manifest(write_table(table, tmp_path / name), labelled=False), "codes")
        assert (code_lists(read, "codes"), read.table["codes"].dtype) == (LISTS, pl.List(pl.String))
        assert code_lists(read_codes(read, "codes"), "codes") == LISTS


def test_all_faults_of_the_rows_are_named_by_line(tmp_path):
    (tmp_path / "tree.csv").write_text("child,parent\n26.1.15,26.1\n26.1,26\n05.03,5\n")
    known = read_code_tree(tmp_path / "tree.csv")
    rows = {  # codes: what is wrong with them
        "26.1.15;star": "line 2: codes has 'star'",
        "26.1.15;26.01.15": "line 3: codes has '26.1.15' twice",
        "": "line 4: codes is empty",
        "5.3": "7 faults",
        "26.1.15;26.1": "line 6: codes has '26.1' is no leaf",
        "26.1.15.2": "line 7: codes has '26.1.15.2' is deeper than the 3",
        "7.1": "line 8: codes has '7.1' is not in",
        "26.1.15;": "line 9: codes has ''",
    }
    (tmp_path / "m.csv").write_text("path,split,codes\n" + "".join(f"{n}.png,train,{row}\n" for n, row in enumerate(rows)))
    manifest = read_manifest(tmp_path / "m.csv", labelled=False)
    assert_refused(["m.csv: ", "tree.csv", "1 code just below", *rows.values()], read_codes, manifest, "codes", known)
    assert len(read_codes(manifest.where(pl.col("path") == "3.png"), "codes", known)) == 1
    inner = manifest.where(pl.col("path") == "4.png")
    assert len(read_codes(inner, "codes", CodeTree(known.tree, leaves=False))) == 1
    table = replace(manifest, places=None)  # such as an embedding table's
    assert_refused(["image '2.png'", "is empty"], read_codes, table, "codes")


def test_other_columns_types_and_trees_are_refused(tmp_path):
    made = of_codes(["1.1"])
    for column in ("tags", "path"):
        assert_refused(["made", repr(column), "'codes'"], read_codes, made, column)
    numbers = replace(made, table=made.table.with_columns(codes=pl.lit(26.1)))
    assert_refused(["made", "codes", "Float64"], read_codes, numbers, "codes")
    (tmp_path / "tree.csv").write_text("child,parent\n26.1,27\n")
    assert_refused(["tree.csv", "'26.1'", "'27'", "'26'"], read_code_tree, tmp_path / "tree.csv")
    assert CodeTree(tree_of_codes(["1.2"])).fault("1.2") is None


@pytest.mark.parametrize("seed", range(3))
def test_codes_held_out_are_on_no_image_that_is_left_and_common_ones_are_on_both_sides(seed):
    rng = np.random.default_rng(seed)
    sets = [["29.1.1", *{f"1.1.{n}" for n in rng.integers(1, 40, rng.integers(1, 4))}] for _ in range(200)]
    left, held_out = hold_out_codes(of_codes(*sets), "codes", 0.2, seed)
    assert (20 <= len(held_out) <= 40, len(left) + len(held_out)) == (True, 200)
    of_left, of_held_out = ({code for codes in code_lists(part, "codes") for code in codes} for part in (left, held_out))
    assert all({*codes} - of_left for codes in code_lists(held_out, "codes"))
    assert "29.1.1" in of_left & of_held_out
    assert_refused(["val_fraction"], hold_out_codes, of_codes(["1.1"], ["1.1"], ["1.1"]), "codes", 0.2, 0)
