import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from sightline.data.readers.pickles import as_text, read_pickle
from sightline.errors import InputError

FILE = Path("gnd.pkl")


def complaint(data: bytes) -> str:
    with pytest.raises(InputError) as caught:
        read_pickle(data, FILE)
    assert str(caught.value).startswith("gnd.pkl: not a readable pickle: ")
    return str(caught.value)


def array_of(kind: str, state: tuple, data: bytes = b"\0" * 8, shape: tuple = (1,)) -> bytes:
    """A pickle of an array as numpy writes it, with a dtype and its state as given."""

    def frozen(value):
        return pickle.dumps(value, protocol=2)[2:-1]

    dtype = b"cnumpy\ndtype\n" + frozen((kind, False, True)) + b"R" + frozen(state) + b"b"
    start = b"cnumpy._core.multiarray\n_reconstruct\n(cnumpy\nndarray\n" + frozen((0,)) + b"C\x01btR"
    return b"\x80\x02" + start + b"(K\x01" + frozen(shape) + dtype + b"\x89B" + struct.pack("<I", len(data)) + data + b"tb."


def test_the_arrays_of_these_tests_are_those_of_numpy():
    little = (3, "<", None, None, None, -1, -1, 0)
    found = read_pickle(array_of("i8", little, b"\x07" + b"\0" * 7), FILE)
    np.testing.assert_array_equal(found, np.array([7]))
    np.testing.assert_array_equal(pickle.loads(array_of("i8", little, b"\x07" + b"\0" * 7)), found)
    big = (3, ">", None, None, None, -1, -1, 0)
    assert read_pickle(array_of("i8", big, b"\0" * 7 + b"\x07"), FILE).tolist() == [7]


@pytest.mark.parametrize(
    ("kind", "state"),
    [
        ("O8", (3, "|", None, None, None, -1, -1, 63)),
        ("V8", (3, "|", None, None, None, 8, 1, 0)),
        ("S8", (3, "|", None, None, None, 8, 1, 0)),
        ("M8", (4, "<", None, None, None, -1, -1, 0, ({}, (b"D", 1, 1, 1)))),
        ("i8", (3, "x", None, None, None, -1, -1, 0)),
        ("i8, O", (3, "<", None, None, None, -1, -1, 0)),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_arrays_of_anything_but_numbers_are_refused(kind, state):
    assert "not of numbers" in complaint(array_of(kind, state))


def test_a_number_type_that_claims_to_hold_objects_holds_numbers():
    """numpy would follow the 8 bytes as a pointer: the size and the flags of the state are not used."""
    forged = (3, "<", None, None, None, 8, 8, 63)
    assert read_pickle(array_of("i8", forged, b"\x41" * 8), FILE).tolist() == [0x4141414141414141]


@pytest.mark.parametrize("shape", [(2,), (1 << 40,), (-1,), (True,), ("a",), (1 << 70, 0)])
def test_an_array_whose_bytes_do_not_fit_its_shape_is_refused(shape):
    complaint(array_of("i8", (3, "<", None, None, None, -1, -1, 0), shape=shape))


@pytest.mark.parametrize("protocol", range(6))
def test_every_kind_of_number_comes_back(protocol):
    kinds = ["?", "i1", "u1", "<i2", ">i4", "<u8", "f2", "<f4", ">f8"]
    arrays = {kind: np.arange(6).reshape(2, 3).astype(kind) for kind in kinds} | {
        "fortran": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "empty": np.zeros((0, 3)),
        "scalar": np.float32(2.5),
        "flat": np.array(3),
    }
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


def test_lists_that_multiply_or_hold_themselves_are_refused():
    assert as_text(read_pickle(doubled(3), FILE)) == [[[[], []], [[], []]], [[[], []], [[], []]]]
    assert "repeats or contains itself" in complaint(doubled(40))
    assert "in each other" in complaint(b"]q\x00h\x00a.")
    assert "in each other" in complaint(b"]" * 100_000 + b"a" * 99_999 + b".")


def test_text_that_is_used_again_and_again_is_refused():
    again = b"\x80\x02]q\x00X" + struct.pack("<I", 1_000_000) + b"a" * 1_000_000 + b"q\x01"
    assert read_pickle(again + b"a.", FILE) == ["a" * 1_000_000]
    assert "repeats" in complaint(again + b"a(" + b"h\x01" * 10_000 + b"e.")
    encoded = b"c_codecs\nencode\nq\x02" + b"h\x02h\x01X\x06\x00\x00\x00latin1\x86R" * 3
    assert "more than the file has" in complaint(again + b"a(" + encoded + b"e.")


@pytest.mark.parametrize(
    "data",
    [
        b"]r\xff\xff\xff\x7f.",  # the 2,147,483,647th entry of a memo
        b"\x96" + struct.pack("<Q", 1 << 40) + b".",  # a terabyte
        b"\x8e" + struct.pack("<Q", 1 << 40) + b".",
        b"\x8a\xff" + b"\x7f" * 255 + b".",  # a number of 2,040 bits
        b"\x80\x04\x8f(K\x01\x90.",  # a set
        b"}K\x01K\x01s.",  # a number as key
        b"cbuiltins\nbytes\n(I1000000000000\ntR.",
        b"cnumpy\ndtype\n.",
        b"cnumpy\ndtype\n}X\x01\x00\x00\x00aK\x01sb.",
        b"]}b.",
        b"cnumpy\nndarray\n)\x81.",
        b"Pname\n.",
        b"\x82\x01.",
        b".",
        b"",
    ],
)
def test_pickles_that_ask_for_too_much_or_for_calls_are_refused(data):
    if data.startswith(b"]r"):
        assert read_pickle(data, FILE) == []  # an entry of a dictionary
    else:
        complaint(data)
