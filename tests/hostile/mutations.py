"""Ways to damage or forge a file: each mutation is a function of the file, a seeded generator and a folder of secrets."""

import io
import json
import os
import pickle
import shutil
import sqlite3
import struct
import zipfile
import zlib
from pathlib import Path

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


def many_flipped(file, rng, beside):
    flipped(file, rng, beside, 64)


def truncated(file, rng, beside):
    data = file.read_bytes()
    file.write_bytes(data[: rng.randrange(max(1, len(data)))])


def extended(file, rng, beside):
    file.write_bytes(file.read_bytes() + rng.randbytes(rng.randint(1, 5000)))


def removed(file, rng, beside):
    file.unlink()


def folder_instead(file, rng, beside):
    file.unlink()
    file.mkdir()
    (file / "a.txt").write_text("a")


def pipe_instead(file, rng, beside):
    file.unlink()
    os.mkfifo(file)


def link_to_copy(file, rng, beside):
    copy = beside / f"copy-{file.name}"
    shutil.move(file, copy)
    file.symlink_to(copy)


def link_to(name, target):
    """A mutation that puts a link in the place of a file."""

    def mutate(file, rng, beside):
        file.unlink()
        file.symlink_to(target.format(beside=beside, name=file.name))

    return named(f"link_to_{name}", mutate)


def hard_link_to_secret(file, rng, beside):
    file.unlink()
    os.link(beside / "secret.txt", file)


LINKS = {"secret": "{beside}/secret.txt", "zeros": "/dev/zero", "parent": "..", "itself": "{name}"}
ANY_FILE = (flipped, many_flipped, truncated, extended, whole("emptied", b""), removed, folder_instead, pipe_instead)
ANY_FILE += (link_to_copy, hard_link_to_secret, *(link_to(name, target) for name, target in LINKS.items()))


# A folder of an artefact ---------------------------------------------------------------------------------------------


def folder_link_to_parent(folder, rng, beside):
    shutil.rmtree(folder)
    folder.symlink_to("..")


def file_instead(folder, rng, beside):
    shutil.rmtree(folder)
    folder.write_text("a")


def scratch_link(folder, rng, beside):
    """Where a new folder would be written before it takes the place of this one."""
    folder.with_name(f".{folder.name}.saving").symlink_to(beside / "folder")


ANY_FOLDER = (link_to_copy, folder_link_to_parent, file_instead, scratch_link)


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


# The database of a gallery -------------------------------------------------------------------------------------------


def sql(name, *statements):
    """A mutation by statements; ``{beside}`` in them is the folder with secrets."""

    def mutate(file, rng, beside):
        with sqlite3.connect(file, isolation_level=None) as connection:
            connection.create_function(
                "item_checksum", 3, lambda *values: zlib.crc32("\0".join(map(str, values)).encode("utf-8", "replace"))
            )
            connection.create_function("checksum", 2, lambda key, value: zlib.crc32(f"{key}\0{value}".encode()))
            connection.create_function("crc", 2, lambda blob, start: zlib.crc32(blob, start & 0xFFFFFFFF))
            for statement in statements:
                connection.executescript(statement.replace("{beside}", str(beside)))
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        connection.close()
        for ending in ("-wal", "-shm"):
            file.with_name(file.name + ending).unlink(missing_ok=True)

    return named(f"sql_{name}", mutate)


def described(key, value):
    name = f"{key}_{value}".replace(" ", "_").replace(",", "_")[:40]
    return sql(name, f"UPDATE described SET value = '{value}', checksum = checksum('{key}', '{value}') WHERE key = '{key}'")


def item(name, change):
    """A mutation of items, whose checksums are right afterwards."""
    return sql(name, f"UPDATE items SET {change}", "UPDATE items SET checksum = item_checksum(row, id, metadata)")


def metadata(name, text):
    return item(f"metadata_{name}", "metadata = '{}'".format(text.replace("'", "''")))


def block(name, change):
    """A mutation of the first block, whose checksum is right afterwards."""
    return sql(name, f"UPDATE blocks SET {change} WHERE start = 0", "UPDATE blocks SET checksum = crc(vectors, start)")


STATES = {"next_row": ("2000000000", "-5", "'many'"), "n_items": ("2000000000", "-1")}
STATES |= {"generation": (f"{2**63 - 1}",), "epoch": ("'../../beside/secret'",)}
DESCRIBED = {"dim": ("0", "1000000000", "7", "many"), "index": ("NOPE", "HNSW99999999", "IVF1000000000,Flat")}
DESCRIBED |= {"metric": ("furthest",), "recall": ("nan", "text"), "name": ("../../x",)}
BAD_PATHS = ("5", '["a"]', '"images/../../beside/secret.txt"', '"{beside}/secret.txt"', '"images/a\\u0000b"')
BAD_PATHS += (f'"images/{"x" * 5000}"', '"images/../gallery.db"')
BAD_METADATA = {"no_json": "not json", "list": "[]", "null": "null", "deep": f'{{"a": {DEEP}}}', "nan": '{"a": NaN}'}
BAD_METADATA |= {"digits": '{"a": ' + "9" * 5000 + "}", "surrogate": '{"label_0": "\\ud800"}'}
ENDLESS = "CREATE VIEW removed AS WITH RECURSIVE n(row) AS (SELECT 1 UNION ALL SELECT row + 1 FROM n) "
STATEMENTS = {
    "items_are_a_view": "ALTER TABLE items RENAME TO held; CREATE VIEW items AS SELECT * FROM held",
    "endless_view": f"DROP TABLE removed; {ENDLESS} SELECT row, row AS generation FROM n",
    "trigger_on_delete": "CREATE TRIGGER gone AFTER DELETE ON items BEGIN DELETE FROM blocks; END",
    "trigger_on_state": "CREATE TRIGGER more AFTER UPDATE ON state BEGIN UPDATE items SET metadata = '{}'; END",
    "trigger_that_fails": "CREATE TRIGGER no BEFORE INSERT ON items BEGIN SELECT RAISE(ABORT, 'no'); END",
    "no_table": "DROP TABLE removed",
    "fewer_columns": "ALTER TABLE items DROP COLUMN metadata",
    "id_is_bytes": "UPDATE items SET id = x'ff00ff' WHERE row = 1",
    "id_is_not_utf8": "UPDATE items SET id = CAST(x'61ff62' AS TEXT) WHERE row = 1",
    "removed_row_is_huge": f"INSERT INTO removed VALUES ({2**62}, 1)",
    "removed_row_below_zero": "INSERT INTO removed VALUES (-3, 1)",
    "block_starts_below_zero": "UPDATE blocks SET start = -8 WHERE start = 0",
    "block_starts_far": "UPDATE blocks SET start = 1000000000000 WHERE start = 0",
    "block_of_billions": "UPDATE blocks SET n = 2000000000 WHERE start = 0",
    "block_is_text": "UPDATE blocks SET vectors = 'text', checksum = 1 WHERE start = 0",
    "another_format": "PRAGMA user_version = 99",
    "another_application": "PRAGMA application_id = 1",
    "broken_schema": "PRAGMA writable_schema = ON;"
    "UPDATE sqlite_master SET sql = 'CREATE TABLE items (' WHERE name = 'items'",
    "rollback_journal": "PRAGMA journal_mode = DELETE",
} | {f"no_{table}": f"DELETE FROM {table}" for table in ("state", "blocks", "items", "described")}
STATEMENTS |= {
    f"{column}_{number}": f"UPDATE state SET {column} = {value}"
    for column, values in STATES.items()
    for number, value in enumerate(values)
}
ANY_DATABASE = (
    *(sql(name, statement) for name, statement in STATEMENTS.items()),
    item("id_with_zero", "id = 'a' || char(0) || 'b' WHERE row = 1"),
    item("row_below_zero", "row = -4 WHERE row = 1"),
    item("row_is_huge", f"row = {2**62} WHERE row = 1"),
    block("block_is_short", "vectors = x'00'"),
    block("block_of_nan", "vectors = CAST(replace(hex(zeroblob(length(vectors) / 2)), '0', char(127)) AS BLOB)"),
    *(described(key, value) for key, values in DESCRIBED.items() for value in values),
    *(metadata(name, text) for name, text in BAD_METADATA.items()),
    *(metadata(f"path_{number}", f'{{"path": {path}}}') for number, path in enumerate(BAD_PATHS)),
)


def hot_log(file, rng, beside):
    """A log of another database beside this one."""
    file.with_name(file.name + "-wal").write_bytes(rng.randbytes(9000))


def linked(ending):
    """A mutation: a link to a file outside, where SQLite would write beside the database."""

    def mutate(file, rng, beside):
        (beside / ending).write_bytes(b"x" * 100)
        file.with_name(f"{file.name}-{ending}").symlink_to(beside / ending)

    return named(f"linked_{ending}", mutate)


def piped_log(file, rng, beside):
    os.mkfifo(file.with_name(file.name + "-wal"))


LOGS = (hot_log, linked("wal"), linked("shm"), linked("journal"), piped_log)


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
        import torch

        state = torch.load(file, weights_only=True)
        state.pop("checksum", None)  # who forges a checkpoint writes one of the format that had none
        torch.save(change(state | {"format": 1}, torch), file)

    return named(f"stored_{name}", mutate)


def without(part):
    return lambda state, torch: {key: value for key, value in state.items() if key != part}


def put(**values):
    return lambda state, torch: state | values


def position(**values):
    return lambda state, torch: state | {"position": state["position"] | values}


def first_tensor(change):
    def changed_state(state, torch):
        name = next(name for name, value in state["encoder"].items() if value.dim() > 1)
        return state | {"encoder": state["encoder"] | {name: change(state["encoder"][name], torch)}}

    return changed_state


POSITIONS = {"more": (1,), "epoch": (-5, 10**30, "a"), "batch": (10**12,), "step": (None,), "best": (float("nan"),)}
CHECKPOINTS = {
    "list": lambda state, torch: [1, 2],
    "tensor": lambda state, torch: torch.zeros(3),
    "position_list": put(position=[1]),
    "chunk_below_zero": put(chunk_size=-1),
    "other_shape": first_tensor(lambda value, torch: value[:1]),
    "huge_view": first_tensor(lambda value, torch: torch.zeros(1).expand(10**12)),
    "text_for_tensor": first_tensor(lambda value, torch: "a"),
    "sparse_tensor": first_tensor(lambda value, torch: torch.eye(3).to_sparse()),
    "half_tensor": first_tensor(lambda value, torch: value.half()),
    "nan_tensor": first_tensor(lambda value, torch: value * float("nan")),
    "optimizer_groups": put(optimizer={"state": {}, "param_groups": [{}]}),
}
CHECKPOINTS |= {f"no_{part}": without(part) for part in ("position", "encoder", "loss", "optimizer", "chunk_size")}
CHECKPOINTS |= {f"odd_{part}": put(**{part: ["odd"]}) for part in ("encoder", "loss", "optimizer", "chunk_size")}
CHECKPOINTS |= {
    f"position_{name}_{number}": position(**{name: value})
    for name, values in POSITIONS.items()
    for number, value in enumerate(values)
}
ANY_CHECKPOINT = (plain_pickle, forbidden_global, *(stored(name, change) for name, change in CHECKPOINTS.items()))
LOG_HEADER = b"step,epoch,name,value\n"
ANY_LOG = (
    whole("log_of_text", LOG_HEADER + b"many,none,loss,much\n"),
    whole("log_of_quotes", LOG_HEADER + b'"1,0,loss,0.5\n'),
    whole("log_of_huge_steps", LOG_HEADER + f"{10**40},0,loss,1e999\n".encode()),
    whole("log_of_bytes", LOG_HEADER + b"1,0,\xff\xfe,0.5\n"),
    whole("log_of_a_long_line", LOG_HEADER + b"1,0," + b"x" * 2_000_000 + b",0.5\n"),
)


# Embedding tables ----------------------------------------------------------------------------------------------------


def table(name, change=lambda frame, polars: frame, **described):
    """A mutation of a Parquet file's columns or of what it says of itself; None takes a value away."""

    def mutate(file, rng, beside):
        import polars

        known = {key: value for key, value in polars.read_parquet_metadata(file).items() if key != "ARROW:schema"}
        known.pop("checksum", None)  # who forges a table writes one of the format that had none
        frame = change(polars.read_parquet(file), polars)
        wanted = known | {key: value and value.replace("{beside}", str(beside)) for key, value in described.items()}
        frame.write_parquet(file, metadata={key: value for key, value in wanted.items() if value is not None})

    return named(f"table_{name}", mutate)


def column(name, value):
    def change(frame, polars):
        return frame.with_columns(polars.lit(value, polars.String if value is None else None).alias(name))

    return change


def vectors(value, kind):
    def change(frame, polars):
        kind_of_row = polars.Array(getattr(polars, kind), 8)
        return frame.with_columns(polars.Series("vector", [[value] * 8] * len(frame), dtype=kind_of_row))

    return change


def ragged_vectors(frame, polars):
    return frame.with_columns(polars.Series("vector", [[1.0] * (n % 3) for n in range(len(frame))]))


def some_null_vectors(frame, polars):
    return frame.with_columns(polars.when(polars.int_range(polars.len()) > 3).then(polars.col("vector")))


def huge_boxes(frame, polars):
    return frame.with_columns(*(polars.lit(2**40).alias(side) for side in ("x_1", "y_1", "x_2", "y_2")))


def footer_length(file, rng, beside):
    data = file.read_bytes()
    file.write_bytes(data[:-8] + struct.pack("<I", rng.choice([0, 1, 2**31, 2**32 - 1])) + data[-4:])


def footer_bytes(file, rng, beside):
    data = bytearray(file.read_bytes())
    n_bytes = struct.unpack("<I", data[-8:-4])[0]
    for _ in range(4):
        data[len(data) - 8 - rng.randrange(1, n_bytes)] = rng.randrange(256)
    file.write_bytes(data)


COLUMNS = {"vector": ("a", None), "id": (1, None), "label_0": (None, [1, 2], 1.5), "split": ("nowhere",)}
COLUMNS["path"] = (None, "/dev/zero", "a\0b", "x" * 10_000)
ANY_TABLE = (
    footer_length,
    *(footer_bytes,) * 4,
    *(table(f"root_{n}", root=value) for n, value in enumerate((None, "/dev", "{beside}", ""))),
    *(table(f"levels_{value}", n_levels=value) for value in (None, "-1", "1000000000", "two", "0", "3")),
    table("no_fingerprint", fingerprint=None),
    table("checksum_odd", checksum="x"),
    table("format_2", sightline_format="2"),
    *(table(f"vectors_of_{kind}", vectors(1, kind)) for kind in ("Float64", "Int64")),
    table("vectors_of_nan", vectors(float("nan"), "Float32")),
    *(table(change.__name__, change) for change in (ragged_vectors, some_null_vectors, huge_boxes)),
    *(table(f"rows_{n}", lambda frame, polars, n=n: frame.head(n)) for n in (0, 1)),
    *(table(f"no_{name}", lambda frame, polars, name=name: frame.drop(name)) for name in ("vector", "id", "path")),
    *(table(f"{name}_{n}", column(name, value)) for name, values in COLUMNS.items() for n, value in enumerate(values)),
)


# Manifests and images ------------------------------------------------------------------------------------------------

HEADER = b"path,split,label_0,label_1\n"
MANIFESTS = {
    "a_pipe": HEADER + b"images/pipe.png,train,a,b\n",
    "zeros": HEADER + b"/dev/zero,train,a,b\n",
    "a_folder": HEADER + b"images,train,a,b\n",
    "zero_bytes": HEADER + b"images/0-0.png\0,train,a,b\n",
    "latin": HEADER + b"images/\xff.png,train,a,b\n",
    "quotes": HEADER + b'"images/0-0.png,train,a,b\n',
    "many_columns": b",".join(b"c%d" % n for n in range(20_000)) + b"\n",
    "a_long_field": HEADER + b"images/0-0.png,train," + b"x" * 5_000_000 + b",b\n",
    "long_paths": HEADER + b"x" * 10_000 + b",train,a,b\n",
    "short_lines": HEADER + b"images/0-0.png\n",
    "boxes": HEADER[:-1] + b",x_1,y_1,x_2,y_2\nimages/0-0.png,train,a,b,0,0,2147483648,1e9\n",
    "two_headers": b"path,path,split,label\na,b,train,c\n",
}
ANY_MANIFEST = tuple(whole(f"manifest_of_{name}", data) for name, data in MANIFESTS.items())


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


def link_in_a_circle(folder, rng, beside):
    (folder / "again").symlink_to("..")


def link_to_images_beside(folder, rng, beside):
    (folder / "other").symlink_to(beside / "folder")


def pipe_among_images(folder, rng, beside):
    os.mkfifo(folder / "pipe.png")


def folder_called_as_image(folder, rng, beside):
    (folder / "folder.png").mkdir()


def name_of_bytes(folder, rng, beside):
    (Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe.png"))).write_bytes(b"x")


ANY_IMAGE_FOLDER = (link_in_a_circle, link_to_images_beside, pipe_among_images, folder_called_as_image, name_of_bytes)
