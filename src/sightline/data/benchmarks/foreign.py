"""MATLAB files and pickles that came from elsewhere: numbers and text out of them, and nothing run on the way."""

import pickle
from io import BytesIO
from pathlib import Path
from typing import Any

from sightline.errors import InputError, names

SAFE = {
    ("builtins", name) for name in ("bytearray", "bytes", "complex", "dict", "float", "int", "list", "set", "str", "tuple")
} | {("_codecs", "encode"), ("collections", "OrderedDict")}
ARRAYS = {"_reconstruct", "dtype", "ndarray", "scalar", "_frombuffer"}


class _Plain(pickle.Unpickler):
    """Makes numbers, text, containers and numpy arrays; any other class or function is refused before it is called."""

    def find_class(self, module: str, name: str) -> Any:
        known = module.replace("__builtin__", "builtins").replace("numpy.core", "numpy._core")  # Python 2, numpy 1
        if (known, name) in SAFE or (known.split(".")[0] == "numpy" and name in ARRAYS):
            return super().find_class(known, name)
        raise pickle.UnpicklingError(f"it would run {module}.{name}, which is not plain data")


def read_pickle(data: bytes, file: Path) -> Any:
    """What was pickled; text of Python 2 comes as bytes. Refused if it is broken or holds more than data.

    Args:
        data: the file's bytes.
        file: its name, for messages.

    Example:
        >>> read_pickle(pickle.dumps({"a": [1, 2]}), Path("a.pkl"))
        {'a': [1, 2]}
        >>> read_pickle(pickle.dumps(print), Path("a.pkl"))
        Traceback (most recent call last):
        sightline.errors.InputError: a.pkl: not a readable pickle: it would run builtins.print, which is not plain data
    """
    try:
        return _Plain(BytesIO(data), encoding="bytes").load()
    except Exception as error:  # on broken bytes the unpickler raises anything
        raise InputError(f"{file}: not a readable pickle: {str(error) or type(error).__name__}") from error


def as_text(value: Any) -> Any:
    """The same containers with text in place of bytes."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return {as_text(key): as_text(entry) for key, entry in value.items()}
    return [as_text(entry) for entry in value] if isinstance(value, list | tuple) else value


def read_matlab(file: Path, *variables: str) -> dict[str, Any]:
    """These variables of a .mat file as arrays; refused if it is broken or lacks one."""
    from scipy.io import loadmat

    try:
        found: dict[str, Any] = loadmat(file)
    except Exception as error:  # on broken bytes the reader raises anything
        raise InputError(f"{file}: not a readable MATLAB file: {str(error) or type(error).__name__}") from error
    if missing := [name for name in variables if name not in found]:
        there = sorted(name for name in found if not name.startswith("__"))
        raise InputError(f"{file}: no variable {names(missing)}; it has {names(there)}")
    return found
