"""MATLAB files of version 5 to 7, read here: a file that nests cells deep enough crashes scipy's reader."""

import zlib
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.errors import InputError, names

LARGEST = 2 << 30  # bytes of a file, and of what comes out of its compressed parts
DEEPEST = 32  # cells and structures in each other
MATRIX, COMPRESSED = 14, 15
STORED = {
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "f4",
    9: "f8",
    12: "i8",
    13: "u8",
}  # how numbers lie there
TEXT = {1: "latin-1", 2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
CELL, STRUCTURE, CHARACTERS = 1, 2, 4
NUMBERS = {6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8", 15: "u8"}
COMPLEX = 0x800


def read_matlab(file: Path, *variables: str) -> dict[str, NDArray[Any]]:
    """These variables of a .mat file as arrays; refused if it is broken or lacks one.

    Numbers come as arrays, text as an array with a string for each row, cells as arrays of objects, structures as arrays
    with a field of objects for each of theirs. Others are not read.
    """
    try:
        if (n_bytes := file.stat().st_size) > LARGEST:
            raise ValueError(f"{n_bytes} bytes, more than {LARGEST}")
        data = file.read_bytes()
        if len(data) < 128 or data[126:128] not in (b"IM", b"MI"):
            raise ValueError("it has no header of version 5 to 7")
        reader = _Reader("<" if data[126:128] == b"IM" else ">")
        there = dict(reader.variables(memoryview(data)[128:]))
        found = {name: reader.array(there[name]) for name in variables if name in there}
    except (ValueError, zlib.error) as error:
        raise InputError(f"{file}: not a readable MATLAB file: {error}") from error
    if missing := [name for name in variables if name not in found]:
        raise InputError(f"{file}: no variable {names(missing)}; it has {names(sorted(there))}")
    return found


class _Reader:
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
                _, _, name, _ = self._start(content)
                yield name, content

    def array(self, content: memoryview, depth: int = 0) -> NDArray[Any]:
        """The content of a matrix as an array."""
        if depth > DEEPEST:
            raise ValueError(f"more than {DEEPEST} cells in each other")
        if not len(content):
            return np.empty((0, 0))
        flags, shape, _, parts = self._start(content)
        kind = flags & 0xFF
        if kind == CELL:
            cells = [self.array(inner, depth + 1) for _, inner in parts]
            return _objects(cells, shape)
        if kind == STRUCTURE:
            return self._structure(list(parts), shape, depth)
        stored, values = next(parts, (0, memoryview(b"")))
        if kind == CHARACTERS:
            return self._text(stored, bytes(values), shape)
        if kind not in NUMBERS or stored not in STORED or flags & COMPLEX:
            raise ValueError(f"a variable of kind {kind}, neither numbers nor text, cells or structures")
        numbers = np.frombuffer(values, self.order + STORED[stored])
        return numbers.astype(NUMBERS[kind]).reshape(shape, order="F")

    def _start(self, content: memoryview) -> tuple[int, tuple[int, ...], str, Iterator[tuple[int, memoryview]]]:
        """Flags, shape and name of a matrix, and the elements that follow."""
        parts = self._elements(content)
        first = [inner for _, inner in (next(parts, (0, None)) for _ in range(3)) if inner is not None]
        if len(first) < 3 or len(first[0]) != 8:
            raise ValueError("a variable without flags, size and name")
        flags = np.frombuffer(first[0], self.order + "u4")
        shape = tuple(np.frombuffer(first[1], self.order + "i4").tolist())
        if not 2 <= len(shape) <= 8 or min(shape) < 0:
            raise ValueError(f"a variable of size {shape[:9]}")
        return int(flags[0]), shape, bytes(first[2]).decode("latin-1"), parts

    def _structure(self, parts: list[tuple[int, memoryview]], shape: tuple[int, ...], depth: int) -> NDArray[Any]:
        if len(parts) < 2 or len(parts[0][1]) != 4:
            raise ValueError("a structure without names of fields")
        width = int(np.frombuffer(parts[0][1], self.order + "i4")[0])
        text = bytes(parts[1][1])
        fields = [text[at : at + width].split(b"\0")[0].decode("latin-1") for at in range(0, len(text), max(width, 1))]
        values = [self.array(inner, depth + 1) for _, inner in parts[2:]]
        if not fields or len(set(fields)) < len(fields) or "" in fields:
            raise ValueError("a structure without names of fields")
        columns = [_objects(values[place :: len(fields)], shape) for place in range(len(fields))]
        found = np.empty(shape, [(name, object) for name in fields])
        for name, column in zip(fields, columns, strict=True):
            found[name] = column
        return found

    def _text(self, stored: int, data: bytes, shape: tuple[int, ...]) -> NDArray[Any]:
        if stored not in TEXT or len(shape) > 2:
            raise ValueError("text that is stored as no text")
        wide = TEXT[stored].startswith("utf-") and TEXT[stored] != "utf-8"
        letters = data.decode(TEXT[stored] + (("-le" if self.order == "<" else "-be") if wide else ""))
        if len(letters) != prod(shape):
            raise ValueError(f"text of {len(letters)} letters for a size of {shape}")
        return np.array([letters[row :: shape[0]] for row in range(shape[0] if letters else 0)], np.str_)

    def _elements(self, data: memoryview) -> Iterator[tuple[int, memoryview]]:
        """Type and content of each element."""
        at = 0
        while at + 8 <= len(data):
            kind, n_bytes = (int(word) for word in np.frombuffer(data[at : at + 8], self.order + "u4"))
            if kind >> 16:  # up to 4 bytes, in the place of their number
                kind, n_bytes, start, end = kind & 0xFFFF, kind >> 16, at + 4, at + 8
                if n_bytes > 4:
                    raise ValueError(f"a small element of {n_bytes} bytes")
            else:
                start = at + 8
                end = start + n_bytes + (0 if kind == COMPRESSED else -n_bytes % 8)
                if start + n_bytes > len(data):
                    raise ValueError("it is cut off")
            yield kind, data[start : start + n_bytes]
            at = end


def _objects(values: list[NDArray[Any]], shape: tuple[int, ...]) -> NDArray[Any]:
    """The values as an array of objects; refused if there are not as many as its shape says."""
    if len(values) != prod(shape):
        raise ValueError(f"{len(values)} values for a size of {shape}")
    found = np.empty(len(values), object)
    for place, value in enumerate(values):
        found[place] = value
    return found.reshape(shape, order="F")
