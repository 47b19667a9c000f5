"""Archives that came from elsewhere: packages fetched through their own client and checked, archives unpacked with care.

No more than a multiple of an archive's bytes comes out of it, and no pipes or devices.
"""

import base64
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, cast

from sightline.errors import InputError, named_errors, names, raise_faults
from sightline.files import FAILING
from sightline.progress import tracked

GROWTH = 50  # bytes that may come out of each byte: photos give 1, drawings in text about 10, zeros 1,000
SPARE = 64 << 20
BLOCK = 1 << 20
LONGEST_REASON = 500  # characters of what a client says
# What broken bytes lead to; ValueError and RuntimeError: a name, a password or a method that cannot be used.
UNPACKING = (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError, OverflowError)


class Bounded:
    """What comes out of an archive, refused from so many bytes on."""

    def __init__(self, stream: IO[bytes] | gzip.GzipFile, archive: Path) -> None:
        self.stream, self.left = stream, most_unpacked(archive)

    def read(self, n: int = -1) -> bytes:
        """The next bytes."""
        found = self.stream.read(self.left + 1 if n < 0 else min(n, self.left + 1))
        self.left -= len(found)
        if self.left < 0:
            raise InputError("far more bytes come out of it than it has")
        return found


def most_unpacked(archive: Path) -> int:
    """How many bytes may come out of an archive."""
    return GROWTH * archive.stat().st_size + SPARE


@contextmanager
def archive_faults(archive: Path) -> Iterator[None]:
    """One error that names the archive, for whatever its bytes lead to; a full disk stays what it is."""
    try:
        yield
    except (OSError, *UNPACKING) as error:
        number = error.errno if isinstance(error, OSError) else None
        if number in FAILING or (number is not None and not archive.exists()):
            raise
        raise InputError(f"{archive}: cannot be unpacked: {str(error) or type(error).__name__}") from error


@contextmanager
def open_tar(archive: Path) -> Iterator[tarfile.TarFile]:
    """A tar file, packed by gzip or not, to be read in order; one error that names it for whatever its bytes lead to."""
    with archive_faults(archive), archive.open("rb") as file:
        is_packed = file.peek(2).startswith(b"\x1f\x8b")
        with gzip.open(file) if is_packed else file as stream, _tar_stream(stream, archive) as opened:
            yield opened


def _tar_stream(stream: IO[bytes] | gzip.GzipFile, archive: Path) -> tarfile.TarFile:
    return tarfile.open(fileobj=Bounded(stream, archive), mode="r|", bufsize=BLOCK)  # type: ignore[call-overload, no-any-return]


def _extract(opened: tarfile.TarFile, folder: Path) -> None:
    """Write the files, folders and links of a tar file; hard links, pipes and devices are left out.

    Names and links that lead out of the folder are refused.
    """
    plain = (member for member in opened if member.isfile() or member.isdir() or member.issym())
    opened.extractall(folder, plain, filter="data")


def unpack(archive: Path, folder: Path) -> None:
    """Write what a ``.zip`` or tar file holds below a folder, or one error that names it.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with zipfile.ZipFile(folder / "a.zip", "w") as zipped:
        ...     zipped.writestr("b/c.txt", "whole")
        >>> unpack(folder / "a.zip", folder)
        >>> (folder / "b" / "c.txt").read_text()
        'whole'
    """
    if archive.suffix != ".zip":
        with open_tar(archive) as opened:
            _extract(opened, folder)
        return
    with archive_faults(archive), zipfile.ZipFile(archive) as zipped:
        if sum(member.file_size for member in zipped.infolist()) > most_unpacked(archive):
            raise InputError("far more bytes come out of it than it has")
        zipped.extractall(folder)


@dataclass(frozen=True)
class NpmPackage:
    """One version of a package, and the bytes it must have.

    Attributes:
        name: with its scope, such as ``@iconify-json/logos``.
        version: the one whose bytes are known.
        integrity: base64 of the SHA-512 of its archive, as npm publishes it.
        licence: of what is taken from it, for ``SOURCES.md``.
    """

    name: str
    version: str
    integrity: str
    licence: str

    def __str__(self) -> str:
        return f"{self.name}@{self.version}"

    def archive_name(self) -> str:
        """What ``npm pack`` calls the archive.

        Example:
            >>> NpmPackage("@iconify-json/logos", "1.2.18", "", "CC0-1.0").archive_name()
            'iconify-json-logos-1.2.18.tgz'
        """
        return f"{self.name.removeprefix('@').replace('/', '-')}-{self.version}.tgz"


@dataclass(frozen=True)
class DebianPackage:
    """A package of Debian whose files lie below one folder.

    Attributes:
        name: what ``apt-get`` calls it.
        root: where its files lie once it is installed.
        licence: of what is taken from it, for ``SOURCES.md``.
    """

    name: str
    root: str
    licence: str


@contextmanager
def npm_archives(
    packages: Sequence[NpmPackage], archives: Path | None, show_progress: bool = False
) -> Iterator[list[Path]]:
    """The checked archive of each package, fetched by ``npm pack`` unless a folder of archives is given.

    What is fetched is removed when the block ends.

    Args:
        packages: the ones to fetch.
        archives: a folder that holds all of them under the names that ``npm pack`` gives; None fetches them.
        show_progress: draw a bar.
    """
    with TemporaryDirectory(prefix="sightline-") as scratch:
        if archives is None:
            for package in tracked(packages, "Fetching packages", len(packages), show_progress):
                _fetch(["npm", "pack", "--loglevel=error", "--fetch-retry-mintimeout=1000"], str(package), scratch)
        found = [Path(archives or scratch, package.archive_name()) for package in packages]
        faults = [_fault(file, package) for file, package in zip(found, packages, strict=True)]
        raise_faults(archives or "fetched by npm", [fault for fault in faults if fault])
        yield found


def _fault(file: Path, package: NpmPackage) -> str | None:
    if not file.is_file():
        return f"{file.name}: no such file; `npm pack {package}` makes it"
    content = file.read_bytes()
    if base64.b64encode(hashlib.sha512(content).digest()).decode() == package.integrity:
        return None
    return f"{file.name}: {len(content):,} bytes with another checksum than published: cut off, changed, or another version"


def archive_files(archive: Path, beginning: str = "") -> Iterator[tuple[str, bytes]]:
    """Path, without the first folder, and content of the files whose path begins so, one at a time: all are gigabytes."""
    with open_tar(archive) as opened:
        for member in opened:
            path = member.name.partition("/")[2]
            if member.isfile() and path.startswith(beginning):
                yield path, cast(IO[bytes], opened.extractfile(member)).read()


def need_files(archive: Path, found: Container[str], needed: Iterable[str]) -> None:
    """Refuse an archive without some of the files needed; all that are missing are named."""
    raise_faults(archive.name, [f"has no {path}" for path in needed if path not in found])


def read_member(archive: Path, files: dict[str, bytes], path: str) -> Any:
    """The content of a JSON file of an archive."""
    need_files(archive, files, [path])
    with named_errors(archive.name, f"{path} is not JSON", ValueError):
        return json.loads(files[path])


@contextmanager
def debian_files(package: DebianPackage, archives: Path | None) -> Iterator[tuple[Path, str]]:
    """The folder of a Debian package's files, and its version; fetched by ``apt-get download`` unless it is installed.

    Nothing is installed, which takes no rights; the files are removed when the block ends.

    Args:
        package: the one to fetch.
        archives: a folder that holds one ``NAME_VERSION_ARCHITECTURE.deb``; None takes the installed files or fetches.
    """
    with TemporaryDirectory(prefix="sightline-") as scratch:
        if archives is None and Path(package.root).is_dir() and shutil.which("dpkg-query"):
            query = ["dpkg-query", "--show", "--showformat=${Version}", package.name]
            if version := subprocess.run(query, capture_output=True, text=True).stdout:
                yield Path(package.root), version
                return
        if archives is None:
            _fetch(["apt-get", "download"], package.name, scratch)
        found = sorted(Path(archives or scratch).glob(f"{package.name}_*.deb"))
        if len(found) != 1:
            there = names(file.name for file in found) or "none"
            raise InputError(f"{archives or 'fetched by apt-get'}: must hold one {package.name}_*.deb, found {there}")
        _unpack_debian(found[0], Path(scratch, "files"))
        root = Path(scratch, "files", package.root.lstrip("/"))
        if not root.is_dir():
            raise InputError(f"{found[0].name}: has no folder {package.root}")
        yield root, found[0].name.split("_")[1]


def _unpack_debian(archive: Path, folder: Path) -> None:
    """Have ``dpkg-deb`` give the package's files as a tar stream, and write that below a folder."""
    _need_program("dpkg-deb", f"to unpack {archive.name}")
    command = ["dpkg-deb", "--fsys-tarfile", str(archive.resolve())]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        stream = cast(IO[bytes], process.stdout)
        with archive_faults(archive), _tar_stream(stream, archive) as opened:
            _extract(opened, folder)


def _need_program(program: str, purpose: str) -> None:
    if not shutil.which(program):
        raise InputError(f"{program} is not installed: install it {purpose}, or give a folder with the archive")


def _fetch(command: Sequence[str], package: str, folder: str) -> None:
    """Have a client download a package to a folder."""
    _need_program(command[0], f"to fetch {package}")
    in_english = os.environ | {"LC_ALL": "C"}
    done = subprocess.run([*command, package], cwd=folder, capture_output=True, text=True, errors="replace", env=in_english)
    if done.returncode:
        raise InputError(f"{command[0]} could not fetch {package}: {' '.join(done.stderr.split())[:LONGEST_REASON]}")
