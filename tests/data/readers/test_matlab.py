import struct
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.io import loadmat, savemat

from sightline.data.readers import matlab
from sightline.data.readers.matlab import read_matlab
from sightline.errors import InputError


def element(kind: int, data: bytes) -> bytes:
    return struct.pack("<II", kind, len(data)) + data + b"\0" * (-len(data) % 8)


def matrix(kind: int, body: bytes, shape: tuple = (1, 1), name: bytes = b"") -> bytes:
    start = element(6, struct.pack("<II", kind, 0)) + element(5, struct.pack(f"<{len(shape)}i", *shape))
    return element(14, start + element(1, name) + body)


def written(folder: Path, *elements: bytes) -> Path:
    file = folder / "a.mat"
    file.write_bytes(b"MATLAB 5.0".ljust(124) + struct.pack("<HH", 0x0100, 0x4D49) + b"".join(elements))
    return file


def complaint(file: Path, name: str = "a") -> str:
    with pytest.raises(InputError) as caught:
        read_matlab(file, name)
    assert str(caught.value).startswith(f"{file}: ")
    return str(caught.value)


def same(own, theirs) -> None:
    assert own.shape == theirs.shape
    if own.dtype.names:
        assert own.dtype.names == theirs.dtype.names
        for name in own.dtype.names:
            same(own[name], theirs[name])
    elif own.dtype == object:
        for one, other in zip(own.ravel(), theirs.ravel(), strict=True):
            same(one, other)
    else:
        np.testing.assert_array_equal(own, theirs)


def saved(folder: Path, **options) -> Path:
    cells = np.empty((1, 2), object)
    cells[0, 0], cells[0, 1] = "AM General Hummer SUV 2000", np.arange(3.0)
    notes = np.zeros((1, 2), [("path", object), ("class", object)])
    notes["path"][0] = ["a.jpg", "b.jpg"]
    notes["class"][0] = [np.uint8(1), np.uint8(7)]
    arrays = {
        "doubles": np.arange(6.0).reshape(2, 3),
        "bytes": np.arange(24, dtype=np.uint8).reshape(2, 3, 4),
        "long": np.arange(-3, 3, dtype=np.int64),
        "text": "ab é 漢",
        "rows": np.array(["ab", "cd"]),
        "cells": cells,
        "notes": notes,
        "empty": np.zeros((0, 3)),
    }
    savemat(folder / "a.mat", arrays, **options)
    return folder / "a.mat"


@pytest.mark.parametrize("compressed", [True, False])
def test_what_scipy_writes_comes_back_as_scipy_reads_it(tmp_path, compressed):
    file = saved(tmp_path, do_compression=compressed)
    theirs = {name: value for name, value in loadmat(file).items() if not name.startswith("__")}
    own = read_matlab(file, *theirs)
    assert len(own) == 8
    for name, value in theirs.items():
        same(own[name], value)


def test_a_file_of_the_other_byte_order(tmp_path):
    def big(kind, data):
        return struct.pack(">II", kind, len(data)) + data + b"\0" * (-len(data) % 8)

    start = big(6, struct.pack(">II", 6, 0)) + big(5, struct.pack(">ii", 1, 2)) + big(1, b"a")
    file = tmp_path / "a.mat"
    file.write_bytes(b"MATLAB 5.0".ljust(124) + b"\1\0MI" + big(14, start + big(4, struct.pack(">HH", 1, 300))))
    assert read_matlab(file, "a")["a"].tolist() == [[1.0, 300.0]]


def test_a_variable_that_is_not_there(tmp_path):
    message = complaint(saved(tmp_path), "labels")
    assert "no variable 'labels'" in message
    assert "'doubles'" in message


def test_cells_in_cells_without_end_are_refused(tmp_path):
    """scipy's reader ends here with a segmentation fault."""
    inner = matrix(6, element(9, struct.pack("<d", 1)))
    for _ in range(20_000):
        inner = matrix(1, inner)
    assert "in each other" in complaint(written(tmp_path, matrix(1, inner, name=b"a")))


@pytest.mark.parametrize(
    "variable",
    [
        matrix(1, b"", (1 << 30, 1 << 30), b"a"),
        matrix(1, b"", (-1, 1), b"a"),
        matrix(6, element(9, b"\0" * 8), (1 << 30, 1 << 30), b"a"),
        matrix(6, element(9, b"\0" * 7), (1, 1), b"a"),
        matrix(4, element(4, b"a\0"), (1 << 20, 1 << 20), b"a"),
        matrix(4, element(16, b"\xff"), (1, 1), b"a"),
        matrix(2, element(5, struct.pack("<i", 0)) + element(1, b""), (1 << 30, 1), b"a"),
        matrix(2, element(5, struct.pack("<i", -4)) + element(1, b"abcd"), (1, 1), b"a"),
        matrix(5, b"", (1, 1), b"a"),
        matrix(17, b"", (1, 1), b"a"),
        element(14, b""),
        element(15, b"not compressed"),
        struct.pack("<II", 14, 1 << 31),
    ],
)
def test_sizes_and_kinds_that_do_not_fit_are_refused(tmp_path, variable):
    complaint(written(tmp_path, variable))


@pytest.mark.parametrize("content", [b"", b"MATLAB", b"\x89HDF\r\n\x1a\n" + b"\0" * 200, b"\0" * 4000])
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "a.mat").write_bytes(content)
    assert "not a readable MATLAB file" in complaint(tmp_path / "a.mat")


def test_more_than_is_meant_to_come_out_of_a_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(matlab, "LARGEST", 1 << 20)
    packed = zlib.compress(matrix(9, element(2, b"\0" * (2 << 20)), (1, 2 << 20), b"a"))
    file = written(tmp_path, struct.pack("<II", 15, len(packed)) + packed)
    assert f"more than {1 << 20} bytes come out of it" in complaint(file)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    compressed=st.booleans(),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=20),
)
def test_damaged_bytes_give_arrays_or_a_message(tmp_path, compressed, changes):
    content = bytearray(saved(tmp_path, do_compression=compressed).read_bytes())
    for place, value in changes:
        content[int(place * len(content))] = value
    (tmp_path / "b.mat").write_bytes(content)
    with suppress(InputError):
        assert len(read_matlab(tmp_path / "b.mat", "notes", "cells", "rows", "long")) == 4
