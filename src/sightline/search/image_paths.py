"""Where the image of an item lies: how a gallery notes it, and how it is found again after a move."""

from collections.abc import Mapping
from pathlib import Path

from sightline.search.items import Value

BESIDE = "../"


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
        return (root / path.removeprefix(BESIDE)).resolve()
    return (folder / path if isinstance(folder, Path) else Path(path)).resolve()
