"""What may be wrong with a file that somebody else made: each mutation is a function of the file and a seeded generator."""

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


def zeroed(file, rng, beside):
    data = bytearray(file.read_bytes())
    start = rng.randrange(max(1, len(data)))
    data[start : start + 64] = bytes(len(data[start : start + 64]))
    file.write_bytes(data)


def noise(file, rng, beside):
    file.write_bytes(rng.randbytes(3000))


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


LINKS = {"secret": "{beside}/secret.txt", "zeros": "/dev/zero", "parent": "..", "itself": "{name}"}
LINKS["nothing"] = "{beside}/not-there"


def hard_link(file, rng, beside):
    copy = beside / f"hard-{file.name}"
    shutil.move(file, copy)
    os.link(copy, file)


def hard_link_to_secret(file, rng, beside):
    file.unlink()
    os.link(beside / "secret.txt", file)


ANY_FILE = (flipped, many_flipped, truncated, extended, zeroed, whole("emptied", b""), noise, removed, folder_instead)
ANY_FILE += (pipe_instead, link_to_copy, hard_link, hard_link_to_secret)
ANY_FILE += tuple(link_to(name, target) for name, target in LINKS.items())


# A folder of an artefact ---------------------------------------------------------------------------------------------


def folder_link(folder, rng, beside):
    copy = beside / f"copy-{folder.name}"
    shutil.move(folder, copy)
    folder.symlink_to(copy)


def folder_link_to_parent(folder, rng, beside):
    shutil.rmtree(folder)
    folder.symlink_to("..")


def file_instead(folder, rng, beside):
    shutil.rmtree(folder)
    folder.write_text("a")


def scratch_link(folder, rng, beside):
    """Where a new folder would be written before it takes the place of this one."""
    folder.with_name(f".{folder.name}.saving").symlink_to(beside / "folder")


ANY_FOLDER = (folder_link, folder_link_to_parent, file_instead, scratch_link)


# JSON ----------------------------------------------------------------------------------------------------------------

ODD = {
    "null": "null",
    "list": "[]",
    "object": "{}",
    "negative": "-1",
    "large": str(2**70),
    "digits": "9" * 5000,
    "infinite": "1e999",
    "nan": "NaN",
    "zero": '"\\u0000"',
    "surrogate": '"\\ud800"',
    "path": '"../../beside/secret.txt"',
    "long": '"' + "x" * 1_000_000 + '"',
    "deep": DEEP,
    "true": "true",
}


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


ANY_JSON = (
    *(odd_value(name) for name in ODD),
    whole("is_list", b"[1, 2]"),
    whole("is_number", b"17"),
    whole("is_deep", DEEP.encode()),
    whole("is_empty_object", b"{}"),
    whole("is_latin", b'{"format": "\xff\xfe"}'),
    whole("is_utf16", '{"format": 1}'.encode("utf-16")),
)


# Weights -------------------------------------------------------------------------------------------------------------


def forged_header(name, change):
    """A mutation of what a safetensors file says of itself."""

    def mutate(file, rng, beside):
        data = file.read_bytes()
        n_bytes = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + n_bytes])
        key = rng.choice([key for key in header if key != "__metadata__"])
        header = change(header, key)
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
    *(forged_header(f"kind_{kind}", changed(dtype=kind)) for kind in ("F7", "F64")),
    forged_header("one_missing", lambda header, key: {name: value for name, value in header.items() if name != key}),
    forged_header("one_more", lambda header, key: header | {"more": header[key]}),
    forged_header("a_list", lambda header, key: "[]"),
    forged_header("deep", lambda header, key: DEEP),
)


# The database of a gallery -------------------------------------------------------------------------------------------


def item_checksum(row, id_, metadata):
    return zlib.crc32(f"{row}\0{id_}\0{metadata}".encode("utf-8", "replace"))


def sql(name, *statements):
    """A mutation by statements; ``{beside}`` in them is the folder with secrets."""

    def mutate(file, rng, beside):
        with sqlite3.connect(file, isolation_level=None) as connection:
            connection.create_function("item_checksum", 3, item_checksum)
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


STATES = {"next_row": ("2000000000", "-5", "'many'", "3"), "n_items": ("2000000000", "-1")}
STATES |= {"generation": (f"{2**63 - 1}", "'x'"), "epoch": ("'../../beside/secret'", "-7")}
DESCRIBED = {"dim": ("0", "-1", "1000000000", "7", "many"), "index": ("NOPE", "HNSW99999999", "IVF1000000000,Flat")}
DESCRIBED |= {"metric": ("furthest",), "recall": ("nan", "text"), "fingerprint": ("",), "name": ("../../x",)}
BAD_PATHS = ("5", '["a"]', '"images/../../beside/secret.txt"', '"images/../images/../../beside/secret.png"')
BAD_PATHS += ('"{beside}/secret.txt"', '"images/a\\u0000b"', f'"images/{"x" * 5000}"', '"images/."')
BAD_PATHS += ('"images/../gallery.db"',)
BAD_METADATA = {"no_json": "not json", "list": "[]", "number": "1", "null": "null", "deep": f'{{"a": {DEEP}}}'}
BAD_METADATA |= {"deep_list": DEEP, "digits": '{"a": ' + "9" * 5000 + "}", "nan": '{"a": NaN}'}
BAD_METADATA |= {"surrogate": '{"label_0": "\\ud800"}'}
ANY_DATABASE = (
    sql("items_are_a_view", "ALTER TABLE items RENAME TO held", "CREATE VIEW items AS SELECT * FROM held"),
    sql(
        "endless_view",
        "DROP TABLE removed",
        "CREATE VIEW removed AS WITH RECURSIVE n(row) AS (SELECT 1 UNION ALL SELECT row + 1 FROM n)"
        " SELECT row, row AS generation FROM n",
    ),
    sql("trigger_on_delete", "CREATE TRIGGER gone AFTER DELETE ON items BEGIN DELETE FROM blocks; END"),
    sql("trigger_on_state", "CREATE TRIGGER more AFTER UPDATE ON state BEGIN UPDATE items SET metadata = '{}'; END"),
    sql("trigger_that_fails", "CREATE TRIGGER no BEFORE INSERT ON items BEGIN SELECT RAISE(ABORT, 'no'); END"),
    *(
        sql(f"{column}_{number}", f"UPDATE state SET {column} = {value}")
        for column, values in STATES.items()
        for number, value in enumerate(values)
    ),
    *(sql(f"no_{table}", f"DELETE FROM {table}") for table in ("state", "blocks", "items", "described")),
    sql("no_table", "DROP TABLE removed"),
    sql("fewer_columns", "ALTER TABLE items DROP COLUMN metadata"),
    item("id_with_zero", "id = 'a' || char(0) || 'b' WHERE row = 1"),
    item("id_empty", "id = '' WHERE row = 1"),
    sql("id_is_bytes", "UPDATE items SET id = x'ff00ff' WHERE row = 1"),
    sql("id_is_not_utf8", "UPDATE items SET id = CAST(x'61ff62' AS TEXT) WHERE row = 1"),
    item("row_below_zero", "row = -4 WHERE row = 1"),
    item("row_is_huge", f"row = {2**62} WHERE row = 1"),
    sql("removed_row_is_huge", f"INSERT INTO removed VALUES ({2**62}, 1)"),
    sql("removed_row_below_zero", "INSERT INTO removed VALUES (-3, 1)"),
    sql("block_starts_below_zero", "UPDATE blocks SET start = -8 WHERE start = 0"),
    sql("block_starts_far", "UPDATE blocks SET start = 1000000000000 WHERE start = 0"),
    sql("block_of_billions", "UPDATE blocks SET n = 2000000000 WHERE start = 0"),
    sql("block_below_zero", "UPDATE blocks SET n = -1 WHERE start = 0"),
    sql("block_is_text", "UPDATE blocks SET vectors = 'text', checksum = 1 WHERE start = 0"),
    block("block_is_short", "vectors = x'00'"),
    block("block_of_nan", "vectors = CAST(replace(hex(zeroblob(length(vectors) / 2)), '0', char(127)) AS BLOB)"),
    sql("another_format", "PRAGMA user_version = 99"),
    sql("another_application", "PRAGMA application_id = 1"),
    sql(
        "broken_schema",
        "PRAGMA writable_schema = ON",
        "UPDATE sqlite_master SET sql = 'CREATE TABLE items (' WHERE name = 'items'",
    ),
    sql("rollback_journal", "PRAGMA journal_mode = DELETE"),
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
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(held, "w") as new:
        for name in old.namelist():
            data = (
                pickle.dumps({"format": 1, "position": Writes(beside)}, 2) if name.endswith("data.pkl") else old.read(name)
            )
            new.writestr(name, data)
    file.write_bytes(held.getvalue())


def stored(name, change):
    """A mutation of what a checkpoint holds."""

    def mutate(file, rng, beside):
        import torch

        state = torch.load(file, weights_only=True)
        state.pop("checksum", None)  # who forges a checkpoint writes one of the format that had none
        state = change(state | {"format": 1}, torch)
        torch.save(state, file)

    return named(f"stored_{name}", mutate)


def position(**values):
    return lambda state, torch: state | {"position": state["position"] | values}


def first_tensor(change):
    def changed_state(state, torch):
        name = next(name for name, value in state["encoder"].items() if value.dim() > 1)
        return state | {"encoder": state["encoder"] | {name: change(state["encoder"][name], torch)}}

    return changed_state


POSITIONS = {"more": (1,), "epoch": (-5, 10**30, "a"), "batch": (-2, 10**12), "step": (None,)}
POSITIONS["best"] = (float("nan"), "good")
ANY_CHECKPOINT = (
    plain_pickle,
    forbidden_global,
    stored("list", lambda state, torch: [1, 2]),
    stored("tensor", lambda state, torch: torch.zeros(3)),
    stored("no_position", lambda state, torch: {key: value for key, value in state.items() if key != "position"}),
    stored("position_list", lambda state, torch: state | {"position": [1]}),
    *(
        stored(f"position_{name}_{number}", position(**{name: value}))
        for name, values in POSITIONS.items()
        for number, value in enumerate(values)
    ),
    stored("format_text", lambda state, torch: state | {"format": "1"}),
    *(
        stored(f"no_{part}", lambda state, torch, part=part: {key: value for key, value in state.items() if key != part})
        for part in ("encoder", "loss", "optimizer", "chunk_size")
    ),
    *(
        stored(f"odd_{part}", lambda state, torch, part=part: state | {part: ["odd"]})
        for part in ("encoder", "loss", "optimizer", "chunk_size", "precision")
    ),
    stored("chunk_below_zero", lambda state, torch: state | {"chunk_size": -1}),
    stored("other_shape", first_tensor(lambda value, torch: value[:1])),
    stored("huge_view", first_tensor(lambda value, torch: torch.zeros(1).expand(10**12))),
    stored("text_for_tensor", first_tensor(lambda value, torch: "a")),
    stored("sparse_tensor", first_tensor(lambda value, torch: torch.eye(3).to_sparse())),
    stored("half_tensor", first_tensor(lambda value, torch: value.half())),
    stored("nan_tensor", first_tensor(lambda value, torch: value * float("nan"))),
    stored("optimizer_empty", lambda state, torch: state | {"optimizer": {}}),
    stored("optimizer_groups", lambda state, torch: state | {"optimizer": {"state": {}, "param_groups": [{}]}}),
)


# A run's log ---------------------------------------------------------------------------------------------------------

ANY_LOG = (
    whole("log_without_header", b"1,0,loss,0.5\n"),
    whole("log_of_zeros", b"\0" * 1000),
    whole("log_of_text", b"step,epoch,name,value\nmany,none,loss,much\n"),
    whole("log_of_quotes", b'step,epoch,name,value\n"1,0,loss,0.5\n'),
    whole("log_of_huge_steps", f"step,epoch,name,value\n{10**40},0,loss,1e999\n".encode()),
    whole("log_of_bytes", b"step,epoch,name,value\n1,0,\xff\xfe,0.5\n"),
    whole("log_of_a_long_line", b"step,epoch,name,value\n1,0," + b"x" * 2_000_000 + b",0.5\n"),
    whole("log_of_short_lines", b"step,epoch,name,value\n1\n2,0\n"),
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


def footer_length(file, rng, beside):
    data = file.read_bytes()
    file.write_bytes(data[:-8] + struct.pack("<I", rng.choice([0, 1, 2**31, 2**32 - 1])) + data[-4:])


def footer_bytes(file, rng, beside):
    data = bytearray(file.read_bytes())
    n_bytes = struct.unpack("<I", data[-8:-4])[0]
    for _ in range(4):
        data[len(data) - 8 - rng.randrange(1, n_bytes)] = rng.randrange(256)
    file.write_bytes(data)


COLUMNS = {"vector": ("a", 1.5, None), "id": ("a", 1, None), "label_0": (None, [1, 2], 1.5), "split": ("nowhere",)}
COLUMNS["path"] = (None, "/dev/zero", "a\0b", "x" * 10_000)
ANY_TABLE = (
    footer_length,
    *(footer_bytes,) * 4,
    table("no_root", root=None),
    table("root_is_dev", root="/dev"),
    table("root_is_beside", root="{beside}"),
    table("root_is_nothing", root=""),
    *(table(f"levels_{value}", n_levels=value) for value in (None, "-1", "1000000000", "two", "0", "3")),
    table("no_fingerprint", fingerprint=None),
    table("checksum_odd", checksum="x"),
    table("format_2", sightline_format="2"),
    table(
        "vectors_are_lists",
        lambda frame, polars: frame.with_columns(polars.Series("vector", [[1.0] * (n % 3) for n in range(len(frame))])),
    ),
    *(table(f"vectors_of_{kind}", vectors(1, kind)) for kind in ("Float64", "Int64")),
    table("vectors_of_nan", vectors(float("nan"), "Float32")),
    table(
        "some_vectors_are_null",
        lambda frame, polars: frame.with_columns(
            polars.when(polars.int_range(polars.len()) > 3).then(polars.col("vector"))
        ),
    ),
    *(table(f"rows_{n}", lambda frame, polars, n=n: frame.head(n)) for n in (0, 1)),
    *(
        table(f"no_{name}", lambda frame, polars, name=name: frame.drop(name))
        for name in ("vector", "id", "path", "split", "label_0")
    ),
    *(
        table(f"{name}_{number}", column(name, value))
        for name, values in COLUMNS.items()
        for number, value in enumerate(values)
    ),
    table(
        "boxes",
        lambda frame, polars: frame.with_columns(*(polars.lit(2**40).alias(side) for side in ("x_1", "y_1", "x_2", "y_2"))),
    ),
)


# Manifests and images ------------------------------------------------------------------------------------------------

HEADER = b"path,split,label_0,label_1\n"
ANY_MANIFEST = (
    whole("manifest_of_a_pipe", HEADER + b"images/pipe.png,train,a,b\n"),
    whole("manifest_of_zeros", HEADER + b"/dev/zero,train,a,b\n"),
    whole("manifest_of_a_folder", HEADER + b"images,train,a,b\n"),
    whole("manifest_with_zero", HEADER + b"images/0-0.png\0,train,a,b\n"),
    whole("manifest_of_latin", HEADER + b"images/\xff.png,train,a,b\n"),
    whole("manifest_of_quotes", HEADER + b'"images/0-0.png,train,a,b\n'),
    whole("manifest_of_many_columns", b",".join(b"c%d" % n for n in range(20_000)) + b"\n"),
    whole("manifest_of_a_long_field", HEADER + b"images/0-0.png,train," + b"x" * 5_000_000 + b",b\n"),
    whole("manifest_of_long_paths", HEADER + b"x" * 10_000 + b",train,a,b\n"),
    whole("manifest_of_short_lines", HEADER + b"images/0-0.png\n"),
    whole("manifest_of_long_lines", HEADER + b"images/0-0.png,train,a,b,c,d\n"),
    whole("manifest_of_boxes", HEADER[:-1] + b",x_1,y_1,x_2,y_2\nimages/0-0.png,train,a,b,0,0,2147483648,1e9\n"),
    whole("manifest_of_two_headers", b"path,path,split,label\na,b,train,c\n"),
)


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
    png_that_claims(60_000, 60_000),
    png_that_claims(2**31 - 1, 1),
    png_that_claims(0, 5),
    whole("image_of_svg", b'<svg xmlns="http://www.w3.org/2000/svg" width="1e9" height="1e9"/>'),
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
