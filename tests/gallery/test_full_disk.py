"""A full disk: the message is true, nothing is lost, and reading still works."""

import errno
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from full_disk import files_of_at_most

from sightline.errors import InputError
from sightline.gallery import ingest
from sightline.gallery.gallery import EncoderIdentity, Gallery
from sightline.gallery.local import backup_gallery, restore_gallery
from sightline.models.encoder import Encoder

IDENTITY = EncoderIdentity("f", 64, "by hand")


def draw(n_rows, seed=0):
    return np.random.default_rng(seed).standard_normal((n_rows, 64)).astype(np.float32)


def fill(folder, n_items=300):
    with Gallery.create(folder, IDENTITY) as gallery:
        gallery.add([f"item {n}" for n in range(n_items)], draw(n_items))
    return folder


@pytest.fixture
def small_disk(tmp_path):
    """A disk of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder]
    if os.geteuid() != 0 or not shutil.which("mount") or subprocess.run(words, capture_output=True).returncode:
        pytest.skip("needs a right to mount")
    yield folder
    subprocess.run(["umount", folder], check=True)


def leave(disk, n_bytes):
    """Fill a disk but for some bytes."""
    free = os.statvfs(disk)
    (disk / "filling").write_bytes(b"x" * (free.f_bavail * free.f_frsize - n_bytes))


def test_a_run_that_finds_the_disk_full_says_how_far_it_came(tmp_path, image_tree, monkeypatch):
    monkeypatch.setattr(ingest, "CHUNK", 12)
    encoder = Encoder.create("tiny", 8, image_size=32)
    upsert, calls = Gallery.upsert, []

    def third_time_full(self, *args, **kwargs):
        calls.append(1)
        with files_of_at_most(20_000) if len(calls) == 3 else files_of_at_most(resource.RLIM_INFINITY):
            return upsert(self, *args, **kwargs)

    monkeypatch.setattr(Gallery, "upsert", third_time_full)
    with Gallery.create(tmp_path / "g", encoder) as gallery:
        with pytest.raises(InputError) as caught:
            gallery.add_images(image_tree)
        assert all(fact in str(caught.value) for fact in (str(tmp_path / "g"), "disk full", "24 items", "continues"))
        assert (len(gallery), gallery.verify()) == (24, [])
        done = gallery.add_images(str(image_tree))
    assert (done.added, done.unchanged) == (48, 24)


def test_backup_and_restore_name_the_folder_that_has_no_room(tmp_path):
    gallery, other = fill(tmp_path / "gallery"), fill(tmp_path / "other", 3)
    backup_gallery(gallery, tmp_path / "copy")
    for limit, act, target in (
        (30_000, lambda: backup_gallery(gallery, tmp_path / "second"), tmp_path / "second"),
        (100_000, lambda: backup_gallery(gallery, tmp_path / "second"), tmp_path / "second"),
        (100_000, lambda: restore_gallery(tmp_path / "copy", other), other),
        (30_000, lambda: Gallery.create(tmp_path / "new", IDENTITY).close(), tmp_path / "new"),
    ):
        with files_of_at_most(limit), pytest.raises(OSError, match=r"No space|too large") as caught:
            act()
        assert (caught.value.errno in (errno.ENOSPC, errno.EFBIG), caught.value.filename) == (True, str(target))
    with Gallery.open(other, read_only=True) as kept:
        assert len(kept) == 3
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".") or path.name in ("second", "new")]


READING = """
import resource, sys
import numpy as np
from sightline.gallery.gallery import Gallery
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))  # SQLite's index of its log has 32768
with Gallery.open(sys.argv[1], read_only=True) as gallery:
    print(gallery.search(np.eye(64)[:1].astype(np.float32), 1)[1], gallery.verify(), len(gallery.metadata(gallery.ids())))
"""


def test_who_may_write_no_file_reads(tmp_path):
    for has_table in (True, False):
        folder = fill(tmp_path / f"gallery {has_table}")
        if not has_table:
            next(folder.glob("vectors-*")).unlink()
        done = subprocess.run([sys.executable, "-c", READING, folder], capture_output=True, text=True, timeout=300)
        assert (done.returncode, done.stdout.endswith(" [] 300\n")) == (0, True), done.stderr


def test_a_gallery_on_a_full_disk_is_searched(sightline, small_disk):
    folder = fill(small_disk / "gallery")
    expected = sightline("search", "item 3", "--gallery", folder)
    for n_bytes in (20_480, 0):
        leave(small_disk, n_bytes)
        assert sightline("search", "item 3", "--gallery", folder) == expected
        for words in (["stats"], ["verify"]):
            assert sightline("index", *words, folder)[0] == 0
        status, _, err = sightline("index", "remove", folder, "item 3")
        assert (status, str(folder) in err, "disk full" in err) == (2, True, True)
        (small_disk / "filling").unlink()
    assert sightline("index", "remove", folder, "item 3")[0] == 0


def test_a_gallery_on_a_read_only_file_system_is_searched(sightline, small_disk):
    folder = fill(small_disk / "gallery")
    expected = sightline("search", "item 3", "--gallery", folder)
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert sightline("search", "item 3", "--gallery", folder) == expected
    assert sightline("index", "verify", folder)[0] == 0


def test_restore_names_the_full_disk_and_not_the_backup(sightline, small_disk, tmp_path):
    copy = fill(tmp_path / "copy", 6000)
    status, _, err = sightline("index", "restore", copy, small_disk / "gallery")
    assert (status, str(small_disk / "gallery") in err, str(copy) in err) == (2, True, False)
    assert not list(Path(small_disk).iterdir())
