"""Archives and packages: fetched, checked, unpacked with care, and written as collections."""

import gzip
import io
import os
import subprocess
import sys
import tarfile
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest
from package_archives import needs_dpkg, write_deb, write_npm

from refusals import assert_refused
from sightline.data.readers import archives
from sightline.data.readers.archives import DebianPackage, NpmPackage, debian_files, npm_archives, unpack
from sightline.data.readers.source import write_collection
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
    return assert_refused([f"{archive}: cannot be unpacked: "], unpack, archive, folder)


def complaint_of(opened, *arguments) -> str:
    with pytest.raises(InputError) as error, opened(*arguments):
        pass
    return str(error.value)


def test_a_small_archive_of_many_bytes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "SPARE", 1 << 20)
    archive, zipped = tmp_path / "a.tgz", tmp_path / "a.zip"
    # tarfile reads a member's further headers into memory, whatever their size.
    header = tar_of((named("a.txt", pax_headers={"comment": "a" * (40 << 20)}), b"whole"), kind=tarfile.PAX_FORMAT)
    for content in (tar_of((named("zeros"), b"\0" * (40 << 20))), header):
        archive.write_bytes(gzip.compress(content))
        assert archive.stat().st_size < 100_000
        assert "bytes come out of it" in complaint(archive, tmp_path / "out")
    assert sum(file.stat().st_size for file in (tmp_path / "out").rglob("*")) < 10 << 20
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as opened:
        for number in range(4):
            opened.writestr(f"{number}", b"\0" * (10 << 20))
    assert "bytes come out of it" in complaint(zipped, tmp_path / "out2")
    assert not (tmp_path / "out2").exists()


def test_pipes_devices_and_hard_links_are_left_out_and_encrypted_files_refused(tmp_path):
    kinds = (tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE)
    members = [(named(f"odd{number}", kind), b"") for number, kind in enumerate(kinds)]
    members += [(named("a.txt"), b"whole"), (named("hard", tarfile.LNKTYPE, "a.txt"), b"")]
    members += [(named("soft", tarfile.SYMTYPE, "a.txt"), b"")]
    (tmp_path / "a.tar").write_bytes(tar_of(*members))
    unpack(tmp_path / "a.tar", tmp_path / "out")
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["a.txt", "soft"]
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as zipped:
        zipped.writestr("a.txt", "whole")
    content = bytearray((tmp_path / "a.zip").read_bytes())
    for start in (content.index(b"PK\3\4") + 6, content.index(b"PK\1\2") + 8):
        content[start] |= 1
    (tmp_path / "a.zip").write_bytes(content)
    assert "encrypted" in complaint(tmp_path / "a.zip", tmp_path / "out")


@pytest.mark.parametrize(
    "members",
    [
        [named("../out.txt")],
        [named("soft", tarfile.SYMTYPE, "/etc/passwd")],
        [named("s", tarfile.SYMTYPE, "../../x")],
        [named("a" * 5000)],  # no file can have this name
        [named("a"), named("a/b")],
    ],
)
def test_names_that_lead_out_of_the_folder_or_nowhere_are_refused(tmp_path, members):
    (tmp_path / "a.tar").write_bytes(tar_of(*((member, b"") for member in members)))
    complaint(tmp_path / "a.tar", tmp_path / "out")
    assert not (tmp_path / "out.txt").exists()


def test_missing_truncated_and_other_archives_are_named_together(tmp_path):
    packages = [write_npm(tmp_path, name, {"a.txt": os.urandom(5000)}) for name in ("gone", "cut", "other", "good")]
    (tmp_path / "gone-1.0.0.tgz").unlink()
    cut = tmp_path / "cut-1.0.0.tgz"
    cut.write_bytes(cut.read_bytes()[:1000])
    write_npm(tmp_path, "other", {"a.txt": b"changed"})
    said = complaint_of(npm_archives, packages, tmp_path)
    assert said.count(".tgz: ") == 3
    facts = (
        str(tmp_path),
        "gone-1.0.0.tgz: no such file",
        "cut-1.0.0.tgz: 1,000 bytes with another checksum",
        "other-1.0.0.tgz",
    )
    assert [fact for fact in facts if fact not in said] == []


def test_without_a_program_its_network_or_the_package_the_message_says_so(monkeypatch, tmp_path):
    npm = (npm_archives, [NpmPackage("things", "1.0.0", "", "")], None)
    if Path("/usr/bin/npm").exists():
        settings = {"registry": "http://127.0.0.1:9", "fetch_retries": "0", "cache": str(tmp_path)}  # nothing listens there
        for name, value in settings.items():
            monkeypatch.setenv(f"npm_config_{name}", value)
        said = complaint_of(*npm)
        assert all(fact in said for fact in ("npm could not fetch things@1.0.0: ", "ECONNREFUSED"))
    unknown = DebianPackage("no-such-things", "/usr/share/no-such-things", "")
    if Path("/usr/bin/apt-get").exists():
        assert "apt-get could not fetch no-such-things: " in complaint_of(debian_files, unknown, None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "npm is not installed" in complaint_of(*npm)
    assert "apt-get is not installed" in complaint_of(debian_files, unknown, None)


THINGS = DebianPackage("things", "/usr/share/things", "CC0-1.0")


@needs_dpkg
def test_a_debian_archive_is_unpacked_and_removed_and_its_faults_are_named(tmp_path):
    debs = write_deb(tmp_path, THINGS, {"a.txt": b"one"})
    with debian_files(THINGS, debs) as (root, version):
        assert (root / "a.txt").read_text() == "one"
        assert version == "1-2"
    assert not root.exists()
    others = DebianPackage("things", "/usr/share/others", "")
    assert "things_1-2_all.deb: has no folder /usr/share/others" in complaint_of(debian_files, others, debs)
    deb = debs / "things_1-2_all.deb"
    deb.write_bytes(deb.read_bytes()[:150])
    assert "things_1-2_all.deb: cannot be unpacked" in complaint_of(debian_files, THINGS, debs)
    (debs / "things_3_all.deb").touch()
    assert "'things_1-2_all.deb', 'things_3_all.deb'" in complaint_of(debian_files, THINGS, debs)
    assert "one things_*.deb, found none" in complaint_of(debian_files, THINGS, tmp_path)


@needs_dpkg
def test_a_small_debian_archive_of_many_bytes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "SPARE", 1 << 20)
    debs = write_deb(tmp_path, THINGS, {"a.txt": b"a" * (40 << 20)}, packed="gzip")
    assert "bytes come out of it" in complaint_of(debian_files, THINGS, debs)


KILLED = """
import sys, time
from pathlib import Path
from sightline.data.readers.source import write_collection
def fill(draft):
    (draft / "a.png").write_text("half")
    print("writing", flush=True)
    sys.stdin.read()
write_collection(Path(sys.argv[1]), {"data": "things"}, fill)
"""


def test_a_process_killed_in_the_middle_leaves_no_folder(tmp_path):
    command = [sys.executable, "-c", KILLED, tmp_path / "set"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"writing\n"
    process.kill()
    process.communicate()
    assert not (tmp_path / "set").exists()
    assert all(part.name.startswith(".set") for part in tmp_path.iterdir())  # hidden: no reader takes it for a set
    write_collection(tmp_path / "set", {"data": "things"}, lambda draft: (pl.DataFrame({"path": ["a"]}), "text"))
    assert [part.name for part in tmp_path.iterdir()] == ["set"]


def test_of_two_that_write_the_same_the_slower_one_takes_what_the_other_wrote(tmp_path):
    begun, go_on = threading.Event(), threading.Event()
    filled = []

    def fill(draft):
        filled.append(draft)
        begun.set()
        assert go_on.wait(120)
        return pl.DataFrame({"path": ["a"]}), "text"

    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(write_collection, tmp_path / "set", {"data": "things"}, fill)]
        assert begun.wait(120)
        both.append(pool.submit(write_collection, tmp_path / "set", {"data": "things"}, fill))
        go_on.set()
        assert [one.result(120) for one in both] == [tmp_path / "set" / "manifest.csv"] * 2
    assert len(filled) == 1
    assert [part.name for part in tmp_path.iterdir()] == ["set"]
