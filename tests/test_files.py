import errno
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from refusals import assert_refused
from sightline.data.manifest import write_table
from sightline.errors import InputError
from sightline.files import copy_folder, locked, read_json, recovered_folder, replaced, replaced_folder


def test_a_file_is_the_old_one_until_the_block_ends_and_then_the_new_one(tmp_path):
    file = tmp_path / "made" / "here" / "a.txt"
    for old, new in ((None, "first"), ("first", "second")):
        with replaced(file) as scratch:
            scratch.write_text(new)
            assert (file.read_text() if file.exists() else None) == old
            assert scratch.parent == file.parent  # on the same disk, or the last step would be a copy
        assert file.read_text() == new
        assert list(file.parent.iterdir()) == [file]


def circle_of_causes():
    first, second = InputError("first"), ValueError("second")
    first.__cause__, second.__context__ = second, first
    return first


@pytest.mark.parametrize("error", [RuntimeError(), KeyboardInterrupt(), SystemExit(), circle_of_causes()])
def test_an_error_leaves_the_old_content_and_no_scratch(tmp_path, error):
    file = tmp_path / "a.txt"
    file.write_text("old")

    def write_half():
        with replaced(file) as scratch:
            scratch.write_text("hal")
            raise error

    with pytest.raises(type(error)):
        write_half()
    assert file.read_text() == "old"
    assert list(tmp_path.iterdir()) == [file]


NO_ROOM = "No space left on device"


@pytest.mark.parametrize("writing", [replaced, replaced_folder, lambda target: replaced_folder(target, "mark", "one")])
@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, NO_ROOM), shutil.Error([("a", "b", f"[Errno 28] {NO_ROOM}")])])
def test_a_full_disk_is_reported_with_the_name_of_what_is_written(tmp_path, writing, error):
    with pytest.raises(OSError, match=NO_ROOM) as raised, writing(tmp_path / "made"):
        raise error
    assert raised.value.filename == str(tmp_path / "made")
    assert list(tmp_path.iterdir()) == []


def test_what_is_written_is_on_disk_before_its_name_is(tmp_path, monkeypatch):
    synced, real = [], os.fsync

    def record(descriptor):
        place = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.append((place, [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")]))
        real(descriptor)

    monkeypatch.setattr("sightline.files.os.fsync", record)
    with replaced(tmp_path / "a.txt") as scratch:
        scratch.write_text("whole")
    assert [there for _, there in synced] == [[], ["a.txt"]]  # the content, then the name
    synced.clear()
    (tmp_path / "a.txt").unlink()
    with replaced_folder(tmp_path / "made") as scratch:
        (scratch / "below").mkdir()
        (scratch / "below" / "a.txt").write_text("whole")
    assert [place.name for place, there in synced if not there] == ["a.txt", "below", "new"]
    assert synced[-1] == (tmp_path, ["made"])


KILLED = """
import os, signal, sys
from pathlib import Path
import sightline.files as files

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

folder, when = Path(sys.argv[1]), sys.argv[2]
if when == "without exchange":
    files.ctypes.CDLL = lambda *args, **kwargs: object()
    rename = Path.rename
    Path.rename = lambda self, target: die() if self.name == "new" else rename(self, target)
elif when == "before":
    files._exchange = die
else:
    files.shutil.rmtree = lambda path, **kwargs: die() if path.name.endswith(".saving") else None
with files.replaced_folder(folder, "mark", "one") as scratch:
    (scratch / "mark").write_text("new")
"""


@pytest.mark.parametrize(("when", "kept"), [("before", "old"), ("after", "new"), ("without exchange", "old")])
def test_a_folder_is_the_old_or_the_new_one_wherever_its_writer_is_killed(tmp_path, when, kept):
    folder = tmp_path / "made"
    folder.mkdir()
    (folder / "mark").write_text("old")
    killed = subprocess.run([sys.executable, "-c", KILLED, str(folder), when], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert (recovered_folder(folder) / "mark").read_text() == kept
    with replaced_folder(folder, "mark", "one") as scratch:
        (scratch / "mark").write_text("next")
    assert (folder / "mark").read_text() == "next"
    assert list(tmp_path.iterdir()) == [folder]


def test_a_lock_keeps_what_its_file_holds_and_follows_no_link(tmp_path):
    (tmp_path / "lock").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "lock")
    with locked(tmp_path / "lock") as mine:
        assert mine
        with locked(tmp_path / "lock", wait=False) as second:
            assert not second
    assert (tmp_path / "lock").read_text() == "kept"
    with pytest.raises(InputError, match="link"), locked(tmp_path / "link"):
        pass


HOLDING = """
import sys
from pathlib import Path
from sightline.files import locked
with locked(Path(sys.argv[1])) as mine:
    print(mine, flush=True)
    sys.stdin.read()
"""


def test_a_lock_ends_with_its_process_and_what_waits_gets_it(tmp_path):
    file = tmp_path / "made" / "lock"
    words, pipes = [sys.executable, "-c", HOLDING, file], {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, **pipes) as holder, subprocess.Popen(words, **pipes) as other:
        ready, _, _ = select.select([holder.stdout, other.stdout], [], [])
        first, second = (holder, other) if holder.stdout in ready else (other, holder)
        with locked(file, wait=False) as mine:
            assert not mine
        first.kill()
        assert second.stdout.readline() == b"True\n"
        shutil.rmtree(file.parent)  # the name is free again, whoever holds the file that had it
        with locked(file, wait=False) as mine:
            assert mine
            assert file.exists()
        second.kill()


OTHER_KINDS = {
    "link": lambda file, outside: file.symlink_to(outside / "secret.json"),
    "broken link": lambda file, outside: file.symlink_to(outside / "nothing"),
    "circle": lambda file, outside: file.symlink_to(file),
    "pipe": lambda file, outside: os.mkfifo(file),
    "device": lambda file, outside: file.symlink_to("/dev/zero"),
    "folder link": lambda file, outside: file.parent.symlink_to(outside),
}


@pytest.mark.parametrize("kind", OTHER_KINDS)
def test_files_of_an_artefact_are_regular_and_inside_it(tmp_path, kind):
    root, outside = tmp_path / "artefact", tmp_path / "outside"
    root.mkdir(), outside.mkdir()
    (outside / "secret.json").write_text("{}")
    (root / "own.json").write_text("{}")
    file = root / ("sub/secret.json" if kind == "folder link" else "a.json")
    OTHER_KINDS[kind](file, outside)
    with pytest.raises((InputError, FileNotFoundError), match=re.escape(file.name)):
        read_json(file, root)
    assert_refused(re.escape(str(file.parent if kind == "folder link" else file)), copy_folder, root, tmp_path / "copy")
    assert not (tmp_path / "copy").exists()
    assert read_json(root / "own.json", root) == {}


@pytest.mark.parametrize("part", ["", "new", "old"])
def test_a_folder_is_not_written_through_a_link_beside_it(tmp_path, part):
    outside, scratch = tmp_path / "outside", tmp_path / ".a.saving" / part
    outside.mkdir()
    (outside / "mine.txt").write_text("mine")
    scratch.parent.mkdir(exist_ok=True)
    scratch.symlink_to(outside)
    with pytest.raises(InputError, match=r"\.a\.saving"), replaced_folder(tmp_path / "a") as new:
        (new / "b.txt").write_text("b")
    assert recovered_folder(tmp_path / "a").exists() is False
    assert [path.name for path in outside.iterdir()] == ["mine.txt"]


def test_new_files_can_be_read_by_others_as_the_umask_says(tmp_path):
    with replaced_folder(tmp_path / "made") as scratch:
        (scratch / "a").write_text("whole")
        (scratch / "a").chmod(0o600)
    plain = tmp_path / "plain"
    plain.write_text("")
    assert (tmp_path / "made" / "a").stat().st_mode == plain.stat().st_mode


def test_a_table_that_cannot_be_written_names_its_file():
    for name in ("x.csv", "x.parquet"):  # polars names no file, or the scratch file
        with pytest.raises(OSError, match="No such file") as raised:
            write_table(pl.DataFrame({"a": [1]}), Path("/proc", name))
        assert raised.value.filename == f"/proc/{name}"
