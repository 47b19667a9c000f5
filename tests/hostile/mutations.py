"""Ways to damage or forge a file: each mutation is a function of the file, a seeded generator and a folder of secrets."""

import io
import json
import os
import pickle
import shutil
import struct
import zipfile
import zlib
from functools import partial
from pathlib import Path

import torch

DEEP = "[" * 100_000 + "]" * 100_000


def named(name, mutate):
    """The mutation under a name of its own, by which its cases are called."""
    mutate.__name__ = name
    return mutate


def whole(name, data):
    """A mutation that puts other bytes in the place of all."""
    return named(name, lambda file, rng, beside: file.write_bytes(data))


# Any file ------------------------------------------------------------------------------------------------------------
def flipped(file, rng, beside, n_bits=1):
    data = bytearray(file.read_bytes())
    for _ in range(n_bits if data else 0):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    file.write_bytes(data)


def truncated(file, rng, beside):
    data = file.read_bytes()
    file.write_bytes(data[: rng.randrange(max(1, len(data)))])


def extended(file, rng, beside):
    file.write_bytes(file.read_bytes() + rng.randbytes(rng.randint(1, 5000)))


def link_to_copy(file, rng, beside):
    shutil.move(file, beside / f"copy-{file.name}")
    file.symlink_to(beside / f"copy-{file.name}")


def instead(name, make):
    """A mutation that removes the file or folder and makes something else of its name, or nothing."""

    def mutate(place, rng, beside):
        shutil.rmtree(place) if place.is_dir() else place.unlink()
        make(place, beside)

    return named(name, mutate)


def folder_with_a_file(file, beside):
    file.mkdir()
    (file / "a.txt").write_text("a")


INSTEAD = {
    "removed": lambda file, beside: None,
    "folder_instead": folder_with_a_file,
    "pipe_instead": lambda file, beside: os.mkfifo(file),
    "hard_link_to_secret": lambda file, beside: os.link(beside / "secret.txt", file),
    "link_to_secret": lambda file, beside: file.symlink_to(beside / "secret.txt"),
    "link_to_zeros": lambda file, beside: file.symlink_to("/dev/zero"),
    "link_to_parent": lambda file, beside: file.symlink_to(".."),
    "link_to_itself": lambda file, beside: file.symlink_to(file.name),
}
MANY_FLIPPED = named("many_flipped", partial(flipped, n_bits=64))
ANY_FILE = (flipped, MANY_FLIPPED, truncated, extended, whole("emptied", b""), link_to_copy)
ANY_FILE += tuple(instead(name, make) for name, make in INSTEAD.items())

# A folder of an artefact ---------------------------------------------------------------------------------------------


def scratch_link(folder, rng, beside):
    """Where a new folder would be written before it takes the place of this one."""
    folder.with_name(f".{folder.name}.saving").symlink_to(beside / "folder")


FOLDER_LINK = instead("folder_link_to_parent", INSTEAD["link_to_parent"])
FILE_INSTEAD = instead("file_instead", lambda folder, beside: folder.write_text("a"))
ANY_FOLDER = (link_to_copy, FOLDER_LINK, FILE_INSTEAD, scratch_link)

# JSON ----------------------------------------------------------------------------------------------------------------

ODD = {"null": "null", "list": "[]", "negative": "-1", "large": str(2**70), "digits": "9" * 5000, "infinite": "1e999"}
ODD |= {"nan": "NaN", "zero": '"\\u0000"', "surrogate": '"\\ud800"', "path": '"../../beside/secret.txt"', "deep": DEEP}
ODD["long"] = '"' + "x" * 1_000_000 + '"'


def odd_value(name):
    """A mutation that replaces one value of a JSON file, which one being a matter of the seed."""

    def mutate(file, rng, beside):
        described = json.loads(file.read_text())
        above, key = rng.choice(list(places(described)))
        above[key] = "HERE"
        file.write_text(json.dumps(described).replace('"HERE"', ODD[name]))

    return named(f"odd_{name}", mutate)


def places(described):
    """Every place of a JSON document that holds a value."""
    items = described.items() if isinstance(described, dict) else enumerate(described)
    for key, value in items:
        yield described, key
        if isinstance(value, dict | list):
            yield from places(value)


WHOLE_JSON = {"list": b"[1, 2]", "deep": DEEP.encode(), "empty_object": b"{}", "latin": b'{"format": "\xff\xfe"}'}
ANY_JSON = (*map(odd_value, ODD), *(whole(f"is_{name}", data) for name, data in WHOLE_JSON.items()))


# Weights -------------------------------------------------------------------------------------------------------------
def forged_header(name, change):
    """A mutation of what a safetensors file says of itself."""

    def mutate(file, rng, beside):
        data = file.read_bytes()
        n_bytes = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + n_bytes])
        header = change(header, rng.choice([key for key in header if key != "__metadata__"]))
        text = (header if isinstance(header, str) else json.dumps(header)).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + n_bytes :])

    return named(f"header_{name}", mutate)


def changed(**values):
    return lambda header, key: header | {key: header[key] | values}


def header_length(file, rng, beside):
    file.write_bytes(struct.pack("<Q", rng.choice([0, 7, 2**31, 2**60, 2**64 - 1])) + file.read_bytes()[8:])


OFFSETS = [(0, 2**40), (100, 0), (-8, 8)]
ANY_WEIGHTS = (
    header_length,
    *(forged_header(f"offsets_{start}_{end}", changed(data_offsets=[start, end])) for start, end in OFFSETS),
    *(forged_header(f"shape_{n}", changed(shape=shape)) for n, shape in enumerate([[2**31, 2**31], [2**63, 4], [1]])),
    forged_header("kind", changed(dtype="F64")),
    forged_header("one_missing", lambda header, key: {name: value for name, value in header.items() if name != key}),
    forged_header("one_more", lambda header, key: header | {"more": header[key]}),
    forged_header("deep", lambda header, key: DEEP),
)


# Beside a gallery's database -------------------------------------------------------------------------------------------
def linked(ending):
    """A mutation: a link to a file outside, where SQLite would write beside the database."""

    def mutate(file, rng, beside):
        (beside / ending).write_bytes(b"x" * 100)
        file.with_name(f"{file.name}-{ending}").symlink_to(beside / ending)

    return named(f"linked_{ending}", mutate)


def log_of(file):
    return file.with_name(file.name + "-wal")


HOT_LOG = named("hot_log", lambda file, rng, beside: log_of(file).write_bytes(rng.randbytes(9000)))  # of another database
PIPED_LOG = named("piped_log", lambda file, rng, beside: os.mkfifo(log_of(file)))
LOGS = (HOT_LOG, linked("wal"), linked("shm"), linked("journal"), PIPED_LOG)

# Checkpoints ---------------------------------------------------------------------------------------------------------


class Writes:
    """Unpickled, it would write to the secret."""

    def __init__(self, beside):
        self.beside = beside

    def __reduce__(self):
        return (os.system, (f"echo stolen > {self.beside}/secret.txt",))


def plain_pickle(file, rng, beside):
    file.write_bytes(pickle.dumps({"format": 1, "position": Writes(beside)}))


def forbidden_global(file, rng, beside):
    """The right container, with a pickle that runs a program."""
    held = io.BytesIO()
    forged = pickle.dumps({"format": 1, "position": Writes(beside)}, 2)
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(held, "w") as new:
        for name in old.namelist():
            new.writestr(name, forged if name.endswith("data.pkl") else old.read(name))
    file.write_bytes(held.getvalue())


def stored(name, change):
    """A mutation of what a checkpoint holds."""

    def mutate(file, rng, beside):
        state = torch.load(file, weights_only=True)
        state.pop("checksum", None)  # who forges a checkpoint writes one of the format that had none
        torch.save(change(state | {"format": 1}), file)

    return named(f"stored_{name}", mutate)


def put(**values):
    return lambda state: state | values


def put_in(part, **values):
    return lambda state: state | {part: state[part] | values}


def without(part):
    return lambda state: {key: value for key, value in state.items() if key != part}


def first_tensor(change):
    def changed_state(state):
        name = next(name for name, value in state["encoder"].items() if value.dim() > 1)
        return put_in("encoder", **{name: change(state["encoder"][name])})(state)

    return changed_state


POSITIONS = {"more": (1,), "epoch": (-5, 10**30, "a"), "batch": (10**12,), "step": (None,), "best": (float("nan"),)}
CHECKPOINTS = {
    "list": lambda state: [1, 2],
    "tensor": lambda state: torch.zeros(3),
    "position_list": put(position=[1]),
    "chunk_below_zero": put(chunk_size=-1),
    "other_shape": first_tensor(lambda value: value[:1]),
    "huge_view": first_tensor(lambda value: torch.zeros(1).expand(10**12)),
    "text_for_tensor": first_tensor(lambda value: "a"),
    "sparse_tensor": first_tensor(lambda value: torch.eye(3).to_sparse()),
    "half_tensor": first_tensor(lambda value: value.half()),
    "nan_tensor": first_tensor(lambda value: value * float("nan")),
    "optimizer_groups": put(optimizer={"state": {}, "param_groups": [{}]}),
}
CHECKPOINTS |= {f"no_{part}": without(part) for part in ("position", "encoder", "loss", "optimizer", "chunk_size")}
CHECKPOINTS |= {f"odd_{part}": put(**{part: ["odd"]}) for part in ("encoder", "loss", "optimizer", "chunk_size")}
for name, values in POSITIONS.items():
    CHECKPOINTS |= {f"position_{name}_{n}": put_in("position", **{name: value}) for n, value in enumerate(values)}
ANY_CHECKPOINT = (plain_pickle, forbidden_global, *(stored(name, change) for name, change in CHECKPOINTS.items()))
LOG_HEADER = b"step,epoch,name,value\n"
LOG_LINES = {
    "text": b"many,none,loss,much\n",
    "quotes": b'"1,0,loss,0.5\n',
    "huge_steps": f"{10**40},0,loss,1e999\n".encode(),
    "bytes": b"1,0,\xff\xfe,0.5\n",
    "a_long_line": b"1,0," + b"x" * 2_000_000 + b",0.5\n",
}
ANY_LOG = tuple(whole(f"log_of_{name}", LOG_HEADER + line) for name, line in LOG_LINES.items())

# Manifests and images ------------------------------------------------------------------------------------------------
HEADER = b"path,split,label_0,label_1\n"
MANIFESTS = {
    "a_pipe": b"images/pipe.png,train,a,b\n",
    "zeros": b"/dev/zero,train,a,b\n",
    "a_folder": b"images,train,a,b\n",
    "a_long_field": b"images/0-0.png,train," + b"x" * 5_000_000 + b",b\n",
    "long_paths": b"x" * 10_000 + b",train,a,b\n",
}
ANY_MANIFEST = tuple(whole(f"manifest_of_{name}", HEADER + row) for name, row in MANIFESTS.items())


def png_that_claims(width, height):
    """A mutation: a small file that says it is a large picture."""

    def mutate(file, rng, beside):
        def chunk(kind, data):
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
        rows = zlib.compress(bytes(1000))
        file.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))

    return named(f"png_of_{width}_by_{height}", mutate)


ANY_IMAGE = (
    *(png_that_claims(*size) for size in ((60_000, 60_000), (2**31 - 1, 1), (0, 5))),
    whole("image_of_gif", b"GIF89a\xff\xff\xff\xff\x00\x00\x00,\x00\x00\x00\x00\xff\xff\xff\xff\x00\x02\x00;"),
    whole("image_of_postscript", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 99999 99999\n"),
)


def pipe_among_images(folder, rng, beside):
    os.mkfifo(folder / "pipe.png")


def image_of_bytes(folder, rng, beside):
    Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe.png")).write_bytes(b"x")


IN_FOLDER = {
    "link_in_a_circle": lambda folder, rng, beside: (folder / "again").symlink_to(".."),
    "link_to_images_beside": lambda folder, rng, beside: (folder / "other").symlink_to(beside / "folder"),
    "folder_called_as_image": lambda folder, rng, beside: (folder / "folder.png").mkdir(),
    "name_of_bytes": image_of_bytes,
}
ANY_IMAGE_FOLDER = (pipe_among_images, *(named(name, mutate) for name, mutate in IN_FOLDER.items()))
