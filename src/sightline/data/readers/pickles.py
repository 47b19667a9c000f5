"""Pickles that came from elsewhere: numbers and text out of them, and nothing run on the way.

A pickle is a program that calls what it names. Here it may name numpy's arrays and little else, and nothing is called:
arrays are made from checked bytes by this module. What comes out is no larger than a small multiple of the file.
"""

import pickle
from io import BytesIO
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from sightline.errors import InputError

GROWTH = 8  # bytes and values that may come out of each byte: text that a pickle uses again takes 2 bytes in the file
SPARE = 1 << 16
DEEPEST = 64  # containers in containers
ARRAYS = {"_reconstruct", "dtype", "ndarray", "scalar", "_frombuffer"}
NUMBERS = {f"{kind}{n_bytes}" for kind in "iu" for n_bytes in (1, 2, 4, 8)} | {"b1", "f2", "f4", "f8"}
ORDERS = ("<", ">", "|", "=")
CALLING = {"INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER"}


class _Made:
    """What a pickle names, the arguments it would call that with, and the state it would give the outcome."""

    def __init__(self, name: str, arguments: Any = None) -> None:
        self.name, self.arguments, self.state = name, arguments, cast(Any, None)


class _Plain(pickle._Unpickler):
    """Collects numbers, text, containers and what arrays are made of; calls nothing.

    The unpickler written in Python: its memo is a dictionary, where the one in C takes as much memory as a file asks for.
    """

    dispatch: ClassVar[dict[int, Any]] = {
        code: load
        for code, load in pickle._Unpickler.dispatch.items()
        if code not in {getattr(pickle, name)[0] for name in CALLING}
    }
    stack: list[Any]

    def __init__(self, data: bytes) -> None:
        super().__init__(BytesIO(data), encoding="bytes")
        self.n_encoded, self.most = 0, len(data)

    def find_class(self, module: str, name: str) -> Any:
        known = module.replace("__builtin__", "builtins").replace("numpy.core", "numpy._core")  # Python 2, numpy 1
        is_array = known.split(".")[0] == "numpy" and name in ARRAYS
        if is_array or (known, name) in (("builtins", "bytes"), ("_codecs", "encode")):
            return _Made(name)
        raise pickle.UnpicklingError(f"it would run {module}.{name}, which is not plain data")

    def _reduce(self) -> None:
        arguments, called = self.stack.pop(), self.stack.pop()
        if called.name == "bytes" and arguments == ():
            self.stack.append(b"")
        elif called.name == "encode":  # how Python 3 writes bytes for Python 2
            text, encoding = arguments
            self.n_encoded += len(text)
            if encoding != "latin1" or self.n_encoded > self.most:
                raise pickle.UnpicklingError("bytes in another encoding than latin1, or more than the file has")
            self.stack.append(text.encode("latin1"))
        elif isinstance(arguments, tuple):
            self.stack.append(_Made(called.name, arguments))
        else:
            raise pickle.UnpicklingError(f"a {type(arguments).__name__} of arguments")

    def _build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], _Made) or not isinstance(state, tuple):
            raise pickle.UnpicklingError(f"a state for a {type(self.stack[-1]).__name__}")
        self.stack[-1].state = state

    def _set_items(self, items: list[Any]) -> None:
        if not all(isinstance(key, str | bytes) for key in items[::2]):  # numbers can be chosen so that all collide
            raise pickle.UnpicklingError("a key that is not text")
        self.stack[-1].update(zip(items[::2], items[1::2], strict=True))

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set_items([key, value])

    def _dict(self) -> None:
        items = self.pop_mark()  # type: ignore[attr-defined]
        self.stack.append({})
        self._set_items(items)

    def _bytearray(self) -> None:
        n_bytes = int.from_bytes(self.read(8), "little")  # type: ignore[attr-defined]
        self.stack.append(self.read(n_bytes))  # type: ignore[attr-defined]

    dispatch |= {
        pickle.REDUCE[0]: _reduce,
        pickle.BUILD[0]: _build,
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: lambda self: self._set_items(self.pop_mark()),
        pickle.DICT[0]: _dict,
        pickle.BYTEARRAY8[0]: _bytearray,
    }


class _Checked:
    """Counts what comes out of a pickle, and makes its arrays."""

    def __init__(self, most: int) -> None:
        self.left = most

    def value(self, found: Any, depth: int = 0) -> Any:
        """The same with arrays in place of what they are made of; refused if it is too deep or too large."""
        if depth > DEEPEST:
            raise pickle.UnpicklingError(f"more than {DEEPEST} containers in each other")
        self._count(1 + (len(found) if isinstance(found, str | bytes) else 0))
        if isinstance(found, dict):
            return {key: self.value(entry, depth + 1) for key, entry in found.items()}
        if isinstance(found, list):
            return [self.value(entry, depth + 1) for entry in found]
        if isinstance(found, tuple):
            return tuple(self.value(entry, depth + 1) for entry in found)
        if isinstance(found, _Made):
            return self._array(found)
        if found is not None and not isinstance(found, int | float | str | bytes):
            raise pickle.UnpicklingError(f"a {type(found).__name__}, which is not plain data")
        if isinstance(found, int) and found.bit_length() > 64:
            raise pickle.UnpicklingError("a number of more than 64 bits")
        return found

    def _count(self, n: int) -> None:
        self.left -= n
        if self.left < 0:
            raise pickle.UnpicklingError("far more comes out of it than it has bytes: it repeats or contains itself")

    def _array(self, made: _Made) -> Any:
        if made.name == "_reconstruct" and made.state is not None:
            _, shape, kind, fortran, data = made.state
        elif made.name == "_frombuffer":
            data, kind, shape, order = made.arguments
            fortran = order in ("F", b"F")
        elif made.name == "scalar":
            (kind, data), shape, fortran = made.arguments, (), False
        else:
            raise pickle.UnpicklingError(f"a numpy {made.name} alone, which is not plain data")
        if not isinstance(data, bytes):
            raise pickle.UnpicklingError("an array of objects, not of numbers")
        self._count(len(data))
        values: NDArray[Any] = np.frombuffer(data, _dtype(kind))
        if not all(type(side) is int and side >= 0 for side in shape):
            raise pickle.UnpicklingError("an array whose sides are no numbers")
        values = values.reshape(shape, order="F" if fortran else "C")
        return values[()] if made.name == "scalar" else values


def _dtype(made: Any) -> np.dtype[Any]:
    """The kind of number that a pickle asks for; refused if it is none."""
    name, order = made.arguments[0], "|" if made.state is None else made.state[1]
    name, order = (word.decode() if isinstance(word, bytes) else word for word in (name, order))
    if made.name != "dtype" or name not in NUMBERS or order not in ORDERS:
        raise pickle.UnpicklingError(f"an array of {str(name)[:20]!r}, not of numbers")
    return np.dtype(order + name)


def read_pickle(data: bytes, file: Path) -> Any:
    """What was pickled; text of Python 2 comes as bytes. Refused if it is broken or holds more than data.

    Numbers, text, lists, tuples, dictionaries with text as keys, and arrays of numbers.

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
        return _Checked(GROWTH * len(data) + SPARE).value(_Plain(data).load())
    except Exception as error:  # on broken bytes the unpickler raises anything
        raise InputError(f"{file}: not a readable pickle: {str(error) or type(error).__name__}") from error


def as_text(value: Any) -> Any:
    """The same containers with text in place of bytes."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return {as_text(key): as_text(entry) for key, entry in value.items()}
    return [as_text(entry) for entry in value] if isinstance(value, list | tuple) else value
