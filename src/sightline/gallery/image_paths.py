"""Where the image of an item lies, and which source it came from: how a gallery notes both, and finds them after a move."""

import os
from collections.abc import Mapping
from pathlib import Path

from sightline.errors import InputError
from sightline.gallery.items import Value

BESIDE = "../"
ROOT, PREFIX, HASH = "file_root", "file_prefix", "file_hash"  # metadata of items that came from a folder or a manifest


def stored_path(folder: Path | str, file: Path) -> str:
    """What a gallery notes of an image: its path from the gallery if it lies beside it, otherwise its full path.

    So a gallery and its images can be moved together. Images inside the gallery's own folder keep their full path: those
    noted by a path inside it were uploaded, and are removed with their item.

    Args:
        folder: the gallery's, resolved, or an address of Milvus, which lies beside nothing.
        file: the image, resolved.

    Example:
        >>> stored_path(Path("/data/gallery"), Path("/data/images/a.png"))
        '../images/a.png'
        >>> stored_path(Path("/data/gallery"), Path("/elsewhere/a.png"))
        '/elsewhere/a.png'
    """
    if not isinstance(folder, Path) or folder.parent == Path(folder.anchor):  # below / is everything
        return str(file)
    is_beside = file.is_relative_to(folder.parent) and not file.is_relative_to(folder)
    return BESIDE + file.relative_to(folder.parent).as_posix() if is_beside else str(file)


def image_path(folder: Path | str, metadata: Mapping[str, Value], root: Path | None = None) -> Path | None:
    """The full path of an item's image, whether it is there or not; None where the metadata says nothing.

    Args:
        folder: the gallery's, or an address of Milvus.
        metadata: the item's.
        root: where to look for images that lay beside the gallery, in place of the folder that it lies in now.

    Example:
        >>> image_path(Path("/data/gallery"), {"path": "../images/a.png"}, root=Path("/new")).as_posix()
        '/new/images/a.png'
    """
    path = metadata.get("path")
    if not isinstance(path, str) or not path:
        return None
    if root is not None and path.startswith(BESIDE):
        return _real(root / path.removeprefix(BESIDE))
    return _real(folder / path if isinstance(folder, Path) else Path(path))


def _real(file: Path) -> Path:
    """The path without links; unlike ``Path.resolve`` also where links go in a circle."""
    return Path(os.path.realpath(file))


def noted_root(id_: str, metadata: Mapping[str, Value]) -> str | None:
    """The root of the source that an item came from, as a gallery notes it; None for what was uploaded or added in Python.

    Galleries of earlier versions note no root: there it is what stands before the id in the path, if the path ends in it.

    Example:
        >>> noted_root("2023/a.png", {"path": "../photos/2023/a.png", "file_hash": "00ff"})
        '../photos'
    """
    root, path = metadata.get(ROOT), metadata.get("path")
    if isinstance(root, str):
        return root
    is_old = metadata.get(HASH) is not None and isinstance(path, str) and path.endswith(f"/{id_}")
    return str(path)[: -len(id_) - 1] or "/" if is_old else None


class Source:
    """Tells the items of one source, a folder or a manifest's folder, from all others in a gallery.

    Args:
        folder: the gallery's, or an address of Milvus.
        root: the source's.
        moved_from: where it was before, if it was moved without the gallery; refused if there is still something.
    """

    def __init__(self, folder: Path | str, root: Path, moved_from: Path | None = None) -> None:
        self.folder = folder
        if moved_from is not None and moved_from.exists():
            raise InputError(f"--moved-from {moved_from}: is still there, so {root} is another folder; use --prefix")
        self.roots = [path.resolve() for path in (root, moved_from) if path is not None]
        resolved = folder.resolve() if isinstance(folder, Path) else folder
        self.all_noted = [stored_path(resolved, path) for path in self.roots]
        self.noted = self.all_noted[0]
        self._found: dict[str, Path] = {}

    def path_of(self, noted: str) -> Path:
        """The full path of a root as a gallery notes it."""
        if noted not in self._found:  # millions of items share a root
            self._found[noted] = image_path(self.folder, {"path": noted}) or Path(noted)
        return self._found[noted]

    def is_root(self, noted: str) -> bool:
        """Whether a root as a gallery notes it is this source's."""
        return noted == self.noted or self.path_of(noted) in self.roots

    def has(self, id_: str, metadata: Mapping[str, Value]) -> bool:
        """Whether an item came from this source."""
        noted = noted_root(id_, metadata)
        if noted is not None:
            return self.is_root(noted)
        if metadata.get(HASH) is None:  # uploaded, or added in Python
            return False
        file = image_path(self.folder, metadata)
        return file is not None and any(file.is_relative_to(root) for root in self.roots)

    def origin(self, id_: str, metadata: Mapping[str, Value]) -> Path | None:
        """The root of an item, or the folder of its image where that is all that is known; None where nothing is."""
        noted = noted_root(id_, metadata)
        if noted is not None:
            return self.path_of(noted)
        file = image_path(self.folder, metadata) if metadata.get(HASH) is not None else None
        return None if file is None else file.parent
