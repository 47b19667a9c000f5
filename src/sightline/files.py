"""Files and folders that are there complete or not at all, survive a power cut, and are never reached through links.

Everything Sightline keeps is written by :func:`replaced` or :func:`replaced_folder`. What it reads of an artefact of
unknown origin goes through :func:`regular_file`: links that leave the artefact, pipes and devices are refused.
"""

import ctypes
import errno
import hashlib
import json
import os
import re
import shutil
import sqlite3
import stat
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from sightline.errors import InputError

CACHE_VARIABLE = "SIGHTLINE_CACHE"
T = TypeVar("T")
FAILING = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO}
SQLITE_FAILING = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR}
MANY = 100  # files from which on one call for the file system is quicker than one for each, by far
LARGEST_JSON = 64 << 20  # bytes
LARGEST_TOML = 1 << 20
AT_WORKING_FOLDER, EXCHANGE = -100, 2  # of Linux's renameat2
# Windows has none of these; what it opens, it opens as text unless O_BINARY is there.
UNFOLLOWED = sum(getattr(os, flag, 0) for flag in ("O_CLOEXEC", "O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))


@contextmanager
def named_failures(target: Path) -> Iterator[None]:
    """Errors of a disk, and of libraries that name no file or a scratch file, with the name of what is written."""
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
        if getattr(error, "sqlite_errorcode", 0) & 0xFF in SQLITE_FAILING:
            return errno.ENOSPC
        if found := re.search(r"(?:os error|\[Errno) (\d+)", str(error)):  # Rust's libraries; shutil's, of several files
            is_nameless = isinstance(error, OSError) and error.filename is None
            return int(found[1]) if is_nameless or int(found[1]) in FAILING else None
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
    scratch.unlink(missing_ok=True)  # of a process that was killed, or a link left there
    try:
        with named_failures(file):
            yield scratch
            sync(scratch)
            scratch.replace(file)
            sync(file.parent)
    finally:
        scratch.unlink(missing_ok=True)


def check_file(file: Path) -> None:
    """Raise the OSError that writing this file would raise: to be called before long work."""
    file.parent.mkdir(parents=True, exist_ok=True)
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        scratch.touch()
        scratch.unlink()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(file)) from error


def write_text(file: Path, text: str) -> None:
    """Write the text in UTF-8; the file is there complete, or as it was."""
    with replaced(file) as scratch:
        scratch.write_text(text, encoding="utf-8")


def sync(path: Path) -> None:
    """Have the disk hold a file's content, or a folder's names."""
    if os.name == "nt":  # which opens no folder, and syncs what is open for writing
        if path.is_file():
            with path.open("r+b") as opened:
                os.fsync(opened)
        return
    _call_with(path, os.fsync)


def _call_with(path: Path, function: Callable[[int], T]) -> T:
    """What a function returns of a file or folder that is open for it."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return function(descriptor)
    finally:
        os.close(descriptor)


def c_function(name: str) -> Any:
    """A function of the C library that not every system has; None where it is missing."""
    try:
        return getattr(ctypes.CDLL(None), name)
    except (AttributeError, TypeError):  # TypeError: on Windows
        return None


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
    if links := [str(path) for path in (scratch, new, old) if path.is_symlink()]:
        raise InputError(f"{links[0]}: a link, where {folder.name} is to be written first; remove it")
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
    renameat2 = c_function("renameat2")
    if renameat2 and not renameat2(AT_WORKING_FOLDER, os.fsencode(new), AT_WORKING_FOLDER, os.fsencode(folder), EXCHANGE):
        return
    shutil.rmtree(old, ignore_errors=True)  # another system, or a file system that cannot exchange
    folder.rename(old)
    new.rename(folder)


def sync_tree(folder: Path) -> None:
    """Have the disk hold all of a folder, whose files get the rights that new files of this process have."""
    rights = stat.S_IMODE(folder.stat().st_mode) & 0o666  # libraries write weights for their owner alone
    paths = [*sorted(folder.rglob("*"), reverse=True), folder]  # what is in a folder before the folder
    for path in paths:
        if path.is_file():
            path.chmod(rights)
    sync_file_system = c_function("syncfs") if len(paths) >= MANY else None
    if sync_file_system is None or _call_with(folder, sync_file_system) != 0:
        for path in paths:
            sync(path)


@contextmanager
def locked(file: Path, *, wait: bool = True) -> Iterator[bool]:
    """True inside a block that no other process is in; the lock ends with the process, however that ends.

    Args:
        file: made if missing, with its folder, and never changed; a link is refused.
        wait: for a process that holds it; otherwise the block is given False.
    """
    with ExitStack() as opened:
        yield _lock(file, wait, opened)


def _lock(file: Path, wait: bool, held: ExitStack) -> bool:
    """Lock a file until the stack is closed; False if another process has it and is not to be waited for."""
    # Never a file whose mere existence is the lock: that would outlive a process that is killed.
    lock = FileLock(file, timeout=-1 if wait else 0, thread_local=False, fallback_to_soft=False)
    while True:
        file.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError, Timeout):  # its last holder removed it, or its folder, at this moment
            if os.path.lexists(file):
                own_file(file)
            held.enter_context(lock.acquire())
            return True
        if not wait and file.exists():
            return False


def open_own(file: Path) -> int:
    """A descriptor of a regular file for reading and writing, made if missing; nothing is followed or changed."""
    try:
        descriptor = open_unfollowed(file, os.O_RDWR | os.O_CREAT)
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            return descriptor
        os.close(descriptor)
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise
    raise InputError(f"{file}: not a regular file")


def open_unfollowed(file: Path | str, flags: int) -> int:
    """A descriptor of a file; a link is not followed, and a pipe is not waited for."""
    return os.open(file, flags | UNFOLLOWED, 0o644)


def regular_file(file: Path, root: Path) -> Path:
    """``file``, if it is a regular file that lies below ``root`` once links are followed; refused otherwise.

    A missing file raises ``FileNotFoundError``.
    """
    found = Path(os.path.realpath(file))  # unlike Path.resolve also where links go in a circle
    if not found.is_relative_to(os.path.realpath(root)):
        raise InputError(f"{file}: a link that leaves {root}; it is not followed")
    if not stat.S_ISREG(found.lstat().st_mode):
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
        if stat.S_IFMT(path.lstat().st_mode) not in (stat.S_IFDIR, stat.S_IFREG):
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
    if root is not None:
        regular_file(file, root)
    return _parsed(file, "JSON", LARGEST_JSON, json.loads)


def _parsed(file: Path, kind: str, largest: int, parse: Callable[[str], T]) -> T:
    if (n_bytes := file.stat().st_size) > largest:
        raise InputError(f"{file}: {n_bytes} bytes of {kind}; at most {largest} are read")
    try:
        return parse(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
        raise InputError(f"{file}: not {kind}: {error}") from error


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
        return _parsed(regular_file(file, Path("/")), "TOML", LARGEST_TOML, tomllib.loads)
    except OSError as error:
        raise InputError(f"{file}: {str(error.strerror).lower()}") from error


def file_hash(file: Path) -> str:
    """A hash of a file's bytes."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "blake2b").hexdigest()[:32]


def folder_bytes(folder: Path) -> int:
    """What the files of a folder and of those below it take; files deleted while it counts are left out."""
    n_bytes = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):
            n_bytes += file.lstat().st_size if file.is_file() else 0
    return n_bytes


def cache_root() -> Path:
    """Where what can be made again is kept: ``$SIGHTLINE_CACHE``, or else below the user's folder for caches."""
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sightline"
    return Path(os.environ.get(CACHE_VARIABLE) or user)
