"""A full disk: the message is true, nothing is lost, and reading still works."""

import errno
import os
import resource
import shutil
import subprocess
import sys
from contextlib import contextmanager

import numpy as np
import pytest
from drawn import draw

from refusals import assert_refused
from sightline.errors import InputError
from sightline.gallery import ingest
from sightline.gallery.gallery import EncoderIdentity, Gallery
from sightline.gallery.index import read_header
from sightline.gallery.local import backup_gallery, restore_gallery

IDENTITY = EncoderIdentity("f", 64, "by hand")


@contextmanager
def files_of_at_most(n_bytes):
    """A limit on the size of files, as a full disk has one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def fill(folder, n_items=300, **options):
    with Gallery.create(folder, IDENTITY, **options) as gallery:
        gallery.add([f"item {n}" for n in range(n_items)], draw(n_items, dim=64))
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


def test_a_run_that_finds_the_disk_full_says_how_far_it_came(encoder, tmp_path, image_tree, monkeypatch):
    monkeypatch.setattr(ingest, "CHUNK", 12)
    upsert, limits = Gallery.upsert, iter([resource.RLIM_INFINITY, resource.RLIM_INFINITY, 20_000])

    def third_time_full(*args):
        with files_of_at_most(next(limits)):
            return upsert(*args)

    with Gallery.create(tmp_path / "g", encoder) as gallery:
        with monkeypatch.context() as patched:
            patched.setattr(Gallery, "upsert", third_time_full)
            assert_refused([str(tmp_path / "g"), "disk full", "24 items", "continues"], gallery.add_images, image_tree)
        assert (len(gallery), gallery.verify()) == (24, [])
        assert str(gallery.add_images(str(image_tree))) == "48 added, 24 unchanged"


def test_a_disk_that_fills_up_is_one_error_and_nothing_is_lost(tmp_path):
    with Gallery.open(fill(tmp_path / "gallery")) as gallery:
        ids = gallery.ids()
        many = [f"new {n}" for n in range(20_000)], draw(20_000, dim=64)
        with files_of_at_most(1_500_000):
            for write in (gallery.add, gallery.upsert):
                assert_refused(r"/gallery: .*disk full", write, *many)
            assert gallery.search(many[1][:2])[1].shape == (2, 10)
            gallery.add(["small"], draw(1, dim=64))
        gallery.add(["later"], draw(1, 1, dim=64))
    with Gallery.open(gallery.folder) as again:
        assert (again.verify(), again.ids()) == ([], [*ids, "small", "later"])
        units = draw(300, dim=64) / np.linalg.norm(draw(300, dim=64), axis=1, keepdims=True)
        np.testing.assert_allclose(again.vectors(ids), units, atol=1e-6)


@pytest.mark.parametrize("index", ["Flat", "IVF16,SQ8"])
def test_a_disk_that_fills_up_while_an_index_is_written_leaves_the_one_before(tmp_path, index):
    queries = draw(3, 1, dim=64)
    with Gallery.open(fill(tmp_path / "gallery", index=index)) as gallery:
        before, found = gallery.build_index(recall=1.0), gallery.search(queries)[1].tolist()
        with files_of_at_most(10_000), pytest.raises(InputError, match=r"gallery: .*File too large.*disk full"):
            gallery.build_index()
        assert read_header(gallery.folder) == before
        assert not list(gallery.folder.glob(".*"))
    with Gallery.open(gallery.folder) as again:
        assert (again.search(queries)[1].tolist(), again.verify(), again.repairs) == (found, [], [])
    (gallery.folder / before.file).write_bytes(b"damaged")
    with Gallery.open(gallery.folder) as again, files_of_at_most(10_000):
        assert again.search(queries)[1].shape == (3, 10)
        assert [before.file in repair and "brute force" in repair for repair in again.repairs] == [True]


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
for folder in sys.argv[1:]:
    with Gallery.open(folder, read_only=True) as gallery:
        found = gallery.search(np.eye(64)[:1].astype(np.float32), 1)[1]
        print(found.shape, gallery.verify(), len(gallery.metadata(gallery.ids())))
"""


def test_who_may_write_no_file_reads(tmp_path):
    folders = [fill(tmp_path / name) for name in ("whole", "without a table")]
    next(folders[1].glob("vectors-*")).unlink()
    done = subprocess.run([sys.executable, "-c", READING, *folders], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, 2 * "(1, 1) [] 300\n"), done.stderr


def test_a_gallery_on_a_full_or_read_only_disk_is_searched(sightline, check_refused, small_disk, tmp_path):
    folder, copy = small_disk / "gallery", fill(tmp_path / "copy", 6000)
    status, _, err = sightline("index", "restore", copy, folder)
    assert (status, str(folder) in err, str(copy) in err, [*small_disk.iterdir()]) == (2, True, False, [])
    fill(folder)
    removing, reading = ["index", "remove", folder, "item 4"], [["index", "stats", folder], ["index", "verify", folder]]
    expected = sightline("search", "item 3", "--gallery", folder)
    for n_bytes in (20_480, 0):
        free = os.statvfs(small_disk)
        (small_disk / "filling").write_bytes(b"x" * (free.f_bavail * free.f_frsize - n_bytes))
        assert sightline("search", "item 3", "--gallery", folder) == expected
        assert [sightline(*words)[0] for words in reading] == [0, 0]
        check_refused(removing, folder, "disk full")
        (small_disk / "filling").unlink()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    assert sightline("search", "item 3", "--gallery", folder) == expected
    assert sightline(*reading[1])[0] == 0
    subprocess.run(["mount", "-o", "remount,rw", small_disk], check=True)
    assert sightline(*removing)[0] == 0
