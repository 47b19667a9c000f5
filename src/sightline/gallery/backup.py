"""Copies of a gallery, made and put back while others read and write it."""

import shutil
from contextlib import suppress
from pathlib import Path

from sightline.errors import InputError
from sightline.files import copy_folder, own_file, recovered_folder, replaced_folder
from sightline.gallery.gallery import IMAGES, own_folder
from sightline.gallery.local import LocalGallery
from sightline.gallery.store import DATABASE


def backup_gallery(folder: Path, copy: Path) -> int:
    """Copy a gallery as it is at one moment: items, vectors, encoder, rejector, and the images that were uploaded to it.

    Images that lie elsewhere are not copied, nor is the index, which :func:`restore_gallery` builds anew.

    Args:
        folder: the gallery, which may be served meanwhile.
        copy: a folder that does not exist, or is empty; it appears complete or not at all.

    Returns:
        The number of items copied.
    """
    if copy.exists() and (not copy.is_dir() or any(copy.iterdir())):
        raise InputError(f"{copy}: exists and is not empty; it is left as it is")
    if not (recovered_folder(folder) / DATABASE).is_file():
        raise InputError(f"{folder}: not a gallery: it has no {DATABASE}")
    if copy.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{copy}: lies inside the gallery, and would be lost with it; a folder elsewhere is needed")
    with replaced_folder(copy, DATABASE, "a gallery") as scratch:
        # Before the items and after them: an item's file is there before the item, and goes after it.
        early = scratch.with_name(IMAGES)
        _copy_images(folder, early)
        with LocalGallery.connect(str(folder), read_only=True) as gallery:
            gallery.backup(scratch)
        if early.is_dir():
            early.rename(scratch / IMAGES)
        _copy_images(folder, scratch / IMAGES)
        with LocalGallery.connect(str(scratch), read_only=True) as copied:
            return len(copied)


def restore_gallery(copy: Path, folder: Path) -> int:
    """Put a backup in the place of a gallery, or where none is; a service over it goes on with the restored one.

    What was written to the gallery since the backup is lost.

    Args:
        copy: written by :func:`backup_gallery`; it stays as it is.
        folder: a gallery, which is replaced, or nothing.

    Returns:
        The number of items restored.
    """
    if not (recovered_folder(copy) / DATABASE).is_file():
        raise InputError(f"{copy}: not a gallery: it has no {DATABASE}")
    if copy.resolve() == folder.resolve():
        raise InputError(f"{copy}: a gallery cannot be restored from itself")
    if copy.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"{copy}: lies inside {folder}, and would be lost when that is replaced; move it elsewhere first")
    with replaced_folder(folder, DATABASE, "a gallery") as scratch:
        with LocalGallery.connect(str(copy), read_only=True) as gallery:
            if faults := gallery.verify():
                raise InputError(f"{copy}: is damaged, nothing was restored: {'; '.join(faults[:3])}")
            gallery.backup(scratch)
        if (images := own_folder(copy, IMAGES)) is not None:
            copy_folder(images, scratch / IMAGES)
        with LocalGallery.connect(str(scratch)) as restored:
            restored.build_index()
            return len(restored)


def _copy_images(folder: Path, to: Path) -> None:
    """Copy uploaded images that are not there yet; files appear whole under a name that is never used again."""
    images = own_folder(folder, IMAGES)
    if images is None:
        return
    to.mkdir(exist_ok=True)
    for file in images.iterdir():
        if not file.name.startswith(".") and not (to / file.name).exists():
            with suppress(FileNotFoundError):  # its item was removed meanwhile
                shutil.copyfile(own_file(file), to / file.name, follow_symlinks=False)
