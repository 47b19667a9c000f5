import ast
import io
import os
import subprocess
import warnings
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageCms

from refusals import assert_refused
from sightline.data import images
from sightline.data.images import as_rgb, check_images, load_image, load_part
from sightline.data.manifest import read_manifest
from sightline.errors import InputError

ORIENTATION = 0x0112  # the EXIF tag


def pixels(image: Image.Image) -> list:
    assert image.mode == "RGB"
    return np.asarray(image).tolist()


def saved(folder: Path, image: Image.Image, name: str = "a.png", **options) -> Path:
    image.save(folder / name, **options)
    return folder / name


def complaint(source, box=None) -> str:
    return assert_refused("", load_image, source, box)


@pytest.mark.parametrize(
    ("image", "seen"),
    [
        (Image.new("RGB", (1, 1), (1, 2, 3)), (1, 2, 3)),
        (Image.new("L", (1, 1), 77), (77, 77, 77)),
        (Image.new("1", (1, 1), 1), (255, 255, 255)),
        (Image.fromarray(np.array([[0x80FF]], np.uint16)), (0x80, 0x80, 0x80)),
        (Image.new("RGBA", (1, 1), (200, 0, 100, 0)), (255, 255, 255)),
        (Image.new("RGBA", (1, 1), (0, 0, 0, 51)), (204, 204, 204)),  # a fifth of black, four of white
        (Image.new("LA", (1, 1), (0, 51)), (204, 204, 204)),
        (Image.new("CMYK", (1, 1), (0, 255, 255, 0)), (255, 0, 0)),
    ],
    ids=lambda value: value.mode if isinstance(value, Image.Image) else "",
)
def test_every_kind_of_pixel_as_rgb_on_white(tmp_path, image, seen):
    assert pixels(load_image(saved(tmp_path, image, "a.tif" if image.mode == "CMYK" else "a.png"))) == [[list(seen)]]
    assert pixels(as_rgb(image)) == [[list(seen)]]


@pytest.mark.parametrize(
    ("values", "seen"),
    [
        ([[-1000.0, 0.0, 1000.0]], [0, 128, 255]),
        ([[np.nan, 2.0, 4.0, np.inf, -np.inf]], [0, 0, 255, 255, 0]),
        ([[7.0, 7.0]], [0, 0]),
        ([[np.nan, np.nan]], [0, 0]),
        ([[-3e38, 3e38]], [0, 255]),
        (np.array([[-7, 0, 7]], np.int32), [0, 128, 255]),
    ],
)
def test_grey_of_32_bits_goes_from_its_lowest_value_to_its_highest(tmp_path, values, seen):
    stored = values if isinstance(values, np.ndarray) else np.array(values, np.float32)
    assert pixels(load_image(saved(tmp_path, Image.fromarray(stored), "a.tif"))) == [[[value] * 3 for value in seen]]


@pytest.mark.parametrize("colour", [(120, 200, 33), (0, 0, 0)])
@pytest.mark.parametrize("mode", ["LAB", "HSV", "YCbCr", "RGBa", "La", "PA"])
def test_other_colour_models_show_the_same_colour(tmp_path, mode, colour):
    if mode == "LAB":
        profiles = (ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"))
        image = ImageCms.profileToProfile(Image.new("RGB", (1, 1), colour), *profiles, outputMode="LAB")
        image = Image.open(saved(tmp_path, image, "a.tif"))
    elif mode in ("RGBa", "La"):
        colour = colour if mode == "RGBa" else (90, 90, 90)
        image = Image.new("RGBA", (1, 1), (*colour, 255)).convert("LA" if mode == "La" else "RGBA").convert(mode)
    elif mode == "PA":
        image = Image.new("RGB", (1, 1), colour).quantize(2).convert("PA")
    else:
        image = Image.new("RGB", (1, 1), colour).convert(mode)
    with image:
        assert np.abs(np.array(pixels(load_image(image))[0][0]) - colour).max() <= 14


@pytest.mark.parametrize(
    ("mode", "values", "transparent"),
    [("P", (1, 2), 2), ("L", (100, 200), 200), ("RGB", ((9, 8, 7), (1, 2, 3)), (1, 2, 3)), ("1", (0, 1), 1)],
)
def test_a_colour_declared_transparent_is_white(tmp_path, mode, values, transparent):
    image = Image.new(mode, (2, 1))
    if mode == "P":
        image.putpalette([0, 0, 0, 50, 60, 70, 80, 90, 100])
    for place, value in enumerate(values):
        image.putpixel((place, 0), value)
    shown = {"P": [50, 60, 70], "L": [100] * 3, "RGB": [9, 8, 7], "1": [0] * 3}[mode]
    assert pixels(load_image(saved(tmp_path, image, transparency=transparent))) == [[shown, [255] * 3]]


# Where the stored image's first row and its first column are seen, by the EXIF standard.
UPRIGHT = [("top", "left"), ("top", "right"), ("bottom", "right"), ("bottom", "left")]
SIDES = dict(enumerate([*UPRIGHT, ("left", "top"), ("right", "top"), ("right", "bottom"), ("left", "bottom")], start=1))


@pytest.mark.parametrize("orientation", SIDES)
@pytest.mark.parametrize("suffix", ["png", "webp"])
def test_an_image_is_turned_as_its_camera_says(tmp_path, orientation, suffix):
    stored = Image.new("RGB", (3, 2))
    stored.putpixel((0, 0), (255, 0, 0))
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    options = {"lossless": True} if suffix == "webp" else {}
    seen = np.asarray(load_image(saved(tmp_path, stored, f"a.{suffix}", exif=exif, **options)))
    row_side, column_side = SIDES[orientation]
    assert seen.shape == ((2, 3, 3) if row_side in ("top", "bottom") else (3, 2, 3))
    vertical, horizontal = (row_side, column_side) if row_side in ("top", "bottom") else (column_side, row_side)
    corner = seen[0 if vertical == "top" else -1, 0 if horizontal == "left" else -1]
    assert corner.tolist() == [255, 0, 0]
    assert seen.sum() == 255  # and nowhere else


def numbered(width: int = 5, height: int = 4) -> Image.Image:
    """Red is the column, green the row."""
    rows, columns = np.mgrid[:height, :width]
    return Image.fromarray(np.stack([columns, rows, 0 * rows], axis=2).astype(np.uint8))


def test_a_box_is_left_top_right_bottom_of_the_image_as_it_is_seen(tmp_path):
    cut = np.asarray(load_image(saved(tmp_path, numbered()), (1, 2, 4, 4)))
    assert cut.shape == (2, 3, 3)
    assert cut[0, 0].tolist() == [1, 2, 0]
    assert cut[-1, -1].tolist() == [3, 3, 0]
    assert load_image(tmp_path / "a.png", (0, 0, 5, 4)).size == (5, 4)
    exif = Image.Exif()
    exif[ORIENTATION] = 6  # 5 x 4 stored is 4 x 5 seen
    file = saved(tmp_path, numbered(), exif=exif)
    assert load_image(file, (0, 0, 4, 5)).size == (4, 5)
    for box in ((0, 0, 5, 4), (0, 0, 4, 6), (9, 9, 12, 12)):
        assert complaint(file, box) == f"{file}: the box {box} leaves the image, which is 4 x 5"


def noise(suffix: str) -> bytes:
    content = io.BytesIO()
    exif = Image.Exif()
    exif[ORIENTATION] = 6
    picture = np.random.default_rng(0).integers(0, 256, (24, 17, 3), dtype=np.uint8)
    Image.fromarray(picture).save(content, {"jpg": "JPEG"}.get(suffix, suffix.upper()), exif=exif)
    return content.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0",
        b"hello\n",
        b"\x89PNG\r\n\x1a\n",
        *(noise(suffix)[:-200] for suffix in ("jpg", "png", "webp")),
        noise("jpg")[:9],
    ],
    ids=["empty", "zero", "text", "header", "jpg", "png", "webp", "short"],
)
def test_a_file_that_is_no_image_or_cut_short(tmp_path, content):
    (tmp_path / "a.png").write_bytes(content)
    assert complaint(tmp_path / "a.png").startswith(f"{tmp_path / 'a.png'}: not a readable image: ")
    assert complaint(tmp_path).startswith(f"{tmp_path}: not a readable image: ")  # a folder
    assert complaint(tmp_path / "b.png") == f"{tmp_path / 'b.png'}: no such file"


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\n0 0 4 4 rectfill\nshowpage\n%%EOF\n"


@pytest.mark.parametrize("part", [False, True])
def test_a_format_that_starts_a_program_or_is_rare_is_refused(tmp_path, monkeypatch, part):
    def start(*_, **__):
        raise AssertionError("a program was started")

    monkeypatch.setattr(subprocess, "Popen", start)
    file = tmp_path / "a.png"
    contents = [EPS]
    for kind in ("TGA", "ICO", "PCX", "SGI", "DDS", "JPEG2000"):
        encoded = io.BytesIO()
        numbered().save(encoded, kind)
        contents.append(encoded.getvalue())
    for content in contents:
        file.write_bytes(content)
        with pytest.raises(InputError, match=r"a\.png: not a readable image: cannot identify"):
            load_part(file, None, lambda width, height: (0, 0, width, height), 2) if part else load_image(file)


def test_every_place_that_opens_images_says_which_formats():
    found = [
        (file.name, call.lineno, [keyword.arg for keyword in call.keywords])
        for file in Path(images.__file__).parents[1].rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(call, ast.Call) and ast.unparse(call.func) in ("Image.open", "PIL.Image.open")
    ]
    assert found
    assert [(name, line) for name, line, keywords in found if "formats" not in keywords] == []


def test_pipes_devices_and_images_too_large_are_refused_and_not_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "a.png")
    assert complaint(tmp_path / "a.png") == f"{tmp_path / 'a.png'}: not a readable image: not a regular file"
    assert "not a regular file" in complaint(Path("/dev/zero"))
    (tmp_path / "b.png").symlink_to(tmp_path / "c.png")
    saved(tmp_path, numbered(), "c.png")
    assert load_image(tmp_path / "b.png").size == (5, 4)
    assert complaint(Path("a\0b.png")).startswith("a\0b.png: ")
    assert "File name too long" in complaint(tmp_path / ("a" * 10_000))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 9)
    assert "Image size (20 pixels) exceeds limit" in complaint(tmp_path / "c.png")


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    suffix=st.sampled_from(["jpg", "png"]),
    changes=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=20),
)
def test_damaged_bytes_give_an_image_or_a_message(tmp_path, suffix, changes):
    content = bytearray(noise(suffix))
    for place, value in changes:
        content[int(place * len(content))] = value
    (tmp_path / "a").write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's remarks about the damage
        with suppress(InputError):
            assert load_image(tmp_path / "a").mode == "RGB"


def test_all_images_that_cannot_be_opened_are_named_with_their_lines(tmp_path, monkeypatch):
    for name in "ac":
        saved(tmp_path, numbered(), f"{name}.png")
    (tmp_path / "b.png").write_text("text")
    rows = ["a.png,train,x,,,,", "b.png,train,x,,,,", "c.png,test,x,0,0,6,4", "none.png,test,y,,,,"]
    (tmp_path / "m.csv").write_text("\n".join(["path,split,label,x_1,y_1,x_2,y_2", *rows]))
    first, *faults = assert_refused("", check_images, read_manifest(tmp_path / "m.csv")).splitlines()
    assert first == f"{tmp_path / 'm.csv'}: 3 faults"
    for fault, facts in zip(
        faults, ("line 3 b.png readable", "line 4 c.png leaves", "line 5 none.png no such"), strict=True
    ):
        assert all(fact in fault for fact in facts.split())
    assert_refused(r"2 faults\n  line 4: .*\n  line 5", check_images, read_manifest(tmp_path / "m.csv").split("test"))
    tree = tmp_path / "tree" / "cat"
    tree.mkdir(parents=True)
    (tree / "b.png").touch()
    assert_refused([f"{tree.parent}: 1 fault\n  {tree / 'b.png'}: not a"], check_images, read_manifest(tree.parent))
    monkeypatch.setattr(images, "CHUNK", 3)
    lines = [f"{number}.png,train,x" for number in range(10)]
    (tmp_path / "m.csv").write_text("\n".join(["path,split,label", *lines]))
    faults = assert_refused("", check_images, read_manifest(tmp_path / "m.csv")).splitlines()[1:]
    assert [fault.split(":")[0].strip() for fault in faults] == [f"line {number + 2}" for number in range(10)]


def ramps(width, height):
    """Red grows from left to right, green from top to bottom: a pixel tells where it was."""
    across, down = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([across, down, np.full_like(across, 90)], 2).round().astype(np.uint8))


@pytest.mark.parametrize(("at_least", "scale"), [(201, 1), (200, 1), (101, 1), (100, 2), (51, 2), (50, 4), (25, 8), (3, 8)])
def test_a_jpeg_is_decoded_at_the_smallest_scale_that_covers(tmp_path, at_least, scale):
    file = saved(tmp_path, ramps(500, 375), "a.jpg", quality=95)
    box = (83, 42, 283, 342)
    part = load_part(file, None, lambda width, height: box if (width, height) == (500, 375) else None, at_least)
    exact = load_image(file).crop(box)
    assert min(part.size) >= min(at_least, 200)
    assert [abs(side - whole / scale) < 2 for side, whole in zip(part.size, exact.size, strict=True)] == [True, True]
    if scale == 1:
        assert pixels(part) == pixels(exact)
    difference = np.asarray(part.resize((20, 30)), float) - np.asarray(exact.resize((20, 30)), float)
    assert np.abs(difference).max() < 6
    assert pixels(part) == pixels(load_part(file, None, lambda width, height: box, at_least))


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("suffix", ["png", "jpg"])
@pytest.mark.parametrize("box", [None, (10, 20, 110, 100)])
def test_a_part_of_any_other_image_is_cut_from_the_whole(tmp_path, suffix, turned, box):
    exif = Image.Exif()
    exif[0x0112] = 6 if turned else 1
    file = saved(tmp_path, ramps(160, 120), f"a.{suffix}", exif=exif)
    whole = load_image(file, box)

    def part(width, height):
        assert (width, height) == whole.size
        return (8, 16, width, height)

    reduced = suffix == "jpg" and not turned and box is None
    cut = load_part(file, box, part, 10)
    assert (cut.size != whole.crop((8, 16, *whole.size)).size) == reduced
    if not reduced:
        assert pixels(cut) == pixels(whole.crop((8, 16, *whole.size)))
    assert pixels(load_part(whole, None, part, 10)) == pixels(whole.crop((8, 16, *whole.size)))


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_a_reduced_jpeg_of_other_colours_is_rgb(tmp_path, mode):
    file = saved(tmp_path, Image.new("RGB", (64, 64), (200, 200, 200)).convert(mode), "a.jpg")
    part = load_part(file, None, lambda width, height: (0, 0, width, height), 16)
    assert (part.size, part.mode) == ((16, 16), "RGB")
    assert np.abs(np.asarray(part, int) - np.asarray(load_image(file).resize((16, 16)), int)).max() < 3


def test_a_reduced_jpeg_that_is_cut_short_or_missing_is_named(tmp_path):
    file = saved(tmp_path, ramps(500, 375), "a.jpg")
    file.write_bytes(file.read_bytes()[:3000])
    assert_refused(["a.jpg", "truncated"], load_part, file, None, lambda width, height: (0, 0, width, height), 50)
    assert_refused("no such file", load_part, tmp_path / "b.jpg", None, lambda width, height: (0, 0, width, height), 50)


@pytest.mark.parametrize("suffix", ["gif", "png", "webp", "avif", "tif"])
def test_of_an_animation_the_first_frame_is_seen(tmp_path, suffix):
    frames = [Image.new("RGB", (16, 16), colour) for colour in ((250, 0, 0), (0, 0, 250), (0, 250, 0))]
    file = saved(tmp_path, frames[0], f"a.{suffix}", save_all=True, append_images=frames[1:])
    with Image.open(file) as opened:
        assert opened.n_frames == 3
    assert np.abs(np.asarray(load_image(file), int) - (250, 0, 0)).max() < 9


def test_a_grey_ppm_of_16_bits_is_not_stretched(tmp_path):
    (tmp_path / "a.pgm").write_bytes(b"P5 2 1 65535 " + bytes([0x80, 0xFF, 0x40, 0]))
    assert pixels(load_image(tmp_path / "a.pgm")) == [[[0x80] * 3, [0x40] * 3]]


# HEIC files say in their own way how they are turned, and their decoder turns them.
@pytest.mark.parametrize(("file", "kind", "turned"), [("a.avif", "AVIF", 0), ("b.AVIF", "AVIF", 6), ("c.heic", "HEIF", 0)])
def test_what_phones_write_is_read_and_turned(tmp_path, file, kind, turned):
    pytest.importorskip("pillow_heif").register_heif_opener()
    (tmp_path / "beach").mkdir()
    exif = Image.Exif()
    exif[0x0112] = turned or 1  # 6: show it turned by 90 degrees clockwise
    image = ramps(48, 32).transpose(Image.Transpose.ROTATE_90) if turned else ramps(48, 32)
    image.save(tmp_path / "beach" / file, format=kind, exif=exif, quality=95)
    assert len(read_manifest(tmp_path)) == 1
    found = np.asarray(load_image(tmp_path / "beach" / file), float)
    assert found.shape == (32, 48, 3)
    assert np.abs(found - np.asarray(ramps(48, 32), float)).mean() < 4


def test_heic_without_its_decoder_names_the_package(tmp_path, monkeypatch):
    pillow_heif = pytest.importorskip("pillow_heif")
    pillow_heif.register_heif_opener()
    ramps(48, 32).save(tmp_path / "one.heic", format="HEIF")
    monkeypatch.setattr(images, "_formats", lambda: images.FORMATS)
    assert_refused(r"one\.heic.*pillow-heif.*sightline\[heic\]", load_image, tmp_path / "one.heic")
