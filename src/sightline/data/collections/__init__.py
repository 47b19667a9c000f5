"""Sets of images that anyone can have in a minute, from packages: fetched, checked and written with a manifest."""

from pathlib import Path
from typing import Protocol

from sightline.data.collections.emoji import write_emoji
from sightline.data.collections.fashion_mnist import write_fashion_mnist
from sightline.data.collections.logos import write_logos
from sightline.data.collections.openclipart import write_openclipart


class WriteCollection(Protocol):
    """Writes a collection below a folder and returns its manifest's path."""

    def __call__(self, folder: Path, show_progress: bool = False, archives: Path | None = None) -> Path:
        """Args: the folder to make, whether to draw bars, a folder of archives fetched before (None fetches them)."""
        ...


COLLECTIONS: dict[str, WriteCollection] = {
    "emoji": write_emoji,
    "fashion-mnist": write_fashion_mnist,
    "logos": write_logos,
    "openclipart": write_openclipart,
}

__all__ = ["COLLECTIONS", "WriteCollection"]
