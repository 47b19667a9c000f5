"""Archives that came from elsewhere: packages fetched through their own client and checked, archives unpacked with care.

No more than a multiple of an archive's bytes comes out of it, and no pipes or devices.
"""

import base64
import bz2
import gzip
import hashlib
import json
import lzma
import os
import shutil
import subprocess
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, cast

from sightline.errors import InputError, names, raise_faults
from sightline.files import FAILING
from sightline.progress import tracked

GROWTH = 50  # bytes that may come out of each byte: photos give 1, drawings in text about 10, zeros 1,000
SPARE = 64 << 20
BLOCK = 1 << 20
# What broken bytes lead to; ValueError and RuntimeError: a name, a password or a method that cannot be used.
UNPACKING = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError),
    *(ValueError, RuntimeError, OverflowError),
)
MAGIC = {b"\x1f\x8b": gzip.open, b"\xfd7zXZ\0": lzma.open, b"BZh": bz2.open}


class Bounded:
    """A stream that is refused from so many bytes on."""

    def __init__(self, stream: IO[bytes], most: int) -> None:
        self.stream, self.left, self.most = stream, most, most

    def read(self, n: int = -1) -> bytes:
        """The next bytes."""
        found = self.stream.read(self.left + 1 if n < 0 else min(n, self.left + 1))
        self.left -= len(found)
        if self.left < 0:
            raise InputError(f"more than {self.most:,} bytes come out of it")
        return found


def most_unpacked(archive: Path) -> int:
    """How many bytes may come out of an archive."""
    return GROWTH * archive.stat().st_size + SPARE


@contextmanager
def archive_faults(archive: Path) -> Iterator[None]:
    """One error that names the archive, for whatever its bytes lead to; a full disk stays what it is."""
    try:
        yield
    except OSError as error:
        if error.errno in FAILING or (error.errno is not None and not archive.exists()):
            raise
        raise InputError(f"{archive}: cannot be unpacked: {error}") from error
    except UNPACKING as error:
        raise InputError(f"{archive}: cannot be unpacked: {str(error) or type(error).__name__}") from error


@contextmanager
def tar_stream(archive: Path) -> Iterator[Bounded]:
    """The bytes of a tar file, unpacked, whatever packed it."""
    with archive.open("rb") as file:
        start = file.read(6)
        file.seek(0)
        opener = next((opener for magic, opener in MAGIC.items() if start.startswith(magic)), None)
        with opener(file) if opener else file as stream:  # type: ignore[operator]
            yield Bounded(stream, most_unpacked(archive))


def tar_files(stream: Bounded) -> Iterator[tuple[str, IO[bytes]]]:
    """The path of each file of a tar stream, and the file, to be read before the next one."""
    with tarfile.open(fileobj=stream, mode="r|", bufsize=BLOCK) as opened:  # type: ignore[call-overload]
        for member in opened:
            if member.isfile() and (file := opened.extractfile(member)):
                yield member.name, file


def unpack_tar(stream: Bounded, folder: Path) -> None:
    """Write the files, folders and links of a tar stream below a folder; hard links, pipes and devices are left out.

    Names and links that lead out of the folder are refused.
    """
    with tarfile.open(fileobj=stream, mode="r|", bufsize=BLOCK) as opened:  # type: ignore[call-overload]
        for member in opened:
            if member.isfile() or member.isdir() or member.issym():
                opened.extract(member, folder, filter="data")


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
    with archive_faults(archive):
        if archive.suffix != ".zip":
            with tar_stream(archive) as stream:
                unpack_tar(stream, folder)
            return
        with zipfile.ZipFile(archive) as zipped:
            most = most_unpacked(archive)
            if sum(member.file_size for member in zipped.infolist()) > most:
                raise InputError(f"more than {most:,} bytes come out of it")
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
        packages: what is needed.
        archives: a folder that holds all of them under the names that ``npm pack`` gives; None fetches them.
        show_progress: draw a bar.
    """
    with TemporaryDirectory(prefix="sightline-") as scratch:
        if archives is None:
            for package in tracked(packages, "Fetching packages", len(packages), show_progress):
                _npm_pack(package, Path(scratch))
        found = [Path(archives or scratch, package.archive_name()) for package in packages]
        faults = [_fault(file, package) for file, package in zip(found, packages, strict=True)]
        raise_faults(archives or "fetched by npm", [fault for fault in faults if fault])
        yield found


def _npm_pack(package: NpmPackage, folder: Path) -> None:
    wanted = f"{package.name}@{package.version}"
    result = _run(["npm", "pack", wanted, "--json", "--fetch-retry-mintimeout=1000"], folder, f"to fetch {wanted}")
    if result.returncode:
        try:
            error = json.loads(result.stdout)["error"]
            reason = f"{error['code']}: {error['summary']}"
        except (ValueError, KeyError, TypeError):
            reason = _last_line(result.stderr)
        raise InputError(f"npm could not fetch {wanted}: {reason}")


def _fault(file: Path, package: NpmPackage) -> str | None:
    if not file.is_file():
        return f"{file.name}: no such file; `npm pack {package.name}@{package.version}` makes it"
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha512").digest()
    if base64.b64encode(digest).decode() != package.integrity:
        size = f"{file.stat().st_size:,} bytes"
        return f"{file.name}: {size} with another checksum than the published one: cut off, changed, or another version"
    return None


def read_archive(archive: Path, wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """The wanted files of an archive, by their path in it without the first folder."""
    with archive_faults(archive), tar_stream(archive) as stream:
        inside = ((name.partition("/")[2], file) for name, file in tar_files(stream))
        return {path: file.read() for path, file in inside if wanted(path)}


def need_files(archive: Path, found: Container[str], needed: Iterable[str]) -> None:
    """Refuse an archive without some of the files needed; all that are missing are named."""
    raise_faults(archive.name, [f"has no {path}" for path in needed if path not in found])


def read_member(archive: Path, files: dict[str, bytes], path: str) -> object:
    """The content of a JSON file of an archive."""
    need_files(archive, files, [path])
    try:
        return json.loads(files[path])
    except ValueError as error:
        raise InputError(f"{archive.name}: {path} is not JSON: {error}") from error


@contextmanager
def debian_files(package: DebianPackage, archives: Path | None) -> Iterator[tuple[Path, str]]:
    """The folder of a Debian package's files, and its version; fetched by ``apt-get download`` unless it is installed.

    Nothing is installed and no rights are needed; what is fetched is removed when the block ends.

    Args:
        package: what is needed.
        archives: a folder that holds one ``NAME_VERSION_ARCHITECTURE.deb``; None takes the installed files or fetches.
    """
    with TemporaryDirectory(prefix="sightline-") as scratch:
        if archives is None and Path(package.root).is_dir() and shutil.which("dpkg-query"):
            asked = _run(["dpkg-query", "--show", "--showformat=${Version}", package.name], Path(scratch), "")
            if asked.returncode == 0 and asked.stdout:
                yield Path(package.root), asked.stdout
                return
        if archives is None:
            result = _run(["apt-get", "download", package.name], Path(scratch), f"to fetch {package.name}")
            if result.returncode:
                raise InputError(f"apt-get could not fetch {package.name}: {_last_line(result.stderr)}")
        found = sorted(Path(archives or scratch).glob(f"{package.name}_*.deb"))
        if len(found) != 1:
            has = f"{names(file.name for file in found)} are there" if found else "there is none"
            raise InputError(f"{archives or 'fetched by apt-get'}: one {package.name}_*.deb is needed; {has}")
        _unpack_debian(found[0], Path(scratch, "files"))
        root = Path(scratch, "files", package.root.lstrip("/"))
        if not root.is_dir():
            raise InputError(f"{found[0].name}: has no folder {package.root}")
        yield root, found[0].name.split("_")[1]


def _unpack_debian(archive: Path, folder: Path) -> None:
    """Have ``dpkg-deb`` give the package's files as a tar stream, and write that below a folder."""
    _check_installed("dpkg-deb", f"to unpack {archive.name}")
    command = ["dpkg-deb", "--fsys-tarfile", str(archive.resolve())]
    with TemporaryFile() as said, subprocess.Popen(command, stdout=PIPE, stderr=said, env=_in_english()) as process:
        stream = Bounded(cast(IO[bytes], process.stdout), most_unpacked(archive))
        try:
            with archive_faults(archive):
                unpack_tar(stream, folder)
        except InputError:
            cast(IO[bytes], process.stdout).close()
            process.wait()
            said.seek(0)
            reason = said.read().decode(errors="replace").strip()
            if reason and stream.left >= 0:  # else it complains of the pipe
                raise InputError(f"{archive}: cannot be unpacked: {_last_line(reason)}") from None
            raise


def _check_installed(program: str, purpose: str) -> None:
    if not shutil.which(program):
        raise InputError(f"{program} is needed {purpose} and is not installed; or give a folder with the archive")


def _run(command: list[str], folder: Path, purpose: str) -> subprocess.CompletedProcess[str]:
    _check_installed(command[0], purpose)
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace", env=_in_english())


def _in_english() -> dict[str, str]:
    return os.environ | {"LC_ALL": "C"}


def _last_line(text: str) -> str:
    return (text.strip() or "it gave no reason").splitlines()[-1].strip()
