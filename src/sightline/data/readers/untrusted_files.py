"""Pickles and MATLAB files that came from elsewhere: numbers and text out of them, and nothing run on the way.

A pickle is a program that calls what it names. Here it may name numpy's arrays and little else, and nothing is called:
arrays are made from checked bytes by this module. MATLAB files are of version 5 to 7, and read here because a file that
nests cells deep enough crashes scipy's reader. What comes out of a file is bounded.
"""

import pickle
import struct
import zlib
from collections.abc import Callable, Iterator
from io import BytesIO
from math import prod
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
from numpy.typing import NDArray

from sightline.errors import InputError, named_errors, names

GROWTH = 8  # bytes and values that may come out of each byte: text that a pickle uses again takes 2 bytes in the file
SPARE = 1 << 16
DEEPEST = {"pickle": 64, "MATLAB": 32}  # containers in containers
ARRAYS = {"_reconstruct", "dtype", "ndarray", "scalar", "_frombuffer"}
NUMBERS = {f"{kind}{n_bytes}" for kind in "iu" for n_bytes in (1, 2, 4, 8)} | {"b1", "f2", "f4", "f8"}
ORDERS = ("<", ">", "|", "=")
CALLING = {"INST", "OBJ", "NEWOBJ", "NEWOBJ_EX", "EXT1", "EXT2", "EXT4", "PERSID", "BINPERSID", "NEXT_BUFFER"}


class _Made:
    """What a pickle names, the arguments it would call that with, and the state it would give the outcome."""

    def __init__(self, name: str, count: Callable[[int], None], arguments: Any = None) -> None:
        self.name, self.count, self.arguments, self.state = name, count, arguments, cast(Any, None)

    def __call__(self, *arguments: Any) -> Any:
        """What the pickle takes for the outcome of a call."""
        if self.name == "bytes" and not arguments:
            return b""
        if self.name != "encode" or arguments[1] != "latin1":
            return _Made(self.name, self.count, arguments)
        self.count(len(arguments[0]))
        return arguments[0].encode("latin1")  # how Python 3 writes bytes for Python 2

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state


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
        self.left = GROWTH * len(data) + SPARE

    def find_class(self, module: str, name: str) -> Any:
        known = module.replace("__builtin__", "builtins").replace("numpy.core", "numpy._core")  # Python 2, numpy 1
        is_array = known.split(".")[0] == "numpy" and name in ARRAYS
        if is_array or (known, name) in (("builtins", "bytes"), ("_codecs", "encode")):
            return _Made(name, self._count)
        raise pickle.UnpicklingError(f"it would run {module}.{name}, which is not plain data")

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
        pickle.SETITEM[0]: _set_item,
        pickle.SETITEMS[0]: lambda self: self._set_items(self.pop_mark()),
        pickle.DICT[0]: _dict,
        pickle.BYTEARRAY8[0]: _bytearray,
    }

    def _count(self, n: int) -> None:
        self.left -= n
        if self.left < 0:
            raise pickle.UnpicklingError("far more comes out of it than it has bytes: it repeats or contains itself")

    def value(self, found: Any, depth: int = 0) -> Any:
        """The same with arrays in place of what they are made of; refused if it is too deep or too large."""
        if depth > DEEPEST["pickle"]:
            raise pickle.UnpicklingError(f"more than {DEEPEST['pickle']} containers in each other")
        self._count(1 + (len(found) if isinstance(found, str | bytes) else 0))
        if isinstance(found, dict):
            return {key: self.value(entry, depth + 1) for key, entry in found.items()}
        if isinstance(found, list | tuple):
            return type(found)(self.value(entry, depth + 1) for entry in found)
        if isinstance(found, _Made):
            return self._array(found)
        is_long = isinstance(found, int) and found.bit_length() > 64
        if is_long or (found is not None and not isinstance(found, int | float | str | bytes)):
            raise pickle.UnpicklingError(f"a {type(found).__name__} that is not plain data of at most 64 bits")
        return found

    def _array(self, made: _Made) -> Any:
        if made.name == "_reconstruct" and made.state is not None:
            _, shape, kind, is_fortran, data = made.state
        elif made.name == "_frombuffer":
            data, kind, shape, order = made.arguments
            is_fortran = order in ("F", b"F")
        elif made.name == "scalar":
            (kind, data), shape, is_fortran = made.arguments, (), False
        else:
            raise pickle.UnpicklingError(f"a numpy {made.name} alone, which is not plain data")
        if not isinstance(data, bytes) or not all(type(side) is int and side >= 0 for side in shape):
            raise pickle.UnpicklingError("an array not of numbers, or whose sides are no numbers")
        self._count(len(data))
        values = np.frombuffer(data, _dtype(kind)).reshape(shape, order="F" if is_fortran else "C")
        return values[()] if made.name == "scalar" else values


def _dtype(made: _Made) -> np.dtype[Any]:
    """The kind of number that a pickle asks for; refused if it is none."""
    name, order = as_text((made.arguments[0], "|" if made.state is None else made.state[1]))
    if made.name != "dtype" or name not in NUMBERS or order not in ORDERS:
        raise pickle.UnpicklingError(f"an array of {str(name)[:20]!r}, not of numbers")
    return np.dtype(f"{order}{name}")


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
    with named_errors(file, "not a readable pickle", Exception):  # on broken bytes the unpickler raises anything
        unpickler = _Plain(data)
        return unpickler.value(unpickler.load())


def as_text(value: Any) -> Any:
    """The same containers with text in place of bytes."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, dict):
        return {as_text(key): as_text(entry) for key, entry in value.items()}
    return [as_text(entry) for entry in value] if isinstance(value, list | tuple) else value


LARGEST = 2 << 30  # bytes of a MATLAB file, and of what comes out of its compressed parts
MATRIX, COMPRESSED = 14, 15  # elements
CELL, STRUCTURE, CHARACTERS, COMPLEX = 1, 2, 4, 0x800  # matrices
STORED = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}  # by element
MEANT = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}  # by matrix
TEXT = {1: "latin-1", 2: "latin-1", 4: "utf-16-{}", 16: "utf-8", 17: "utf-16-{}", 18: "utf-32-{}"}
Elements = list[tuple[int, memoryview]]


def read_matlab(file: Path, *variables: str) -> dict[str, NDArray[Any]]:
    """These variables of a .mat file as arrays; refused if it is broken or lacks one.

    Numbers come as arrays, text as an array with a string for each row, cells as arrays of objects, structures as arrays
    with a field of objects for each of theirs. Others are not read.
    """
    with named_errors(file, "not a readable MATLAB file", ValueError, struct.error, zlib.error):
        if (n_bytes := file.stat().st_size) > LARGEST:
            raise ValueError(f"{n_bytes} bytes, more than {LARGEST}")
        data = file.read_bytes()
        if data[126:128] not in (b"IM", b"MI"):
            raise ValueError("it has no header of version 5 to 7")
        reader = _Matlab("<" if data[126:128] == b"IM" else ">")
        there = dict(reader.variables(memoryview(data)[128:]))
        found = {name: reader.array(there[name]) for name in variables if name in there}
    if missing := [name for name in variables if name not in found]:
        raise InputError(f"{file}: no variable {names(missing)}; it has {names(sorted(there))}")
    return found


class _Matlab:
    """Reads elements: a type, a number of bytes, and so many bytes."""

    def __init__(self, order: str) -> None:
        self.order = order

    def variables(self, data: memoryview) -> Iterator[tuple[str, memoryview]]:
        """The name and the content of each variable, unpacked."""
        left = LARGEST
        for kind, content in self._elements(data):
            if kind == COMPRESSED:
                unpacked = zlib.decompressobj().decompress(content, left + 1)
                left -= len(unpacked)
                if left < 0:
                    raise ValueError(f"more than {LARGEST} bytes come out of it")
                kind, content = next(self._elements(memoryview(unpacked)), (0, memoryview(b"")))
            if kind == MATRIX:
                yield self._matrix(content)[2], content

    def array(self, content: memoryview, depth: int = 0) -> NDArray[Any]:
        """The content of a matrix as an array."""
        if depth > DEEPEST["MATLAB"]:
            raise ValueError(f"more than {DEEPEST['MATLAB']} cells in each other")
        if not len(content):
            return np.empty((0, 0))
        flags, shape, _, parts = self._matrix(content)
        kind = flags & 0xFF
        if kind == CELL:
            return _objects([self.array(inner, depth + 1) for _, inner in parts], shape)
        if kind == STRUCTURE:
            return self._structure(parts, shape, depth)
        (stored, values), *_ = parts
        if kind == CHARACTERS and stored in TEXT and len(shape) == 2:
            letters = bytes(values).decode(TEXT[stored].format("le" if self.order == "<" else "be"))
            if len(letters) != prod(shape):
                raise ValueError(f"{len(letters)} letters for a size of {shape}")
            return np.array([letters[row :: shape[0]] for row in range(shape[0] if letters else 0)], np.str_)
        if kind not in MEANT or stored not in STORED or flags & COMPLEX:
            raise ValueError(f"a variable of kind {kind}, neither numbers nor text, cells or structures")
        return np.frombuffer(values, self.order + STORED[stored]).astype(MEANT[kind]).reshape(shape, order="F")

    def _matrix(self, content: memoryview) -> tuple[int, tuple[int, ...], str, Elements]:
        """Flags, shape and name of a matrix, and the elements that follow."""
        (_, flags), (_, sides), (_, name), *parts = self._elements(content)
        shape = tuple(np.frombuffer(sides, self.order + "i4").tolist())
        if not 2 <= len(shape) <= 8 or min(shape) < 0:
            raise ValueError(f"a variable of size {shape[:9]}")
        return struct.unpack(self.order + "II", flags)[0], shape, bytes(name).decode("latin-1"), parts

    def _structure(self, parts: Elements, shape: tuple[int, ...], depth: int) -> NDArray[Any]:
        (_, width), (_, joined), *inner = parts
        step = max(struct.unpack(self.order + "i", width)[0], 1)
        padded = [bytes(joined[at : at + step]) for at in range(0, len(joined), step)]
        fields = [name.split(b"\0")[0].decode("latin-1") for name in padded]
        if not fields or not all(fields):
            raise ValueError("a structure without names of fields")
        values = [self.array(content, depth + 1) for _, content in inner]
        columns = [_objects(values[place :: len(fields)], shape) for place in range(len(fields))]
        return np.rec.fromarrays(columns, dtype=[(name, object) for name in fields]).view(np.ndarray)

    def _elements(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Type and content of each element."""
        at = 0
        while at + 8 <= len(data):
            kind, n_bytes = struct.unpack_from(self.order + "II", data, at)
            header = 8
            if kind >> 16:  # up to 4 bytes, in the place of their number
                kind, n_bytes, header = kind & 0xFFFF, kind >> 16, 4
            end = at + header + n_bytes
            if end > len(data) or (header == 4 and n_bytes > 4):
                raise ValueError("it is cut off")
            yield kind, data[at + header : end]
            at = end if kind == COMPRESSED else end + (at - end) % 8


def _objects(values: list[NDArray[Any]], shape: tuple[int, ...]) -> NDArray[Any]:
    """The values as an array of objects; refused if there are not as many as its shape says."""
    return np.fromiter(values, object, len(values)).reshape(shape, order="F")
