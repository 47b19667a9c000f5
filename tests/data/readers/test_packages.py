import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest
from package_archives import contents, write_npm

from sightline.data.readers import archives
from sightline.data.readers.archives import (
    DebianPackage,
    NpmPackage,
    debian_files,
    npm_archives,
    read_archive,
)
from sightline.data.readers.source import write_collection
from sightline.errors import InputError


def test_archives_in_a_folder_are_checked_and_read(tmp_path):
    package = write_npm(tmp_path, "@scope/things", {"a/b.txt": b"one", "c.txt": b"two"})
    with npm_archives([package], tmp_path) as (archive,):
        assert archive.name == "scope-things-1.0.0.tgz"
        assert read_archive(archive, lambda path: path.startswith("a/")) == {"a/b.txt": b"one"}


def test_missing_truncated_and_other_archives_are_named_together(tmp_path):
    packages = [write_npm(tmp_path, name, {"a.txt": os.urandom(5000)}) for name in ("gone", "cut", "other", "good")]
    (tmp_path / "gone-1.0.0.tgz").unlink()
    cut = tmp_path / "cut-1.0.0.tgz"
    cut.write_bytes(cut.read_bytes()[:1000])
    write_npm(tmp_path, "other", {"a.txt": b"changed"})
    with pytest.raises(InputError) as error, npm_archives(packages, tmp_path):
        pass
    lines = str(error.value).splitlines()
    assert lines[0] == f"{tmp_path}: 3 faults"
    assert lines[1] == "  gone-1.0.0.tgz: no such file; `npm pack gone@1.0.0` makes it"
    assert lines[2].startswith("  cut-1.0.0.tgz: 1,000 bytes with another checksum than the published one: cut off")
    assert lines[3].startswith("  other-1.0.0.tgz:")
    assert len(lines) == 4


@pytest.mark.parametrize("content", [b"", b"no archive", "cut"])
def test_an_archive_that_cannot_be_unpacked_is_named(tmp_path, content):
    package = write_npm(tmp_path, "things", {"a.txt": os.urandom(50_000)})
    file = tmp_path / package.archive_name()
    file.write_bytes(file.read_bytes()[:20_000] if content == "cut" else content)
    with pytest.raises(InputError, match=r"things-1.0.0.tgz: cannot be unpacked: .+"):
        read_archive(file, lambda path: True)


def test_without_npm_the_message_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    message = "npm is needed to fetch things@1.0.0 and is not installed; or give a folder with the archive"
    with pytest.raises(InputError, match=message), npm_archives([NpmPackage("things", "1.0.0", "", "")], None):
        pass


@pytest.mark.skipif(not Path("/usr/bin/npm").exists(), reason="needs npm")
def test_without_network_the_message_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setenv("npm_config_fetch_retries", "0")
    monkeypatch.setenv("npm_config_cache", str(tmp_path))
    message = "npm could not fetch things@1.0.0: ECONNREFUSED: .*request to .* failed"
    with pytest.raises(InputError, match=message), npm_archives([NpmPackage("things", "1.0.0", "", "")], None):
        pass


def write_deb(folder, name="things", path="usr/share/things/a.txt", content="one"):
    """A real package, built by dpkg-deb."""
    tree = folder / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    control = (
        f"Package: {name}\nVersion: 2.5-1\nArchitecture: all\nMaintainer: Nobody <nobody@example.org>\nDescription: x\n"
    )
    (tree / "DEBIAN" / "control").write_text(control)
    (tree / path).parent.mkdir(parents=True)
    (tree / path).write_text(content)
    file = folder / "debs" / f"{name}_2.5-1_all.deb"
    file.parent.mkdir()
    subprocess.run(["dpkg-deb", "--root-owner-group", "--build", tree, file], check=True, capture_output=True)
    return file


needs_dpkg = pytest.mark.skipif(not Path("/usr/bin/dpkg-deb").exists(), reason="needs dpkg-deb")
THINGS = DebianPackage("things", "/usr/share/things", "CC0-1.0")


@needs_dpkg
def test_a_debian_archive_is_unpacked_and_removed(tmp_path):
    deb = write_deb(tmp_path)
    with debian_files(THINGS, deb.parent) as (root, version):
        assert (root / "a.txt").read_text() == "one"
        assert version == "2.5-1"
    assert not root.exists()


@needs_dpkg
def test_faults_of_debian_archives_are_named(tmp_path):
    deb = write_deb(tmp_path, path="usr/share/others/a.txt")
    with pytest.raises(InputError, match=r"things_2.5-1_all.deb: has no folder /usr/share/things"):
        debian_files(THINGS, deb.parent).__enter__()
    deb.write_bytes(deb.read_bytes()[:150])
    with pytest.raises(InputError, match=r"things_2.5-1_all.deb: cannot be unpacked: dpkg-deb: error"):
        debian_files(THINGS, deb.parent).__enter__()
    (deb.parent / "things_3_all.deb").touch()
    with pytest.raises(
        InputError, match=r"one things_.*deb is needed; 'things_2.5-1_all.deb', 'things_3_all.deb' are there"
    ):
        debian_files(THINGS, deb.parent).__enter__()
    with pytest.raises(InputError, match=r"one things_.*deb is needed; there is none"):
        debian_files(THINGS, tmp_path).__enter__()


def test_without_apt_the_message_says_so(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match="apt-get is needed to fetch things and is not installed"):
        debian_files(THINGS, None).__enter__()


@pytest.mark.skipif(not Path("/usr/bin/apt-get").exists(), reason="needs apt-get")
def test_what_apt_cannot_find_is_named():
    with pytest.raises(InputError, match="apt-get could not fetch no-such-things: E: Unable to locate package"):
        debian_files(DebianPackage("no-such-things", "/usr/share/no-such-things", ""), None).__enter__()


def test_a_folder_with_something_else_is_refused_and_kept(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(InputError, match="not empty, and not the set with data 'things'"):
        write_collection(tmp_path, {"data": "things"}, lambda draft: pytest.fail("must not begin"))
    assert contents(tmp_path) == {"mine.txt": b"mine"}
    with pytest.raises(InputError, match=r"mine.txt: not empty"):
        write_collection(tmp_path / "mine.txt", {"data": "things"}, lambda draft: pytest.fail("must not begin"))


KILLED = """
import sys, time
from pathlib import Path
from sightline.data.readers import archives
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


@needs_dpkg
def test_a_small_debian_archive_of_many_bytes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "SPARE", 1 << 20)
    deb = write_deb(tmp_path, content="a" * (40 << 20))
    with pytest.raises(InputError, match=r"things_2.5-1_all.deb: cannot be unpacked: more than .* bytes come out of it"):
        debian_files(THINGS, deb.parent).__enter__()
