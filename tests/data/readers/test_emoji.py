import hashlib
import json

import polars as pl
import pytest
from package_archives import contents, png, write_npm
from PIL import Image

from sightline.data.images import check_images
from sightline.data.manifest import read_manifest
from sightline.data.readers.emoji import PACKAGES, write_emoji
from sightline.data.readers.source import split_of
from sightline.errors import InputError

VENDORS = ("apple", "google")
NAMES = [f"face-{number}" for number in range(40)]


def entries(**changes):
    """40 emoji that both vendors draw, one that only the first does."""
    rows = []
    for number, name in enumerate([*NAMES, "lonely"]):
        row = {
            "short_name": name,
            "name": name.upper(),
            "subcategory": f"sub-{number % 4}",
            "category": f"cat-{number % 2}",
        }
        row |= {"image": f"{number:04x}.png", "has_img_apple": True, "has_img_google": name != "lonely"}
        rows.append(row | changes)
    return rows


def pictures(vendor, rows):
    """Half transparent, another colour for each; two emoji of apple look alike."""
    shades = {row["image"]: (0 if number == 1 and vendor == "apple" else 5 * number) for number, row in enumerate(rows)}
    return {f"img/{vendor}/64/{image}": png((shade, 100, 0, 128)) for image, shade in shades.items()}


@pytest.fixture
def packages(tmp_path):
    rows = entries()
    listed = json.dumps(rows).encode()
    return {
        vendor: write_npm(tmp_path / "npm", f"emoji-{vendor}", {"emoji.json": listed, **pictures(vendor, rows)})
        for vendor in VENDORS
    }


def test_images_of_all_vendors_with_their_tree(tmp_path, packages):
    written = write_emoji(tmp_path / "emoji", root=tmp_path / "npm", packages=packages)
    manifest = read_manifest(written)
    check_images(manifest)
    assert (len(manifest), manifest.n_levels) == (80, 3)
    table = manifest.table
    assert set(table["label_0"]) == set(NAMES)  # "lonely" has one drawing: it could not be found
    assert table.group_by("label_0").agg(pl.col("vendor").sort())["vendor"].to_list() == [sorted(VENDORS)] * 40
    seven = table.filter(pl.col("label_0") == "face-7").row(0, named=True)
    assert (seven["label_1"], seven["label_2"], seven["name"]) == ("sub-3", "cat-1", "face-7")
    pixel = Image.open(tmp_path / "emoji" / seven["path"]).getpixel((0, 0))
    assert pixel == pytest.approx((255 - 128 / 255 * (255 - 35), 255 - 128 / 255 * 155, 255 - 128 / 255 * 255), abs=1)


def test_splits_share_no_class_and_never_change(tmp_path, packages):
    table = pl.read_csv(write_emoji(tmp_path / "emoji", root=tmp_path / "npm", packages=packages))
    assert table.group_by("label_0").agg(pl.col("split").n_unique())["split"].max() == 1
    for name, split in table.select("label_0", "split").iter_rows():
        eighth_bytes = hashlib.sha256(f"emoji/{name}".encode()).hexdigest()[:16]
        place = int(eighth_bytes, 16) / 16**16
        assert split == ("test" if place < 0.5 else "val" if place < 0.55 else "train")
    many = [split_of("emoji", str(number)) for number in range(20_000)]
    shares = [many.count(split) / 20_000 for split in ("test", "val", "train")]
    assert shares == pytest.approx([0.5, 0.05, 0.45], abs=0.01)


def test_sources_name_package_version_licence_and_counts(tmp_path, packages):
    write_emoji(tmp_path / "emoji", root=tmp_path / "npm", packages=packages)
    page = (tmp_path / "emoji" / "SOURCES.md").read_text()
    assert "80 images, classes 40 < 4 < 2" in page
    assert "| emoji-apple | 1.0.0 | CC0-1.0 | 40 |" in page
    assert "\n2 emoji share a picture" in page


def test_a_second_call_changes_nothing_and_two_folders_are_alike(tmp_path, packages):
    write_emoji(tmp_path / "one", root=tmp_path / "npm", packages=packages)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "one").rglob("*")}
    write_emoji(tmp_path / "one", root=tmp_path / "nowhere", packages=packages)
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "one").rglob("*")} == before
    write_emoji(tmp_path / "two", root=tmp_path / "npm", packages=packages)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def replaced(tmp_path, packages, vendor, files):
    return packages | {vendor: write_npm(tmp_path / "npm", f"emoji-{vendor}", files)}


@pytest.mark.parametrize(
    ("vendor", "change", "message"),
    [
        ("apple", lambda files: files.pop("emoji.json"), r"emoji-apple-1.0.0.tgz: 1 fault\n  has no emoji.json"),
        ("apple", lambda files: files.update({"emoji.json": b"[{"}), "emoji.json is not JSON: Expecting property name"),
        (
            "apple",
            lambda files: files.update({"emoji.json": b'[{"a": 1}]'}),
            "is not a list of emoji with category, has_img",
        ),
        ("apple", lambda files: files.update({"emoji.json": b"[]"}), "names no emoji that all of apple, google draw"),
        (
            "google",
            lambda files: files.pop("img/google/64/0003.png"),
            r"google-1.0.0.tgz: 1 fault\n  has no img/google/64/0003",
        ),
        (
            "google",
            lambda files: files.update({"img/google/64/0003.png": b"x"}),
            "0003.png is not a readable image: cannot",
        ),
        (
            "google",
            lambda files: files.update({"img/google/64/0003.png": png((9, 9, 9, 9))[:48]}),
            "0003.png is not a readable image",
        ),
    ],
)
def test_wrong_content_is_named_and_leaves_nothing(tmp_path, packages, vendor, change, message):
    rows = entries()
    files = {"emoji.json": json.dumps(rows).encode(), **pictures(vendor, rows)}
    change(files)
    with pytest.raises(InputError, match=message):
        write_emoji(tmp_path / "out" / "emoji", root=tmp_path / "npm", packages=replaced(tmp_path, packages, vendor, files))
    assert list((tmp_path / "out").iterdir()) == []


def test_the_pinned_packages_are_four_vendors_of_one_version():
    assert list(PACKAGES) == ["apple", "google", "twitter", "facebook"]
    assert {package.version for package in PACKAGES.values()} == {"16.0.0"}
    assert {len(package.integrity) for package in PACKAGES.values()} == {88}  # base64 of 64 bytes
