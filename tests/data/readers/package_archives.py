"""Tiny packages in the layout of the real ones, written by the tests."""

import base64
import hashlib
import io
import tarfile
from pathlib import Path

from PIL import Image

from sightline.data.readers.archives import NpmPackage


def write_npm(folder: Path, name: str, files: dict[str, bytes], version: str = "1.0.0") -> NpmPackage:
    """An archive as ``npm pack`` names and lays it out, and the package whose checksum it has."""
    package = NpmPackage(name, version, "", "CC0-1.0")
    file = folder / package.archive_name()
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w:gz") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(f"package/{path}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    digest = hashlib.sha512(file.read_bytes()).digest()
    return NpmPackage(name, version, base64.b64encode(digest).decode(), "CC0-1.0")


def png(colour: tuple[int, ...], side: int = 8, mode: str = "RGBA") -> bytes:
    """A square of one colour."""
    written = io.BytesIO()
    Image.new(mode, (side, side), colour).save(written, "png")
    return written.getvalue()


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
