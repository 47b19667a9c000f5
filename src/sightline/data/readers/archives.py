"""Unpack archives that came from elsewhere: no more than a multiple of their bytes, and no pipes or devices."""

import bz2
import gzip
import lzma
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sightline.errors import InputError
from sightline.files import FAILING

GROWTH = 50  # bytes that may come out of each byte: photos give 1, drawings in text about 10, zeros 1,000
SPARE = 64 << 20
BLOCK = 1 << 20
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
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError) as error:
        raise InputError(f"{archive}: cannot be unpacked: {str(error) or type(error).__name__}") from error
    except (ValueError, RuntimeError, OverflowError) as error:  # InputError; a name, a password or a method it cannot use
        raise InputError(f"{archive}: cannot be unpacked: {error}") from error


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
