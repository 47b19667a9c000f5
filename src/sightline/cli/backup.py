"""``sightline index backup`` and ``sightline index restore``."""

from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.printing import echo


def backup(
    gallery: Annotated[Path, typer.Argument(help="Gallery folder; it may be served and written to meanwhile.")],
    copy: Annotated[Path, typer.Argument(help="Folder for the copy; must not exist.")],
) -> None:
    """Copy a gallery as it is at one moment, with its encoder, rejector and uploaded images."""
    from sightline.gallery.backup import backup_gallery

    echo(f"{copy}: {backup_gallery(gallery, copy)} items")


def restore(
    copy: Annotated[Path, typer.Argument(help="Written by `sightline index backup`.")],
    gallery: Annotated[Path, typer.Argument(help="Gallery folder that is replaced, or made; it may be served meanwhile.")],
) -> None:
    """Put a copy in the place of a gallery; what was written since the copy is lost."""
    from sightline.gallery.backup import restore_gallery

    echo(f"{gallery}: {restore_gallery(copy, gallery)} items")
