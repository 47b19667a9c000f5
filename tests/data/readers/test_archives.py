import bz2
import gzip
import io
import lzma
import tarfile
import zipfile

import pytest

from sightline.data.readers import archives
from sightline.data.readers.archives import unpack
from sightline.errors import InputError


def tar_of(*members: tuple[tarfile.TarInfo, bytes], kind: int = tarfile.GNU_FORMAT) -> bytes:
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=kind) as tar:
        for member, data in members:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return content.getvalue()


def named(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", **more) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, link
    for key, value in more.items():
        setattr(member, key, value)
    return member


def complaint(archive, folder) -> str:
    with pytest.raises(InputError) as caught:
        unpack(archive, folder)
    assert str(caught.value).startswith(f"{archive}: cannot be unpacked: ")
    return str(caught.value)


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setattr(archives, "SPARE", 1 << 20)


PACKERS = {"tar": bytes, "tgz": gzip.compress, "tar.xz": lzma.compress, "tar.bz2": bz2.compress}


@pytest.mark.parametrize("suffix", PACKERS)
def test_tar_files_however_they_are_packed(tmp_path, suffix):
    archive = tmp_path / f"a.{suffix}"
    archive.write_bytes(
        PACKERS[suffix](tar_of((named("b", tarfile.DIRTYPE, mode=0o755), b""), (named("b/c.txt"), b"whole")))
    )
    unpack(archive, tmp_path / "out")
    assert (tmp_path / "out" / "b" / "c.txt").read_bytes() == b"whole"


@pytest.mark.parametrize("suffix", ["tgz", "tar.xz", "tar.bz2"])
def test_a_small_tar_file_of_many_bytes_is_refused(tmp_path, small, suffix):
    archive = tmp_path / f"a.{suffix}"
    archive.write_bytes(PACKERS[suffix](tar_of((named("zeros"), b"\0" * (40 << 20)))))
    assert archive.stat().st_size < 100_000
    assert "bytes come out of it" in complaint(archive, tmp_path / "out")
    assert sum(file.stat().st_size for file in (tmp_path / "out").rglob("*")) < 10 << 20


def test_a_header_of_many_bytes_is_refused(tmp_path, small):
    """tarfile reads a member's further headers into memory, whatever their size."""
    member = named("a.txt", pax_headers={"comment": "a" * (40 << 20)})
    archive = tmp_path / "a.tgz"
    archive.write_bytes(gzip.compress(tar_of((member, b"whole"), kind=tarfile.PAX_FORMAT)))
    assert "bytes come out of it" in complaint(archive, tmp_path / "out")


def test_a_small_zip_file_of_many_bytes_is_refused(tmp_path, small):
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zipped:
        for number in range(4):
            zipped.writestr(f"{number}", b"\0" * (10 << 20))
    assert "bytes come out of it" in complaint(archive, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_pipes_devices_and_hard_links_are_left_out(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    kinds = (tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE)
    members = [(named(f"odd{number}", kind), b"") for number, kind in enumerate(kinds)]
    members += [(named("a.txt"), b"whole"), (named("hard", tarfile.LNKTYPE, "a.txt"), b"")]
    members += [(named("soft", tarfile.SYMTYPE, "a.txt"), b"")]
    (tmp_path / "a.tar").write_bytes(tar_of(*members))
    unpack(tmp_path / "a.tar", tmp_path / "out")
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["a.txt", "soft"]


@pytest.mark.parametrize(
    "member", [named("../out.txt"), named("soft", tarfile.SYMTYPE, "/etc/passwd"), named("s", tarfile.SYMTYPE, "../../x")]
)
def test_what_leads_out_of_the_folder_is_refused(tmp_path, member):
    (tmp_path / "a.tar").write_bytes(tar_of((member, b"")))
    complaint(tmp_path / "a.tar", tmp_path / "out")
    assert not (tmp_path / "out.txt").exists()


def test_names_that_no_file_can_have_are_refused(tmp_path):
    (tmp_path / "a.tar").write_bytes(tar_of((named("a" * 5000), b"")))
    complaint(tmp_path / "a.tar", tmp_path / "out")
    (tmp_path / "b.tar").write_bytes(tar_of((named("a"), b"file"), (named("a/b"), b"below it")))
    complaint(tmp_path / "b.tar", tmp_path / "out")


@pytest.mark.parametrize("name", ["a.zip", "a.tgz"])
@pytest.mark.parametrize("content", [b"", b"no archive", b"PK\5\6" + b"\0" * 18, b"\x1f\x8b\x08"])
def test_what_is_no_archive_is_refused(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    if name == "a.zip" and content.startswith(b"PK"):
        unpack(tmp_path / name, tmp_path / "out")  # an empty one
    else:
        complaint(tmp_path / name, tmp_path / "out")


def test_an_encrypted_zip_file_is_refused(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        zipped.writestr("a.txt", "whole")
    content = bytearray((tmp_path / "a.zip").read_bytes())
    for start in (content.index(b"PK\3\4") + 6, content.index(b"PK\1\2") + 8):
        content[start] |= 1
    (tmp_path / "a.zip").write_bytes(content)
    assert "encrypted" in complaint(tmp_path / "a.zip", tmp_path / "out")
