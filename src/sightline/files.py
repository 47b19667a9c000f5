"""Files and folders that are there complete or not at all, survive a power cut, and are never reached through links.

Everything Sightline keeps is written by :func:`replaced` or :func:`replaced_folder`. What it reads of an artefact that may
come from somebody else goes through :func:`regular_file`: links that leave the artefact, pipes and devices are refused.
"""

import ctypes
import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import stat
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sightline.errors import InputError

FAILING = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
MANY = 100  # files from which on one call for the file system is quicker than one for each, by far
LARGEST_JSON = 64 << 20  # bytes
LARGEST_TOML = 1 << 20
AT_WORKING_FOLDER, EXCHANGE = -100, 2  # of Linux's renameat2


@contextmanager
def named_failures(target: Path) -> Iterator[None]:
    """Errors of a disk that is full or fails, which name no file or a scratch file, with the name of what is written."""
    try:
        yield
    except Exception as error:
        reason = _failure(error)
        if reason is None:
            raise
        raise OSError(reason, os.strerror(reason), str(target)) from error


def _failure(error: BaseException | None) -> int | None:
    """The number of the disk's error behind an exception, whatever a library made of it; None if it is another."""
    met: set[int] = set()
    while error is not None and id(error) not in met:  # an error raised in a block can be its own cause's context
        met.add(id(error))
        if isinstance(error, OSError) and error.errno in FAILING:
            return error.errno
        if found := re.search(r"(?:os error|\[Errno) (\d+)", str(error)):  # Rust's libraries; shutil's, of several files
            return int(found[1]) if int(found[1]) in FAILING else None
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def replaced(file: Path) -> Iterator[Path]:
    """A scratch path beside ``file`` that takes its place, once on disk, when the block ends without an error.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp(), "a.txt")
        >>> with replaced(file) as scratch:
        ...     _ = scratch.write_text("whole")
        >>> file.read_text()
        'whole'
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    scratch.unlink(missing_ok=True)  # of a process that was killed, or a link that somebody left there
    try:
        with named_failures(file):
            yield scratch
            sync(scratch)
            scratch.replace(file)
            sync(file.parent)
    finally:
        scratch.unlink(missing_ok=True)


def sync(path: Path) -> None:
    """Have the disk hold a file's content, or a folder's names."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def check_folder(folder: Path, mark: str | None, what: str) -> None:
    """Refuse a folder that :func:`replaced_folder` would refuse: to be called before minutes of work."""
    if mark is not None and (folder / mark).is_file():
        return
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        found = "is not empty" if mark is None else f"is not {what}"
        raise InputError(f"{folder}: exists and {found}; it is left as it is")


@contextmanager
def replaced_folder(folder: Path, mark: str | None = None, what: str = "") -> Iterator[Path]:
    """An empty folder beside ``folder`` that takes its place, once on disk, when the block ends without an error.

    The exchange is one step where the system can do that, as Linux can; elsewhere a process that is killed between two
    steps leaves the old folder for :func:`recovered_folder`. Two processes that write the same folder take turns.

    Args:
        folder: replaced if it holds the file ``mark``; refused if it holds anything else.
        mark: the file by which such a folder is known; None where nothing may be replaced.
        what: the kind of thing, for the message.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp(), "new")
        >>> with replaced_folder(folder) as scratch:
        ...     _ = (scratch / "a.txt").write_text("whole")
        >>> [file.name for file in folder.iterdir()]
        ['a.txt']
    """
    check_folder(folder, mark, what)
    folder = folder.resolve() if folder.is_symlink() else folder  # the operator's link stays
    folder.parent.mkdir(parents=True, exist_ok=True)
    scratch = _saving(folder)
    new, old = scratch / "new", scratch / "old"
    for path in (scratch, new, old):
        if path.is_symlink():
            raise InputError(f"{path}: a link, where {folder.name} is to be written first; remove it")
    with named_failures(folder), locked(scratch / "lock"):
        try:
            _recover(folder, old)
            check_folder(folder, mark, what)  # another process may have been faster
            shutil.rmtree(new, ignore_errors=True)  # of a save that was killed
            new.mkdir()
            yield new
            sync_tree(new)
            _exchange(new, folder, old)
            sync(folder.parent)
        finally:
            _recover(folder, old)
            shutil.rmtree(scratch)


def recovered_folder(folder: Path) -> Path:
    """The folder, put back first if a process was killed while it replaced it; to be called by what opens one."""
    old = _saving(folder) / "old"
    if old.is_dir() and not old.is_symlink() and not old.parent.is_symlink() and not folder.exists():
        with locked(_saving(folder) / "lock"):
            _recover(folder, old)
    return folder


def _saving(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.saving")


def _recover(folder: Path, old: Path) -> None:
    if old.is_dir() and not folder.exists():
        old.rename(folder)


def _exchange(new: Path, folder: Path, old: Path) -> None:
    """Put ``new`` in the place of ``folder``, which is then found at ``new`` or ``old``, if it was there."""
    if not folder.exists():
        new.rename(folder)
        return
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    paths = os.fsencode(new), os.fsencode(folder)
    if renameat2 and renameat2(AT_WORKING_FOLDER, paths[0], AT_WORKING_FOLDER, paths[1], EXCHANGE) == 0:
        return
    shutil.rmtree(old, ignore_errors=True)  # another system, or a file system that cannot exchange
    folder.rename(old)
    new.rename(folder)


def sync_tree(folder: Path) -> None:
    """Have the disk hold all of a folder, whose files get the rights that new files of this process have."""
    rights = stat.S_IMODE(folder.stat().st_mode) & 0o666  # libraries write weights for their owner alone
    paths = []
    for above, _, files in os.walk(folder, topdown=False):
        for name in files:
            Path(above, name).chmod(rights)
            paths.append(Path(above, name))
        paths.append(Path(above))
    if len(paths) < MANY or not _sync_file_system(folder):
        for path in paths:
            sync(path)


def _sync_file_system(folder: Path) -> bool:
    """Have the disk hold all that was written to its file system; False where the system has no such call."""
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return syncfs is not None and syncfs(descriptor) == 0
    finally:
        os.close(descriptor)


@contextmanager
def locked(file: Path, *, wait: bool = True) -> Iterator[bool]:
    """True inside a block that no other process is in; the lock ends with the process, however that ends.

    Args:
        file: made if it is not there, with its folder, and never changed; a link is refused.
        wait: for a process that holds it; otherwise the block is given False.
    """
    descriptor = _lock_descriptor(file, wait)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _lock_descriptor(file: Path, wait: bool) -> int | None:
    """An open file that this process alone has locked; None if another has and is not to be waited for."""
    while True:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            descriptor = _open_own(file)
        except FileNotFoundError:  # its folder was removed meanwhile
            continue
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _is_at(descriptor, file):  # and was not removed by who held it before
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        os.close(descriptor)


def _open_own(file: Path) -> int:
    """A descriptor of a regular file for reading and writing, made if it is not there; nothing is followed or changed."""
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise InputError(f"{file}: not a regular file") from error
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"{file}: not a regular file")
    return descriptor


def _is_at(descriptor: int, file: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), file.stat())
    except FileNotFoundError:
        return False


def regular_file(file: Path, root: Path) -> Path:
    """``file``, if it is a regular file that lies below ``root`` once links are followed; refused otherwise.

    A missing file raises ``FileNotFoundError``.
    """
    try:
        found = file.resolve()
        is_inside = found.is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # links in a circle
        is_inside = False
    if not is_inside:
        raise InputError(f"{file}: a link that leaves {root}; it is not followed")
    if not stat.S_ISREG(found.stat().st_mode):
        raise InputError(f"{file}: not a regular file")
    return file


def own_file(file: Path) -> Path:
    """``file``, if it is a regular file by itself; a link is refused wherever it leads, and so is anything else.

    A missing file raises ``FileNotFoundError``.
    """
    kind = file.lstat().st_mode
    if not stat.S_ISREG(kind):
        raise InputError(f"{file}: {'a link; it is not followed' if stat.S_ISLNK(kind) else 'not a regular file'}")
    return file


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder of regular files and folders; links, pipes and devices are refused before anything is written."""
    found = sorted(source.rglob("*"))
    for path in (source, *found):
        kind = path.lstat().st_mode
        if not stat.S_ISDIR(kind) and not stat.S_ISREG(kind):
            raise InputError(f"{path}: neither a file nor a folder of its own; it is not copied")
    target.mkdir(parents=True, exist_ok=True)
    for path in found:
        if path.is_dir():
            (target / path.relative_to(source)).mkdir(exist_ok=True)
        else:
            shutil.copyfile(path, target / path.relative_to(source), follow_symlinks=False)


def read_json(file: Path, root: Path | None = None) -> Any:
    """What a JSON file holds; refused if it is damaged, too large, or reached by a link out of ``root``.

    Args:
        file: up to 64 MB of UTF-8.
        root: the artefact it belongs to; None for a file that the user named, which may be a link.
    """
    try:
        if root is not None:
            regular_file(file, root)
        if (n_bytes := file.stat().st_size) > LARGEST_JSON:
            raise InputError(f"{file}: {n_bytes} bytes of JSON; at most {LARGEST_JSON} are read")
        return json.loads(file.read_text(encoding="utf-8"))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: not JSON: {error}") from error


def read_json_object(file: Path, root: Path | None = None) -> dict[str, Any]:
    """What a JSON file holds, which must be an object; see :func:`read_json`."""
    found = read_json(file, root)
    if not isinstance(found, dict):
        raise InputError(f"{file}: must hold a JSON object, found {type(found).__name__}")
    return found


def sealed(described: dict[str, Any], *files: Path) -> dict[str, Any]:
    """The same values and ``checksum``, a hash of them and of the files that belong to them; see :func:`check_seal`."""
    digest = hashlib.sha256(json.dumps(described, sort_keys=True).encode())
    for file in files:
        digest.update(file.read_bytes())
    return {**described, "checksum": digest.hexdigest()[:32]}


def check_seal(described: dict[str, Any], where: Path, *files: Path) -> dict[str, Any]:
    """The values without their checksum; refused if they or the files are no longer what :func:`sealed` was given.

    Values without a checksum pass: they were written before there was one.
    """
    plain = {key: value for key, value in described.items() if key != "checksum"}
    if "checksum" in described and sealed(plain, *files)["checksum"] != described["checksum"]:
        raise InputError(f"{where}: damaged: the checksum of it and what belongs to it is wrong")
    return plain


def read_toml(file: Path) -> dict[str, Any]:
    """What a TOML file that the user named holds; refused if it is damaged, too large, or no regular file.

    Args:
        file: up to 1 MB of UTF-8; may be a link.
    """
    try:
        found = file.stat()
        if not stat.S_ISREG(found.st_mode):
            raise InputError(f"{file}: not a regular file")
        if found.st_size > LARGEST_TOML:
            raise InputError(f"{file}: {found.st_size} bytes of TOML; at most {LARGEST_TOML} are read")
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{file}: no such file") from error
    except OSError as error:
        raise InputError(f"{file}: cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, RecursionError) as error:
        raise InputError(f"{file}: not TOML: {error}") from error


def folder_bytes(folder: Path) -> int:
    """What the files of a folder and of those below it take; files that go meanwhile do not count."""
    n_bytes = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):
            n_bytes += file.lstat().st_size if file.is_file() else 0
    return n_bytes
