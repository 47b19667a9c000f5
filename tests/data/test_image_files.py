import io
import os
import re
import subprocess
import warnings
from contextlib import suppress
from functools import partial
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

complaint = partial(assert_refused, "", load_image)


def pixels(image: Image.Image) -> list:
    assert image.mode == "RGB"
    return np.asarray(image).tolist()


def saved(folder: Path, image: Image.Image, name: str = "a.png", **options) -> Path:
    image.save(folder / name, **options)
    return folder / name


def orientation(value: int) -> Image.Exif:
    exif = Image.Exif()
    exif[0x0112] = value
    return exif


def whole(width: int, height: int) -> tuple[int, int, int, int]:
    return 0, 0, width, height


def one(mode: str, value) -> Image.Image:
    return Image.new(mode, (1, 1), value)


def grey(kind, *values) -> Image.Image:
    return Image.fromarray(np.array([values], kind))


def see_through(mode: str, shown, hidden) -> Image.Image:
    """Two pixels, the second of the colour that is declared transparent."""
    image = Image.new(mode, (2, 1), hidden)
    if mode == "P":
        image.putpalette([0, 0, 0, 50, 60, 70, 80, 90, 100])
    image.putpixel((0, 0), shown)
    image.info["transparency"] = hidden
    return image


@pytest.mark.parametrize(
    ("name", "image", "seen"),
    [
        ("a.png", one("RGB", (1, 2, 3)), [(1, 2, 3)]),
        ("a.png", one("L", 77), [77]),
        ("a.png", one("1", 1), [255]),
        ("a.png", grey(np.uint16, 0x80FF), [0x80]),
        ("a.png", one("RGBA", (200, 0, 100, 0)), [255]),
        ("a.png", one("RGBA", (0, 0, 0, 51)), [204]),  # a fifth of black, four of white
        ("a.png", one("LA", (0, 51)), [204]),
        ("a.tif", one("CMYK", (0, 255, 255, 0)), [(255, 0, 0)]),
        ("a.png", see_through("P", 1, 2), [(50, 60, 70), 255]),
        ("a.png", see_through("L", 100, 200), [100, 255]),
        ("a.png", see_through("RGB", (9, 8, 7), (1, 2, 3)), [(9, 8, 7), 255]),
        ("a.png", see_through("1", 0, 1), [0, 255]),
        # Grey of 32 bits goes from its lowest value to its highest.
        ("a.tif", grey(np.float32, -1000, 0, 1000), [0, 128, 255]),
        ("a.tif", grey(np.float32, np.nan, 2, 4, np.inf, -np.inf), [0, 0, 255, 255, 0]),
        ("a.tif", grey(np.float32, 7, 7), [0, 0]),
        ("a.tif", grey(np.float32, np.nan, np.nan), [0, 0]),
        ("a.tif", grey(np.float32, -3e38, 3e38), [0, 255]),
        ("a.tif", grey(np.int32, -7, 0, 7), [0, 128, 255]),
    ],
)
def test_every_kind_of_pixel_as_rgb_on_white(tmp_path, name, image, seen):
    expected = [[[value] * 3 if isinstance(value, int) else list(value) for value in seen]]
    assert pixels(load_image(saved(tmp_path, image, name))) == pixels(as_rgb(image)) == expected


def test_a_grey_ppm_of_16_bits_is_not_stretched(tmp_path):
    (tmp_path / "a.pgm").write_bytes(b"P5 2 1 65535 " + bytes([0x80, 0xFF, 0x40, 0]))
    assert pixels(load_image(tmp_path / "a.pgm")) == [[[0x80] * 3, [0x40] * 3]]


@pytest.mark.parametrize("colour", [(120, 200, 33), (0, 0, 0)])
@pytest.mark.parametrize("mode", ["LAB", "HSV", "YCbCr", "RGBa", "La", "PA"])
def test_other_colour_models_show_the_same_colour(tmp_path, mode, colour):
    if mode == "LAB":
        profiles = (ImageCms.createProfile("sRGB"), ImageCms.createProfile("LAB"))
        image = ImageCms.profileToProfile(one("RGB", colour), *profiles, outputMode="LAB")
        image = Image.open(saved(tmp_path, image, "a.tif"))
    elif mode in ("RGBa", "La"):
        colour = colour if mode == "RGBa" else (90, 90, 90)
        image = one("RGBA", (*colour, 255)).convert("LA" if mode == "La" else "RGBA").convert(mode)
    elif mode == "PA":
        image = one("RGB", colour).quantize(2).convert("PA")
    else:
        image = one("RGB", colour).convert(mode)
    with image:
        assert np.abs(np.array(pixels(load_image(image))[0][0]) - colour).max() <= 14


@pytest.mark.parametrize("turn", range(1, 9))
@pytest.mark.parametrize(("suffix", "options"), [("png", {}), ("webp", {"lossless": True})])
def test_an_image_is_turned_as_its_camera_says(tmp_path, turn, suffix, options):
    stored = Image.new("RGB", (3, 2))
    stored.putpixel((0, 0), (255, 0, 0))
    seen = np.asarray(load_image(saved(tmp_path, stored, f"a.{suffix}", exif=orientation(turn), **options)))
    assert seen.shape == ((2, 3, 3) if turn <= 4 else (3, 2, 3))  # from 5 on the first row is at a side
    row, column = [(0, 0), (0, -1), (-1, -1), (-1, 0)][(turn - 1) % 4]  # of the first corner, by the EXIF standard
    assert seen[row, column].tolist() == [255, 0, 0]
    assert seen.sum() == 255  # and nowhere else


def numbered(width: int = 5, height: int = 4) -> Image.Image:
    """Red is the column, green the row."""
    rows, columns = np.mgrid[:height, :width]
    return Image.fromarray(np.stack([columns, rows, 0 * rows], axis=2).astype(np.uint8))


def test_a_box_is_left_top_right_bottom_of_the_image_as_it_is_seen(tmp_path):
    cut = np.asarray(load_image(saved(tmp_path, numbered()), (1, 2, 4, 4)))
    assert (cut.shape, cut[0, 0].tolist(), cut[-1, -1].tolist()) == ((2, 3, 3), [1, 2, 0], [3, 3, 0])
    assert load_image(tmp_path / "a.png", (0, 0, 5, 4)).size == (5, 4)
    file = saved(tmp_path, numbered(), exif=orientation(6))  # 5 x 4 stored is 4 x 5 seen
    assert load_image(file, (0, 0, 4, 5)).size == (4, 5)
    for box in ((0, 0, 5, 4), (0, 0, 4, 6), (9, 9, 12, 12)):
        assert complaint(file, box) == f"{file}: the box {box} leaves the image, which is 4 x 5"


def noise(suffix: str) -> bytes:
    content = io.BytesIO()
    picture = np.random.default_rng(0).integers(0, 256, (24, 17, 3), dtype=np.uint8)
    Image.fromarray(picture).save(content, {"jpg": "JPEG"}.get(suffix, suffix.upper()), exif=orientation(6))
    return content.getvalue()


CUT = [noise(suffix)[:-200] for suffix in ("jpg", "png", "webp")]


@pytest.mark.parametrize("content", [b"", b"\0", b"hello\n", b"\x89PNG\r\n\x1a\n", *CUT, noise("jpg")[:9]])
def test_a_file_that_is_no_image_or_cut_short(tmp_path, content):
    (tmp_path / "a.png").write_bytes(content)
    for source in (tmp_path / "a.png", tmp_path):
        assert complaint(source).startswith(f"{source}: not a readable image: ")
    assert complaint(tmp_path / "b.png") == f"{tmp_path / 'b.png'}: no such file"


EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 4 4\n%%EndComments\n0 0 4 4 rectfill\nshowpage\n%%EOF\n"


def test_a_format_that_starts_a_program_or_is_rare_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)  # no program is started
    file = tmp_path / "a.png"
    for kind in ("EPS", "TGA", "ICO", "PCX", "SGI", "DDS", "JPEG2000"):
        encoded = io.BytesIO(EPS)
        if kind != "EPS":
            numbered().save(encoded, kind)
        file.write_bytes(encoded.getvalue())
        for call in (load_image, partial(load_part, box=None, part=whole, at_least=2)):
            assert_refused(["a.png: not a readable image: cannot identify"], call, file)


def test_every_place_that_opens_images_says_which_formats():
    files = {file.name: file.read_text(encoding="utf-8") for file in Path(images.__file__).parents[1].rglob("*.py")}
    found = [(name, call) for name, text in files.items() for call in re.findall(r"\bImage\.open\(.*", text)]
    assert found
    assert [(name, call) for name, call in found if "formats=" not in call] == []


def test_pipes_devices_and_images_too_large_are_refused_and_not_waited_for(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "a.png")
    saved(tmp_path, numbered(), "c.png")
    (tmp_path / "b.png").symlink_to(tmp_path / "c.png")
    assert load_image(tmp_path / "b.png").size == (5, 4)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 9)
    for source, fault in {
        tmp_path / "a.png": "not a readable image: not a regular file",
        Path("/dev/zero"): "not a regular file",
        Path("a\0b.png"): "a\0b.png: ",
        tmp_path / ("a" * 10_000): "File name too long",
        tmp_path / "c.png": "Image size (20 pixels) exceeds limit",
    }.items():
        assert_refused([fault, str(source)], load_image, source)


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
    with warnings.catch_warnings(), suppress(InputError):
        warnings.simplefilter("ignore")  # Pillow's remarks about the damage
        assert load_image(tmp_path / "a").mode == "RGB"


def test_all_images_that_cannot_be_opened_are_named_with_their_lines(tmp_path, monkeypatch):
    def faults_of(rows, header="path,split,label"):
        (tmp_path / "m.csv").write_text("\n".join([header, *rows]))
        return assert_refused("", check_images, read_manifest(tmp_path / "m.csv")).splitlines()

    for name in "ac":
        saved(tmp_path, numbered(), f"{name}.png")
    (tmp_path / "b.png").write_text("text")
    rows = ["a.png,train,x,,,,", "b.png,train,x,,,,", "c.png,test,x,0,0,6,4", "none.png,test,y,,,,"]
    first, *faults = faults_of(rows, "path,split,label,x_1,y_1,x_2,y_2")
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
    faults = faults_of([f"{number}.png,train,x" for number in range(10)])[1:]
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


@pytest.mark.parametrize("turn", [1, 6])
@pytest.mark.parametrize("suffix", ["png", "jpg"])
@pytest.mark.parametrize("box", [None, (10, 20, 110, 100)])
def test_a_part_of_any_other_image_is_cut_from_the_whole(tmp_path, suffix, turn, box):
    file = saved(tmp_path, ramps(160, 120), f"a.{suffix}", exif=orientation(turn))
    seen = load_image(file, box)
    expected = seen.crop((8, 16, *seen.size))

    def part(width, height):
        assert (width, height) == seen.size
        return (8, 16, width, height)

    cut = load_part(file, box, part, 10)
    if (suffix, turn, box) == ("jpg", 1, None):
        assert cut.size != expected.size
    else:
        assert pixels(cut) == pixels(expected)
    assert pixels(load_part(seen, None, part, 10)) == pixels(expected)


def test_a_reduced_jpeg_of_other_colours_is_rgb_and_one_that_is_cut_short_or_missing_is_named(tmp_path):
    for mode in ("L", "CMYK"):
        file = saved(tmp_path, Image.new("RGB", (64, 64), (200, 200, 200)).convert(mode), "a.jpg")
        part = load_part(file, None, whole, 16)
        assert (part.size, part.mode) == ((16, 16), "RGB")
        assert np.abs(np.asarray(part, int) - np.asarray(load_image(file).resize((16, 16)), int)).max() < 3
    file = saved(tmp_path, ramps(500, 375), "a.jpg")
    file.write_bytes(file.read_bytes()[:3000])
    assert_refused(["a.jpg", "truncated"], load_part, file, None, whole, 50)
    assert_refused("no such file", load_part, tmp_path / "b.jpg", None, whole, 50)


@pytest.mark.parametrize("suffix", ["gif", "png", "webp", "avif", "tif"])
def test_of_an_animation_the_first_frame_is_seen(tmp_path, suffix):
    frames = [Image.new("RGB", (16, 16), colour) for colour in ((250, 0, 0), (0, 0, 250), (0, 250, 0))]
    file = saved(tmp_path, frames[0], f"a.{suffix}", save_all=True, append_images=frames[1:])
    with Image.open(file) as opened:
        assert opened.n_frames == 3
    assert np.abs(np.asarray(load_image(file), int) - (250, 0, 0)).max() < 9


# HEIC files say in their own way how they are turned, and their decoder turns them.
@pytest.mark.parametrize(("file", "kind", "turn"), [("a.avif", "AVIF", 1), ("b.AVIF", "AVIF", 6), ("c.heic", "HEIF", 1)])
def test_what_phones_write_is_read_and_turned(tmp_path, file, kind, turn, monkeypatch):
    pytest.importorskip("pillow_heif").register_heif_opener()
    (tmp_path / "beach").mkdir()
    image = ramps(48, 32).transpose(Image.Transpose.ROTATE_90) if turn == 6 else ramps(48, 32)  # 6: clockwise when shown
    saved(tmp_path / "beach", image, file, format=kind, exif=orientation(turn), quality=95)
    assert len(read_manifest(tmp_path)) == 1
    found = np.asarray(load_image(tmp_path / "beach" / file), float)
    assert found.shape == (32, 48, 3)
    assert np.abs(found - np.asarray(ramps(48, 32), float)).mean() < 4
    if kind == "HEIF":
        monkeypatch.setattr(images, "_formats", lambda: images.FORMATS)
        assert_refused(r"c\.heic.*pillow-heif.*sightline\[heic\]", load_image, tmp_path / "beach" / file)
