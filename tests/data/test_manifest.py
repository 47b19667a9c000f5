import io
import os
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from refusals import assert_refused
from sightline.data.manifest import IMAGE_SUFFIXES, Manifest, hold_out_classes, image_files, read_manifest, typed_table
from sightline.gallery.store import DATABASE


def write(folder: Path, text: str, name: str = "m.csv") -> Path:
    (folder / name).write_text(text)
    return folder / name


def complaint(source: Path, **options) -> str:
    """What is said of the source, without its name."""
    return assert_refused([f"{source}: "], read_manifest, source, **options).removeprefix(f"{source}: ")


def complaint_about(folder: Path, text: str, **options) -> str:
    return complaint(write(folder, text), **options)


def tree(root: Path, *files: str) -> Path:
    for file in files:
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        (root / file).touch()
    return root


def rows(manifest: Manifest, *columns: str) -> list[tuple]:
    return manifest.table.select(columns).rows()


def of_labels(*labels: tuple[str, ...]) -> Manifest:
    """A manifest of images with these labels, finest first."""
    paths = [f"{number}.png" for number in range(len(labels))]
    columns = {f"label_{level}": names for level, names in enumerate(zip(*labels, strict=True))}
    table = pl.DataFrame({"id": paths, "path": paths, "split": ["train"] * len(labels)} | columns)
    return Manifest(Path("made"), Path(), table, len(labels[0]))


def test_columns_come_in_one_order_and_unknown_ones_last_and_unchanged(tmp_path):
    header = "note,y_2,label_1,x_1,split,is_gallery,label_0,path,y_1,x_2,id,is_query,other"
    manifest = read_manifest(write(tmp_path, f"{header}\n 1.50 ,4,g,1,train,0,f,a.png,2,3,k,1,\n"))
    expected = {"id": "k", "path": "a.png", "split": "train", "label_0": "f", "label_1": "g", "is_query": True}
    expected |= {"is_gallery": False, "x_1": 1, "y_1": 2, "x_2": 3, "y_2": 4, "note": " 1.50 ", "other": None}
    (row,) = manifest.table.rows(named=True)
    assert ([*row.items()], manifest.n_levels) == ([*expected.items()], 2)


@pytest.mark.parametrize(
    ("values", "typed"),
    [
        (["2019", "", "-3", "+4", "0"], [2019, None, -3, 4, 0]),
        (["1.50", " 2 ", "", "-0.5", "1e3"], [1.5, 2.0, None, -0.5, 1000.0]),
        (["true", "FALSE", "", " True "], [True, False, None, True]),
        (["9223372036854775807", "1"], [2**63 - 1, 1]),
        (["", ""], [None, None]),
        *((words, words) for words in (["007", "1"], ["2", "many"], ["true", "1"], ["nan", "1.5"], ["inf", "1.5"])),
        *((words, words) for words in (["1e400", "1.5"], ["9223372036854775808", "1"], ["2019-05-01", "2020-01-01"])),
    ],
)
def test_further_columns_of_csv_are_numbers_or_booleans_where_every_value_is(tmp_path, values, typed):
    lines = [f"{n}.png,train,{n},{n},1,{value}" for n, value in enumerate(values)]
    manifest = read_manifest(write(tmp_path, "\n".join(["path,split,label,id,is_query,more", *lines])))
    table = typed_table(manifest)
    more = table["more"].to_list()
    assert (more, [type(value) for value in more]) == (typed, [type(value) for value in typed])
    assert table.drop("more").equals(manifest.table.drop("more"))
    manifest.table.write_parquet(tmp_path / "m.parquet")
    assert typed_table(read_manifest(tmp_path / "m.parquet"))["more"].dtype == pl.String


def test_parquet_reads_as_the_csv_of_the_same_table(tmp_path):
    box = dict(zip(("x_1", "y_1", "x_2", "y_2"), ([None, 1], [None, 2.0], [None, 3], [None, 4]), strict=True))
    kinds = pl.Series(["x", "y"], dtype=pl.Categorical)
    columns = {"path": ["/a.png", "b/b.png"], "split": ["train", "validation"], "label": [12, 7], "label_1": kinds}
    table = pl.DataFrame(columns | {"is_query": [None, True]} | box)
    table.write_csv(tmp_path / "m.csv")
    table.write_parquet(tmp_path / "m.parquet")
    from_csv, from_parquet = read_manifest(tmp_path / "m.csv"), read_manifest(tmp_path / "m.parquet")
    assert from_parquet.table.equals(from_csv.table)
    assert from_parquet.table.schema == from_csv.table.schema
    assert from_parquet.boxes() == [None, (1, 2, 3, 4)]
    assert from_parquet.paths() == [Path("/a.png"), tmp_path / "b/b.png"]
    assert rows(from_parquet, "id", "label_0", "split") == [("/a.png", "12", "train"), ("b/b.png", "7", "val")]
    assert read_manifest(tmp_path / "m.parquet").places.to_list() == ["row 1", "row 2"]


@pytest.mark.parametrize(
    "text",
    [
        b"path,split,label\r\na.png,train,caf\xc3\xa9\r\n",
        b"\xef\xbb\xbfpath,split,label\na.png,train,caf\xc3\xa9",  # byte order mark
        b'path,split,label\n"a.png", train ,caf\xc3\xa9 \n',
        b"path,split,label\n\na.png,train,caf\xc3\xa9\n\n,,\n",
    ],
)
def test_csv_as_other_programs_write_it(tmp_path, text):
    (tmp_path / "m.csv").write_bytes(text)
    assert read_manifest(tmp_path / "m.csv").table.rows() == [("a.png", "a.png", "train", "café")]


OPEN_METRIC_LEARNING = """\
label,path,split,is_query,is_gallery,category,x_1,x_2,y_1,y_2
0,images/circle_1.jpg,train,,,circle,,,,
0,images/circle_2.jpg,train,,,circle,10.0,20.0,30.0,45.0
3,images/cross_1.jpg,validation,True,True,cross,12.0,14.0,0,7
3,images/cross_2.jpg,validation,False,True,cross,,,,
"""


def test_a_table_of_open_metric_learning_reads_as_it_is(tmp_path):
    manifest = read_manifest(write(tmp_path, OPEN_METRIC_LEARNING, "M.CSV"))
    flags = ["is_query", "is_gallery", "x_1", "y_1", "x_2", "y_2", "category"]
    assert manifest.table.columns == ["id", "path", "split", "label_0", *flags]
    found = [("train", None, None), ("train", None, None), ("val", True, True), ("val", False, True)]
    assert rows(manifest, "split", "is_query", "is_gallery") == found
    assert manifest.boxes() == [None, (10, 30, 20, 45), (12, 0, 14, 7), None]  # left, top, right, bottom
    assert manifest.labels().tolist() == [[0], [0], [1], [1]]


@pytest.mark.parametrize(
    ("header", "missing"),
    [
        ("split,label", "no column 'path'"),
        ("name,label_1", "no column 'path', 'split', 'label_0'"),
        ("path,split,label,label_2", "no column 'label_1'"),
        ("path,split,label,x_1,y_2", "no column 'y_1', 'x_2'"),
        ("path;split;label", "no column 'path', 'split', 'label'"),
    ],
)
def test_missing_columns_are_named_together_with_those_there_are(tmp_path, header, missing):
    file = write(tmp_path, f"{header}\n{','.join('0' for _ in header.split(','))}\n")
    message = complaint(file)
    assert message.startswith(missing)
    assert all(repr(column) in message for column in header.split(","))
    if "label_" in header:
        assert missing in complaint(file, labelled=False)


BOXED = "path,split,label,x_1,y_1,x_2,y_2"


@pytest.mark.parametrize(
    ("header", "row", "facts"),
    [
        ("path,split,label", "a,Train,x", "split 'Train' 'train', 'val', 'test'"),
        ("path,split,label", "a,t{r}ain,x", "split 't{r}ain'"),
        ("path,split,label", "a,,x", "split empty"),
        ("path,split,label", "a,train,  ", "label empty"),
        ("path,split,label_0,label_1", "a,train,,x", "label_0 empty"),
        ("path,split,label", ",train,x", "path empty"),
        ("path,split,label", "a,train", "label empty"),
        ("path,split,label,id", "a,train,x,", "id empty"),
        ("path,split,label,is_query", "a,test,x,yes", "is_query 'yes' true false"),
        ("path,split,label", "a\0b,test,x", "path 'a\\x00b' zero"),
        *((BOXED, f"a,test,x,{value},2,3,4", f"x_1 '{value}'") for value in ("one", "2.5", "-1")),
        *((BOXED, f"a,test,x,1,2,{value},4", f"x_2 '{value}'") for value in ("inf", "nan", "1e30")),
        *((BOXED, f"a,test,x,{box}", "box 'a' empty side") for box in ("1,2,,4", ",,,4")),
        *((BOXED, f"a,test,x,{box}", "box 'a' x_1 below x_2") for box in ("3,2,1,4", "1,4,3,2", "1,2,1,4", "1,2,3,2")),
    ],
)
def test_each_fault_of_a_row_with_its_line(tmp_path, header, row, facts):
    good = dict.fromkeys(header.split(","), "1") | {"split": "test", "x_1": "0", "y_1": "0"}
    message = complaint_about(tmp_path, f"{header}\n{','.join(good[name] for name in header.split(','))}\n{row}\n")
    assert message.startswith("1 fault\n  line 3: ")
    assert all(fact in message for fact in facts.split())


def test_all_faults_of_a_file_come_in_one_message_in_the_order_of_lines(tmp_path):
    header = "id,path,split,label,is_query,x_1,y_1,x_2,y_2"
    text = f"{header}\nk,a,train,x,,,,,\nk,,tset,,maybe,1,2,,b\nm,c,test,y,True,9,9,1,1\n"
    first, *faults = complaint_about(tmp_path, text).split("\n  ")
    assert first == "9 faults"
    assert [fault.partition(":")[0] for fault in faults] == ["line 2", *["line 3"] * 7, "line 4"]
    assert [fault for fault in faults if "id 'k'" in fault] == [f"line {n}: id 'k' occurs more than once" for n in (2, 3)]
    many = complaint_about(tmp_path, "path,split,label\n" + "".join(f"{n},trian,x\n" for n in range(25)))
    assert (many.count("\n"), many.splitlines()[-1].strip()) == (21, "... and 5 more")
    columns = ",".join(f"c{number}" for number in range(5000))
    for text, facts in (
        ("path,split,label\na,train,x\na,test,x\n", ["2 faults", "line 2: path 'a'", "line 3: path 'a'", "'id'"]),
        ('path,split,label,note\na,train,x,"two\nlines"\n\nb,trian,x,\n', ["1 fault\n  line 5: split is 'trian'"]),
        (f"path,split,label,{columns}\n", ["more than 4096 columns"]),
        ("a" * (2 << 20), ["1048576 bytes"]),
        (f"{columns[:20000]}\n", ["'path'"]),
    ):
        message = complaint_about(tmp_path, text)
        assert ([fact for fact in facts if fact not in message], len(message) < 1000) == ([], True)


def parquet(**columns):
    written = io.BytesIO()
    pl.DataFrame(columns).write_parquet(written)
    return written.getvalue()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("m.csv", None, "no such file or folder"),
        ("m.txt", b"", "must be a .csv or .parquet file or a folder"),
        ("m.csv", b"", "cannot be read as a table: "),
        ("m.csv", b"path,split,label\ncaf\xe9,train,x\n", "cannot be read as a table: "),  # not UTF-8
        ("m.csv", b"path,split,label\na,train,x,more,fields\n", "cannot be read as a table: "),
        ("m.csv", b"path,split,label\n", "the table has no row"),
        ("m.csv", b"path,split,label\n\n,,\n", "the table has no row"),
        ("m.parquet", b"", "cannot be read as a table: "),
        ("m.parquet", b"path,split,label\na,train,x\n", "cannot be read as a table: "),
        ("m.parquet", b"PAR1" + bytes(50), "cannot be read as a table: "),
        ("m.parquet", parquet(path=["a"], split=["train"], label_0=[["a"]]), "'label_0' must be text or numbers, found"),
        ("m.parquet", parquet(path=["a"], split=["train"], label_0=[{"a": 1}]), "'label_0' must be text or numbers, found"),
    ],
)
def test_a_file_that_is_no_table_is_one_line(tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    said = complaint(tmp_path / name)
    assert (message in said, "\n" in said) == (True, False), said


def test_damaged_bytes_of_a_table_are_one_message_even_where_its_reader_panics(tmp_path, monkeypatch):
    def panic(*_, **__):
        raise pl.exceptions.PanicException("called `Option::unwrap()` on a `None` value")

    (tmp_path / "m.parquet").write_bytes(parquet(path=["a"], split=["train"], label=["x"]))
    monkeypatch.setattr(pl, "read_parquet", panic)
    assert "cannot be read as a table: called" in complaint(tmp_path / "m.parquet")


def test_first_folders_named_after_splits_are_the_splits(tmp_path):
    names = ("train/pet/cat/a.png", "validation/pet/dog/b.png", "val/pet/dog/c.png", "test/wild/fox/d.png")
    manifest = read_manifest(tree(tmp_path / "splits", *names))
    assert sorted(rows(manifest, "path", "split", "label_0", "label_1")) == [
        ("test/wild/fox/d.png", "test", "fox", "wild"),
        ("train/pet/cat/a.png", "train", "cat", "pet"),
        ("val/pet/dog/c.png", "val", "dog", "pet"),
        ("validation/pet/dog/b.png", "val", "dog", "pet"),
    ]
    assert "'test', 'train', 'val', 'validation' look like splits" in complaint(tree(tmp_path / "splits", "stray/c/1.png"))
    one = read_manifest(tree(tmp_path / "class", "train/a.png", "bus/b.png"))  # a class may be called train
    assert rows(one, "split", "label_0") == [("train", "bus"), ("train", "train")]


@pytest.mark.parametrize("names", [(), ("cat/readme.txt", "cat/.a.png"), (".git/cat/a.png",), (".png",)])
def test_a_folder_without_images_names_the_endings_it_knows(tmp_path, names):
    message = complaint(tree(tmp_path, *names))
    assert message.startswith("no image below this folder; ")
    assert all(repr(suffix) in message for suffix in IMAGE_SUFFIXES)


def test_hidden_files_are_left_out_and_each_folder_is_read_once_however_many_links_lead_to_it(tmp_path):
    root = tree(tmp_path / ".hidden", "cat/a.png", "cat/B.JPEG", f"gallery/{DATABASE}", "gallery/images/3.png")
    tree(root, "cat/.b.png", ".thumbs/cat/c.png", "cat/.checkpoints/d.png", "cat/notes.txt", "list.csv")
    assert read_manifest(root).table["path"].to_list() == ["cat/B.JPEG", "cat/a.png"]
    root = tree(tmp_path / "root", "b/cat/a.png", "b/dog/b.png")
    tree(tmp_path / "elsewhere", "c.png")
    (root / "b" / "cat" / "up").symlink_to(root)
    (root / "b" / "dog" / "up").symlink_to(root / "b", target_is_directory=True)
    (root / "a").symlink_to(root / "b")  # comes first by name: the folder's own name counts
    (root / "b" / "owl").symlink_to(tmp_path / "elsewhere")
    (root / "b" / "yak").symlink_to(tmp_path / "elsewhere")
    (root / "b" / "self").symlink_to("self")
    paths = read_manifest(root).table["path"].to_list()
    assert paths == ["b/cat/a.png", "b/dog/b.png", "b/owl/c.png"]


def test_a_folder_that_may_not_be_read_is_an_error_unless_it_is_hidden(tmp_path, monkeypatch):
    tree(tmp_path, "cat/a.png", ".dog/b.png", "lion/c.png")
    scandir, closed = os.scandir, [".dog"]

    def refuse(folder):
        if Path(folder).name in closed:
            raise PermissionError(13, "Permission denied", str(folder))
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", refuse)
    assert len(read_manifest(tmp_path)) == 2
    closed.append("lion")
    for read in (read_manifest, lambda folder: list(image_files(folder))):
        assert_refused(r"lion: cannot be read: Permission denied$", read, tmp_path)


def test_a_file_name_in_another_encoding_is_named(tmp_path):
    tree(tmp_path, "cat/a.png")
    try:
        Path(os.fsdecode(bytes(tmp_path / "cat") + b"/caf\xe9.png")).touch()
    except OSError:
        pytest.skip("this file system has UTF-8 names alone")
    assert complaint(tmp_path) == "1 fault\n  'cat/caf\\udce9.png': the name is not UTF-8; rename it"


def test_rows_know_their_lines_after_they_were_picked(tmp_path):
    rows = ["a,train,x", "b,val,y", "c,train,z", "d,val,x", "e,train,x"]
    manifest = read_manifest(write(tmp_path, "\n".join(["path,split,label", *rows, ""])))
    assert manifest.split("train").table["path"].to_list() == ["a", "c", "e"]
    assert manifest.split("val").where(pl.col("label_0") == "x").places.to_list() == ["line 5"]
    assert_refused(r"m\.csv: .*'test'.*'train', 'val'", manifest.split, "test")


label_rows = st.lists(st.tuples(*[st.sampled_from(["1", "2", "10", "b", "é"])] * 3), min_size=1, max_size=12)


@settings(deadline=None)
@given(label_rows)
def test_two_images_share_a_class_where_they_share_its_whole_path(labels):
    codes = of_labels(*labels).labels()
    for level in range(3):
        assert sorted(set(codes[:, level])) == list(range(codes[:, level].max() + 1))
        for one, its_code in zip(labels, codes[:, level], strict=True):
            for other, other_code in zip(labels, codes[:, level], strict=True):
                assert (its_code == other_code) == (one[level:] == other[level:])


@pytest.mark.parametrize(
    ("n_classes", "fraction", "n_held_out"),
    [(10, 0.3, 3), (6, 0.0, 2), (6, 1.0, 4), (4, 0.2, 2), (3, 0.9, 2), (2, 0.2, 1)],
)
def test_each_part_has_two_classes_where_there_are_four(n_classes, fraction, n_held_out):
    manifest = of_labels(*[(f"class {n % n_classes}",) for n in range(4 * n_classes)])
    rest, held_out = hold_out_classes(manifest, fraction, seed=0)
    assert not set(rest.table["label_0"]) & set(held_out.table["label_0"])
    assert sorted(rest.table["id"].to_list() + held_out.table["id"].to_list()) == sorted(manifest.table["id"])
    assert (len(held_out.class_names()), len(held_out)) == (n_held_out, 4 * n_held_out)
    assert_refused(r"made: .*one class", hold_out_classes, manifest.where(pl.col("label_0") == "class 0"), fraction, seed=0)


def test_several_boxes_of_one_picture_are_several_items(tmp_path):
    boxes = [f"{BOXED}\n", "x.jpg,train,a,0,0,5,5\n", "x.jpg,train,b,5.0,0,9,5\n", "y.jpg,train,a,,,,\n"]
    manifest = read_manifest(write(tmp_path, "".join(boxes)))
    assert manifest.table["id"].to_list() == ["x.jpg 0 0 5 5", "x.jpg 5.0 0 9 5", "y.jpg"]
    assert "'x.jpg 0 0 5 5'" in complaint_about(tmp_path, "".join([*boxes, boxes[1]]))
