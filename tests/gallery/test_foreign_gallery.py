"""Galleries from somebody else: nothing outside them is written or read, and whatever is wrong is one message."""

import json
import os
import shutil
import sqlite3
import zlib
from contextlib import closing

import numpy as np
import pytest
from drawn import DIM, IDENTITY, draw

from refusals import assert_refused
from sightline.gallery.gallery import EncoderIdentity, Gallery
from sightline.gallery.local import backup_gallery, restore_gallery


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A gallery of 50 items with an index, closed."""
    folder = tmp_path_factory.mktemp("made") / "g"
    with Gallery.create(folder, IDENTITY, index="Flat") as gallery:
        gallery.add([f"item {n}" for n in range(50)], draw(50), [{"year": n} for n in range(50)])
        gallery.remove(["item 7"])
        gallery.build_index()
    return folder


@pytest.fixture
def folder(made, tmp_path):
    """A copy that may be damaged."""
    return shutil.copytree(made, tmp_path / "g")


@pytest.fixture
def secret(tmp_path):
    """A file outside the gallery."""
    file = tmp_path / "secret.sh"
    file.write_text("echo mine\n" * 1000)
    return file


def content(folder):
    """Every file's bytes and time."""
    return {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*") if path.is_file()}


def search(folder, **options):
    with Gallery.open(folder, **options) as gallery:
        return gallery.search(draw(3, seed=1), 5)[1].tolist()


def test_who_reads_changes_no_byte(sightline, folder, tmp_path):
    expected = search(folder, read_only=True)

    def damaged():
        yield
        for name in ("vectors-0.f32", "index.json"):
            yield (folder / name).unlink()
        yield (folder / "vectors-0.f32").write_bytes(b"x" * 4 * DIM * 64)

    for place, _ in enumerate(damaged()):
        before = content(folder)
        with Gallery.open(folder, read_only=True) as reader:
            assert reader.search(draw(3, seed=1), 5)[1].tolist() == expected
            assert [repair[:13] for repair in reader.repairs] == ["vectors-0.f32"] * (place == 3)
            assert len(reader.verify()) == (place == 3)
        assert content(folder) == before
        for words in (["search", "item 3", "--where", "year > 3", "--gallery", folder], ["index", "stats", folder]):
            assert sightline(*words)[0] == 0
        assert sightline("index", "verify", folder)[0] == 2 * (place == 3)
        assert sightline("index", "backup", folder, tmp_path / f"copy {place}")[0] == 0
        assert content(folder) == before


def test_a_table_that_lacks_rows_is_made_whole_by_the_next_write(folder):
    table = folder / "vectors-0.f32"
    for damage in (table.unlink, lambda: table.write_bytes(b"\0" * table.stat().st_size)):
        damage()
        with Gallery.open(folder) as writer:
            writer.upsert(["new"], draw(1, seed=3))
        with Gallery.open(folder, read_only=True) as reader:
            reader.search(draw(1))
            assert reader._snapshot.is_mapped
    expected = search(folder)
    table.unlink()
    table.mkdir()  # a folder in its place is searched around
    assert search(folder) == search(folder, read_only=True) == expected


@pytest.mark.parametrize("link", ["symbolic", "hard"])
@pytest.mark.parametrize("name", ["vectors-0.f32", "index.lock", "index.json", "INDEX"])
def test_no_derived_file_is_followed_to_another(sightline, folder, secret, name, link):
    expected = search(folder, read_only=True)
    file = next(folder.glob("index-*.faiss")) if name == "INDEX" else folder / name
    file.unlink(missing_ok=True)
    (os.symlink if link == "symbolic" else os.link)(secret, file)
    before = secret.read_text(), secret.stat().st_mtime_ns
    assert search(folder, read_only=True) == expected
    status, _, err = sightline("index", "verify", folder)
    assert link == "hard" or (status, file.name in err, "link" in err) == (2, True, True)
    assert search(folder) == expected
    with Gallery.open(folder) as writer:
        writer.add(["new"], draw(1, seed=5))
        if name != "index.lock" or link == "hard":
            writer.build_index("HNSW8")
    sightline("index", "verify", folder, "--repair")
    assert (secret.read_text(), secret.stat().st_mtime_ns) == before
    assert name == "index.lock" or sightline("index", "verify", folder)[0] == 0


@pytest.mark.parametrize("name", ["gallery.db", "gallery.db-wal", "encoder", "rejector"])
def test_links_to_a_database_or_a_model_are_refused(check_refused, folder, secret, tmp_path, name):
    before, outside = secret.read_text(), tmp_path / "models"
    outside.mkdir()
    target = outside if name in ("encoder", "rejector") else secret
    if name == "gallery.db":
        target = (folder / name).rename(tmp_path / "real.db")
    (folder / name).symlink_to(target)
    commands = [["index", "verify", folder], ["index", "backup", folder, tmp_path / "copy"]]
    if name != "encoder":
        commands.append(["search", "item 3", "--gallery", folder, *(["--reject"] if name == "rejector" else [])])
    if name == "rejector":
        fitting = ["ood", "fit", "--gallery", folder, "--scorer", "knn", "--option", "k=2"]
        check_refused(fitting, name, "--out")  # it is not written through the link either
    for words in commands:
        check_refused(words, name, "link")
    assert (secret.read_text(), (tmp_path / "copy").exists(), list(outside.iterdir())) == (before, False, [])
    if name == "encoder":
        with Gallery.open(folder) as gallery:
            assert_refused("encoder: is a link", gallery.encoder)


@pytest.mark.parametrize("make", [lambda file: file.symlink_to("/dev/zero"), os.mkfifo])
@pytest.mark.parametrize("where", ["images", "encoder"])
def test_links_and_pipes_are_neither_backed_up_nor_restored(folder, tmp_path, make, where):
    backup_gallery(folder, tmp_path / "copy")
    for gallery in (folder, tmp_path / "copy"):
        (gallery / where).mkdir()
        make(gallery / where / "one.png")
    assert_refused(r"one\.png", backup_gallery, folder, tmp_path / "second")
    assert_refused(r"one\.png", restore_gallery, tmp_path / "copy", tmp_path / "restored")
    assert {path.name for path in tmp_path.iterdir()} == {"g", "copy"}


def test_backups_inside_the_gallery_are_neither_made_nor_lost(folder):
    inside = folder / "backups" / "monday"
    assert_refused("monday", backup_gallery, folder, inside)
    assert not inside.parent.exists()
    with Gallery.open(folder, read_only=True) as gallery:
        gallery.backup(inside)
    assert_refused("monday", restore_gallery, inside, folder)
    assert (inside / "gallery.db").is_file()


def describe(key, value):
    checksum = zlib.crc32(f"{key}\0{value}".encode())
    return f"UPDATE described SET value = '{value}', checksum = {checksum} WHERE key = '{key}'"


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS {} FROM n"
ODD = {
    "view": "DROP TABLE state; CREATE VIEW state AS " + ENDLESS.format("generation"),
    "trigger": "CREATE TRIGGER t AFTER INSERT ON items BEGIN DELETE FROM items; END",
    "missing table": "DROP TABLE blocks",
    "next_row": "UPDATE state SET next_row = 2000000000",
    "next_row and items": "UPDATE state SET next_row = 2000000000, n_items = 1999999999",
    "n_items": "UPDATE state SET n_items = 40",
    "text state": "UPDATE state SET next_row = 'many'",
    "no state": "DELETE FROM state",
    "dim": describe("dim", "900000000"),
    "text dim": describe("dim", "eight"),
    "metric": describe("metric", "taxicab"),
    "blob described": "UPDATE described SET value = x'00ff' WHERE key = 'name'",
    "n of a block": "UPDATE blocks SET n = 2000000000",
    "text block": "UPDATE blocks SET vectors = 'text'",
    "block elsewhere": "UPDATE blocks SET start = 5",
    "row beyond": "UPDATE items SET row = 4000 WHERE row = 3",
    "removed beyond": "INSERT INTO removed VALUES (4000, 99)",
    "blob id": "UPDATE items SET id = x'ff00' WHERE row = 3",
}
ODD_METADATA = ["[]", "3", '{"a": [1]}', '{"a": {"b": 1}}', '{"a": NaN}', "[" * 10**5, "1" * 5000, '{"a": "\\ud800"}', "{"]


def execute(folder, script):
    with closing(sqlite3.connect(folder / "gallery.db")) as connection:
        connection.executescript(script)


@pytest.mark.parametrize("kind", ODD)
def test_an_odd_database_is_one_message(check_refused, folder, kind):
    execute(folder, ODD[kind])
    for words in (["search", "item 3", "--gallery", folder], ["index", "verify", folder]):
        check_refused(words, folder)
    (folder / "vectors-0.f32").unlink()
    assert_refused(str(folder), search, folder)


def test_odd_metadata_is_one_message(check_refused, folder):
    for value in [f"'{text}'" for text in ODD_METADATA] + ["x'ff'"]:
        execute(folder, f"UPDATE items SET metadata = {value} WHERE row = 3")
        check_refused(["search", "item 3", "--gallery", folder], "row 3")
        check_refused(["index", "verify", folder])
        with Gallery.open(folder) as gallery:
            assert_refused("row 3", gallery.remove, ["item 3"])


HEADERS = [{"n_rows": -1}, {"n_rows": "many"}, {"n_rows": 10**12}, {"epoch": None}, {"file": "../secret.sh"}, {"file": 3}]
HEADERS += [{"file": "/etc/passwd"}, {"checksum": None}, {"recall": "good"}, {"effort": {"nprobe": "all"}}]
HEADERS += [{"effort": {"colour": 3}}, {"effort": [3]}, [], 3]


def test_an_odd_header_and_an_index_of_other_vectors_are_damaged_indexes(sightline, folder, tmp_path):
    expected, whole = search(folder, read_only=True), json.loads((folder / "index.json").read_text())
    for change in HEADERS:
        (folder / "index.json").write_text(json.dumps(whole | change if isinstance(change, dict) else change))
        assert search(folder, read_only=True) == expected
        assert sightline("index", "stats", folder)[0] == 0
        assert sightline("index", "verify", folder)[0] == 2, change
    assert sightline("index", "verify", folder, "--repair")[0] == 0
    assert search(folder) == expected
    with Gallery.create(tmp_path / "other", EncoderIdentity("e", 3, "by hand"), index="Flat") as other:
        other.add(["a", "b"], np.eye(3)[:2])
        header = other.build_index()
    shutil.copy(other.folder / header.file, folder / whole["file"])
    (folder / "index.json").write_text(json.dumps(whole | {"checksum": header.checksum}))
    assert search(folder, read_only=True) == expected


def test_a_gallery_whose_replacement_was_killed_between_two_steps_is_put_back(folder):
    saving = folder.with_name(".g.saving")
    saving.mkdir()
    expected = search(folder, read_only=True)
    folder.rename(saving / "old")
    assert search(folder, read_only=True) == expected


def test_a_database_with_another_name_is_read_and_not_written(folder, tmp_path):
    os.link(folder / "gallery.db", tmp_path / "other.db")
    assert search(folder, read_only=True)
    assert_refused(r"gallery\.db: .*hard links", Gallery.open, folder)


def test_an_item_whose_row_no_block_has_is_replaced(folder):
    execute(folder, f"UPDATE items SET row = {2**62} WHERE id = 'item 3'")
    with Gallery.open(folder) as gallery:
        gallery.upsert(["item 3"], draw(1))
        assert gallery.ids()[-1] == "item 3"
