"""Encoder folders on a Hugging Face hub: ``owner/name``. ``HF_ENDPOINT`` names another hub, ``HF_TOKEN`` who asks."""

import re
from collections.abc import Sequence
from pathlib import Path

from huggingface_hub import HfApi, snapshot_download

from sightline.errors import InputError

NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def is_hub_name(name: Path | str) -> bool:
    """Whether a name could be a hub's: a string ``owner/name``; a ``Path`` never is.

    Example:
        >>> is_hub_name("owner/name"), is_hub_name("./run/encoder"), is_hub_name(Path("owner/name"))
        (True, False, False)
    """
    return isinstance(name, str) and NAME.fullmatch(name) is not None


def download(name: str, files: Sequence[str], revision: str | None = None) -> Path:
    """The folder of a hub's model, downloaded unless it is in the hub's cache.

    Args:
        name: ``owner/name``.
        files: the only ones to fetch.
        revision: a branch, tag or commit; None for ``main``.
    """
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(files)))
    except Exception as error:  # what network libraries raise has no base in common
        at = "" if revision is None else f" at {revision!r}"
        raise InputError(f"{name}: no such folder, and the hub does not give it{at}: {_first_line(error)}") from error


def upload(
    folder: Path, name: str, private: bool | None = None, revision: str | None = None, message: str = "Encoder"
) -> str:
    """Make the hub's model ``owner/name`` if there is none, and put the folder's files there as one commit.

    Args:
        folder: its files go up.
        name: ``owner/name``.
        private: whether a model that is made is; None for the owner's default.
        revision: a branch; made from ``main`` if there is none.
        message: of the commit.

    Returns:
        The commit's address.
    """
    if not is_hub_name(name):
        raise InputError(f"{name!r}: 'owner/name' is needed")
    api = HfApi(library_name="sightline")
    try:
        api.create_repo(name, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(name, branch=revision, exist_ok=True)
        done = api.upload_folder(repo_id=name, folder_path=folder, revision=revision, commit_message=message)
    except Exception as error:
        raise InputError(f"{name}: the hub did not take it: {_first_line(error)}") from error
    return str(done.commit_url)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
