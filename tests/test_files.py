import errno
import shutil

import pytest

from sightline.files import replaced, replaced_folder
from sightline.search.folders import appearing


def test_a_new_file_is_there_after_the_block_and_not_before(tmp_path):
    file = tmp_path / "made" / "here" / "a.txt"
    with replaced(file) as scratch:
        scratch.write_text("whole")
        assert not file.exists()
        assert scratch.parent == file.parent  # on the same disk, or the last step would be a copy
    assert file.read_text() == "whole"
    assert list(file.parent.iterdir()) == [file]


def test_the_old_content_stays_until_the_block_ends(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("old")
    with replaced(file) as scratch:
        scratch.write_text("new")
        assert file.read_text() == "old"
    assert file.read_text() == "new"
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt, SystemExit])
def test_an_error_leaves_the_old_content_and_no_scratch(tmp_path, error):
    file = tmp_path / "a.txt"
    file.write_text("old")

    def write_half():
        with replaced(file) as scratch:
            scratch.write_text("hal")
            raise error

    with pytest.raises(error):
        write_half()
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


def test_an_error_before_anything_is_written_leaves_nothing(tmp_path):
    def write_nothing():
        with replaced(tmp_path / "a.txt"):
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_nothing()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("writing", [replaced, appearing, lambda target: replaced_folder(target, "mark", "one")])
@pytest.mark.parametrize(
    "error",
    [OSError(errno.ENOSPC, "No space left on device"), shutil.Error([("a", "b", "[Errno 28] No space left on device")])],
)
def test_a_full_disk_is_told_with_the_name_of_what_is_written(tmp_path, writing, error):
    def write():
        with writing(tmp_path / "made"):
            raise error

    with pytest.raises(OSError, match="No space left on device") as told:
        write()
    assert told.value.filename == str(tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_the_content_is_on_disk_before_the_name_is(tmp_path, monkeypatch):
    file, synced = tmp_path / "a.txt", []

    def record(descriptor):
        synced.append(file.exists())

    monkeypatch.setattr("sightline.files.os.fsync", record)
    with replaced(file) as scratch:
        scratch.write_text("whole")
    assert synced == [False]


def test_a_block_that_writes_nothing_leaves_the_old_file(tmp_path):
    file = tmp_path / "a.txt"
    file.write_text("old")
    with pytest.raises(FileNotFoundError), replaced(file):
        pass
    assert file.read_text() == "old"
