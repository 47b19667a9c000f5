"""Sets of images that anyone can have in a minute, from packages: fetched, checked and written with a manifest."""

from pathlib import Path
from typing import Protocol

from sightline.data.collections.emoji import write_emoji


class WriteCollection(Protocol):
    """Writes a collection below a folder and returns its manifest's path."""

    def __call__(self, folder: Path, show_progress: bool = False, archives: Path | None = None) -> Path:
        """Args: the folder to make, whether to draw bars, a folder of archives fetched before (None fetches them)."""
        ...


COLLECTIONS: dict[str, WriteCollection] = {"emoji": write_emoji}

__all__ = ["COLLECTIONS", "WriteCollection"]
