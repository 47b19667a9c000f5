"""Pickles and MATLAB files of any content, and what comes out of the good ones."""

import os
import pickle
import struct
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.io import loadmat, savemat

from refusals import assert_refused
from sightline.data.readers import untrusted_files as matlab
from sightline.data.readers.untrusted_files import as_text, read_matlab, read_pickle
from sightline.errors import InputError

FILE = Path("gnd.pkl")


def complaint(data: bytes) -> str:
    return assert_refused(["gnd.pkl: ", "pickle"], read_pickle, data, FILE)


class Nasty:
    def __reduce__(self):
        return os.mkdir, ("made_by_a_pickle",)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_runs_nothing(tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    assert "mkdir" in complaint(pickle.dumps({"a": Nasty()}, protocol))
    assert list(tmp_path.iterdir()) == []
    assert "it would run numpy.save" in complaint(b"cnumpy\nsave\n(S'x'\nI1\ntR.")  # a function that writes a file


def array_of(kind: str, state: tuple, data: bytes = b"\0" * 8, shape: tuple = (1,)) -> bytes:
    """A pickle of an array as numpy writes it, with a dtype and its state as given."""

    def frozen(value):
        return pickle.dumps(value, protocol=2)[2:-1]

    dtype = b"cnumpy\ndtype\n" + frozen((kind, False, True)) + b"R" + frozen(state) + b"b"
    start = b"cnumpy._core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + frozen((0,)) + b"C\x01btR"
    return b"\x80\x02" + start + b"(K\x01" + frozen(shape) + dtype + b"\x89B" + struct.pack("<I", len(data)) + data + b"tb."


PLAIN = (3, "<", None, None, None, -1, -1, 0)  # the state of a dtype of numbers


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("O8", (3, "|", None, None, None, -1, -1, 63)),
        ("V8", (3, "|", None, None, None, 8, 1, 0)),
        ("S8", (3, "|", None, None, None, 8, 1, 0)),
        ("M8", (4, "<", None, None, None, -1, -1, 0, ({}, (b"D", 1, 1, 1)))),
        ("i8", (3, "x", None, None, None, -1, -1, 0)),
        ("i8, O", PLAIN),
    ],
)
def test_arrays_of_anything_but_numbers_are_refused(kind, state):
    assert "not of numbers" in complaint(array_of(kind, state))
    # A number type that claims to hold objects holds numbers; numpy would follow the 8 bytes as a pointer.
    forged = array_of("i8", (3, "<", None, None, None, 8, 8, 63), b"\x41" * 8)
    assert read_pickle(forged, FILE).tolist() == [0x4141414141414141]


@pytest.mark.parametrize("shape", [(2,), (1 << 40,), (-1,), (True,), ("a",), (1 << 70, 0)])
def test_an_array_whose_bytes_do_not_fit_its_shape_is_refused(shape):
    complaint(array_of("i8", PLAIN, shape=shape))


@pytest.mark.parametrize("protocol", range(6))
def test_every_kind_of_number_comes_back(protocol):
    kinds = ["?", "i1", "u1", "<i2", ">i4", "<u8", "f2", "<f4", ">f8"]
    arrays = {kind: np.arange(6).reshape(2, 3).astype(kind) for kind in kinds}
    arrays |= {"fortran": np.asfortranarray(arrays["u1"]), "empty": np.zeros((0, 3)), "flat": np.array(3)}
    arrays["scalar"] = np.float32(2.5)
    plain = [1, 2.5, None, True, "ü", b"b", (1, [])]
    assert read_pickle(pickle.dumps(plain, protocol), FILE) == plain
    found = read_pickle(pickle.dumps(arrays, protocol), FILE)
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


def test_text_of_python_2_comes_as_bytes_and_its_arrays_as_numbers():
    """What ``cPickle.dump({'easy': numpy.array([1, 300]), 'im': ['caf\\xe9']}, file)`` writes."""
    written = (
        b"(dp1\nS'im'\np2\n(lp3\nS'caf\\xe9'\np4\nasS'easy'\np5\ncnumpy.core.multiarray\n_reconstruct\np6\n(cnumpy\nndarray\n"
        b"p7\n(I0\ntS'b'\ntRp8\n(I1\n(I2\ntcnumpy\ndtype\np9\n(S'i8'\nI0\nI1\ntRp10\n(I3\nS'<'\nNNNI-1\nI-1\nI0\ntbI00\n"
        b"S'\\x01\\x00\\x00\\x00\\x00\\x00\\x00\\x00,\\x01\\x00\\x00\\x00\\x00\\x00\\x00'\ntbs."
    )
    found = read_pickle(written, FILE)
    assert found[b"im"] == [b"caf\xe9"]
    assert found[b"easy"].tolist() == [1, 300]


def doubled(times: int) -> bytes:
    """A list that holds a list twice that holds a list twice, and so on."""
    return b"\x80\x02]q\x00" + b"".join(b"]" + b"(h%ch%ce" % (n, n) + b"q%c" % (n + 1) for n in range(times)) + b"."


def test_lists_and_texts_that_multiply_or_hold_themselves_are_refused():
    assert as_text(read_pickle(doubled(3), FILE)) == [[[[], []], [[], []]], [[[], []], [[], []]]]
    assert "repeats or contains itself" in complaint(doubled(40))
    assert "in each other" in complaint(b"]q\x00h\x00a.")
    assert "in each other" in complaint(b"]" * 100_000 + b"a" * 99_999 + b".")
    again = b"\x80\x02]q\x00X" + struct.pack("<I", 1_000_000) + b"a" * 1_000_000 + b"q\x01"
    assert read_pickle(again + b"a.", FILE) == ["a" * 1_000_000]
    assert "repeats" in complaint(again + b"a(" + b"h\x01" * 10_000 + b"e.")
    encoded = b"c_codecs\nencode\nq\x02" + b"h\x02h\x01X\x06\x00\x00\x00latin1\x86R" * 9
    assert "repeats" in complaint(again + b"a(" + encoded + b"e.")


@pytest.mark.parametrize(
    "data",
    [
        b"\x96" + struct.pack("<Q", 1 << 40) + b".",  # a terabyte
        b"\x8e" + struct.pack("<Q", 1 << 40) + b".",
        b"\x8a\xff" + b"\x7f" * 255 + b".",  # a number of 2,040 bits
        b"\x80\x04\x8f(K\x01\x90.",  # a set
        b"}K\x01K\x01s.",  # a number as key
        b"cbuiltins\nbytes\n(I1000000000000\ntR.",
        b"cnumpy\ndtype\n.",
        b"cnumpy\ndtype\n}X\x01\x00\x00\x00aK\x01sb.",
        b"cnumpy\nndarray\n)\x81.",
        b"Pname\n.",
        b"\x82\x01.",
        b".",
        b"",
    ],
)
def test_pickles_that_ask_for_too_much_or_for_calls_are_refused(data):
    complaint(data)
    assert read_pickle(b"]r\xff\xff\xff\x7f.", FILE) == []  # the 2,147,483,647th entry of a memo, which is a dictionary


def element(kind: int, data: bytes) -> bytes:
    return struct.pack("<II", kind, len(data)) + data + b"\0" * (-len(data) % 8)


def matrix(kind: int, body: bytes, shape: tuple = (1, 1), name: bytes = b"") -> bytes:
    start = element(6, struct.pack("<II", kind, 0)) + element(5, struct.pack(f"<{len(shape)}i", *shape))
    return element(14, start + element(1, name) + body)


def written(folder: Path, *elements: bytes) -> Path:
    file = folder / "a.mat"
    file.write_bytes(b"MATLAB 5.0".ljust(124) + struct.pack("<HH", 0x0100, 0x4D49) + b"".join(elements))
    return file


def refusal(file: Path, name: str = "a") -> str:
    return assert_refused([f"{file}: "], read_matlab, file, name)


def same(own, theirs) -> None:
    assert (own.shape, own.dtype.names) == (theirs.shape, theirs.dtype.names)
    if own.dtype.names:
        for name in own.dtype.names:
            same(own[name], theirs[name])
    elif own.dtype == object:
        for one, other in zip(own.ravel(), theirs.ravel(), strict=True):
            same(one, other)
    else:
        np.testing.assert_array_equal(own, theirs)


def saved(folder: Path, **options) -> Path:
    cells, notes = np.empty((1, 2), object), np.zeros((1, 2), [("path", object), ("class", object)])
    cells[0, 0], cells[0, 1] = "AM General Hummer SUV 2000", np.arange(3.0)
    notes["path"][0], notes["class"][0] = ["a.jpg", "b.jpg"], [np.uint8(1), np.uint8(7)]
    arrays = {"doubles": np.arange(6.0).reshape(2, 3), "bytes": np.arange(24, dtype=np.uint8).reshape(2, 3, 4)}
    arrays |= {"long": np.arange(-3, 3), "text": "ab é 漢", "rows": np.array(["ab", "cd"]), "empty": np.zeros((0, 3))}
    savemat(folder / "a.mat", arrays | {"cells": cells, "notes": notes}, **options)
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
    variable = big(14, start + big(4, struct.pack(">HH", 1, 300)))
    file.write_bytes(b"MATLAB 5.0".ljust(124) + b"\1\0MI" + big(2, b"no variable") + variable)
    assert read_matlab(file, "a")["a"].tolist() == [[1.0, 300.0]]


def test_cells_in_cells_without_end_are_refused(tmp_path):
    """scipy's reader ends here with a segmentation fault."""
    inner = matrix(6, element(9, struct.pack("<d", 1)))
    for _ in range(20_000):
        inner = matrix(1, inner)
    assert "in each other" in refusal(written(tmp_path, matrix(1, inner, name=b"a")))


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
        matrix(17, b"", (1, 1), b"a"),
        matrix(17, element(9, b"\0" * 8), (1, 1), b"a"),
        element(14, b""),
        element(15, b"not compressed"),
        struct.pack("<II", 14, 1 << 31),
    ],
)
def test_sizes_and_kinds_that_do_not_fit_are_refused(tmp_path, variable):
    refusal(written(tmp_path, variable))


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


def test_other_files_and_more_than_is_meant_to_come_out_of_one_are_refused(tmp_path, monkeypatch):
    for content in (b"", b"MATLAB", b"\x89HDF\r\n\x1a\n" + b"\0" * 200, b"\0" * 4000):
        (tmp_path / "a.mat").write_bytes(content)
        assert "not a readable MATLAB file" in refusal(tmp_path / "a.mat")
    monkeypatch.setattr(matlab, "LARGEST", 1 << 20)
    packed = zlib.compress(matrix(9, element(2, b"\0" * (2 << 20)), (1, 2 << 20), b"a"))
    file = written(tmp_path, struct.pack("<II", 15, len(packed)) + packed)
    assert f"more than {1 << 20} bytes come out of it" in refusal(file)
