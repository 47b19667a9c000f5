"""Tiny packages in the layout of the real ones, written by the tests."""

import base64
import hashlib
import io
import json
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sightline.data.readers.archives import DebianPackage, NpmPackage

needs_dpkg = pytest.mark.skipif(not Path("/usr/bin/dpkg-deb").exists(), reason="needs dpkg-deb")


def write_npm(folder: Path, name: str, files: dict[str, bytes], version: str = "1.0.0") -> NpmPackage:
    """An archive as ``npm pack`` names and lays it out, and the package whose checksum it has."""
    file = folder / NpmPackage(name, version, "", "").archive_name()
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w:gz") as archive:
        for path, content in files.items():
            member = tarfile.TarInfo(f"package/{path}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return NpmPackage(name, version, base64.b64encode(hashlib.sha512(file.read_bytes()).digest()).decode(), "CC0-1.0")


def write_iconify(folder: Path, collections: dict[str, tuple[str, str, dict[str, str]]]) -> NpmPackage:
    """Iconify's package below a folder, of collections by prefix: licence, group, and the SVG body of each icon."""
    infos = {
        prefix: {"name": prefix.upper(), "author": {"name": "Ann"}, "license": {"spdx": licence}, "category": group}
        for prefix, (licence, group, _) in collections.items()
    }
    files = {"collections.json": json.dumps(infos).encode()}
    for prefix, (_, _, icons) in collections.items():
        drawn = {name: {"body": body} for name, body in icons.items()}
        listed = {"prefix": prefix, "icons": drawn, "width": 24, "height": 24, "categories": {"Buildings": ["home"]}}
        files[f"json/{prefix}.json"] = json.dumps(listed).encode()
    return write_npm(folder / "npm", "@iconify/json", files)


def random_blocks(rng: np.random.Generator) -> str:
    """The SVG body of a drawing unlike any other."""
    cells = zip(*np.nonzero(rng.random((6, 6)) < 0.5), strict=True)
    return "".join(f'<path d="M{4 * x} {4 * y}h4v4h-4z"/>' for x, y in cells)


def write_deb(folder: Path, package: DebianPackage, files: dict[str, bytes], links=(), packed: str = "none") -> Path:
    """A package built by dpkg-deb with the files, by their path below its root; the folder its archive is in."""
    tree, debs = folder / "tree", folder / "debs"
    root = tree / package.root.lstrip("/")
    control = f"Package: {package.name}\nVersion: 1-2\nArchitecture: all\nMaintainer: N <n@example.org>\nDescription: x\n"
    for path, content in {
        tree / "DEBIAN/control": control.encode(),
        **{root / path: files[path] for path in files},
    }.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for path, target in links:
        (root / path).symlink_to(target)
    debs.mkdir()
    command = ["dpkg-deb", f"-Z{packed}", "--root-owner-group", "--build", tree, debs / f"{package.name}_1-2_all.deb"]
    subprocess.run(command, check=True, capture_output=True)
    return debs


def png(colour: tuple[int, ...], side: int = 8, mode: str = "RGBA") -> bytes:
    """A square of one colour."""
    written = io.BytesIO()
    Image.new(mode, (side, side), colour).save(written, "png")
    return written.getvalue()


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, hidden ones too."""
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}
