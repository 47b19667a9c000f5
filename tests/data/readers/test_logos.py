import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from package_archives import contents, write_npm
from PIL import Image, ImageDraw

from sightline.data.images import check_images, load_image
from sightline.data.manifest import read_manifest
from sightline.data.readers.logos import (
    DRAWINGS,
    PACKAGES,
    Drawing,
    alike_pairs,
    brand_key,
    ink_of,
    read_drawings,
    same_brands,
    write_logos,
)
from sightline.errors import InputError

CIRCLE = '<circle cx="12" cy="12" r="10" {}/>'
SQUARE = '<path d="M3 3h18v18h-18z" {}/>'
CROSS = '<path d="M10 1h4v9h9v4h-9v9h-4v-9h-9v-4h9z" {}/>'
WIDE = '<path d="M0 8h24v6h-24z" {}/>'
TRIANGLE = '<path d="M12 2l10 20h-20z" {}/>'


def svg(body, colour=""):
    return f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 24 24">{body.format(colour)}</svg>'


def iconify(icons, categories=None):
    drawn = {name: {"body": body.format('fill="currentColor"')} for name, body in icons.items()}
    files = {"icons.json": json.dumps({"prefix": "x", "icons": drawn, "width": 24, "height": 24}).encode()}
    return files | ({"metadata.json": json.dumps({"categories": categories}).encode()} if categories else {})


def thesvg(categories, aliases=(), **variants):
    lists = f"export const categories = {json.dumps(categories)};\nexport const aliases = {json.dumps(aliases)};\n"
    drawn = "".join(f'  "{name}": `{text}`,\n' for name, text in variants.items())
    return (lists + "export const svg = `x`;\nexport const variants = {\n" + drawn + "};\n").encode()


def devicon(name, tags, altnames=(), versions=("original", "plain-wordmark")):
    return {"name": name, "altnames": list(altnames), "tags": tags, "versions": {"svg": list(versions)}}


FILES = {
    # The circle again in red, another size and with a margin; a wordmark; white on white; one that is no SVG.
    "logos": iconify({"acme-icon": CIRCLE, "acme": WIDE, "solo": SQUARE, "vue": TRIANGLE}),
    "devicon": {
        "devicon.json": json.dumps([devicon("acme", ["tool", "x"]), devicon("globex", ["language"], ["gx"])]).encode(),
        "icons/acme/acme-original.svg": svg(SQUARE, 'fill="#00f"').encode(),
        "icons/acme/acme-plain-wordmark.svg": svg(TRIANGLE).encode(),
        "icons/globex/globex-original.svg": svg(CROSS, 'fill="#0a0"').encode(),
    },
    "simple-icons": {
        "data/simple-icons.json": json.dumps(
            [
                {"title": "Acme", "slug": "acme", "hex": "FF0000"},
                {"title": "Vue.js", "slug": "vuedotjs", "hex": "00FF00"},
                {"title": "GX", "slug": "gx", "hex": "112233"},
            ]
        ).encode(),
        "icons/acme.svg": svg('<circle cx="9" cy="9" r="5" {}/>').encode(),
        "icons/vuedotjs.svg": svg(CROSS).encode(),
        "icons/gx.svg": svg(TRIANGLE).encode(),
    },
    "thesvg": {
        "dist/acme.js": thesvg(["Software", "Finance"], default=svg(CROSS, 'fill="red"'), wordmark=svg(TRIANGLE)),
        "dist/vue-badge.js": thesvg(["Framework"], default=svg(CIRCLE + SQUARE.replace("{}", 'fill="#fff"'))),
        "dist/globex.js": thesvg(
            [], default=svg(WIDE), mono=svg(SQUARE, 'fill="white"'), dark="<svg", light=svg(TRIANGLE, 'fill="navy"')
        ),
    },
}


@pytest.fixture
def packages(tmp_path):
    return {name: write_npm(tmp_path / "npm", PACKAGES[name].name, files) for name, files in FILES.items()}


def table_of(tmp_path, packages):
    written = write_logos(tmp_path / "logos", root=tmp_path / "npm", packages=packages)
    manifest = read_manifest(written)
    check_images(manifest)
    return manifest.table


def test_brands_of_several_packages_meet_and_duplicates_go(tmp_path, packages):
    table = table_of(tmp_path, packages)
    drawn = {brand: sorted(group["name"]) for (brand,), group in table.group_by("label_0")}
    # The simple-icons circle of acme is the logos circle; the wordmark is not there. The crosses of acme (thesvg), globex
    # (devicon) and vue (simple-icons) are one drawing of three brands: all go, and so do the triangles of vue and globex.
    assert drawn == {"acme": ["acme-icon", "acme-original"]}
    assert set(table["label_1"]) == {"Finance"}  # the catch-all before it does not tell anything
    page = (tmp_path / "logos" / "SOURCES.md").read_text()
    assert "2 images, classes 1 < 1 (brand < category)" in page
    assert "- left out: near-duplicates of an earlier drawing of the brand: 1\n" in page
    assert "- left out: blank on white: 1\n" in page
    assert "- left out: cannot be rendered: 1\n" in page
    assert "- left out: wordmarks, more than twice as wide as high or the reverse: 1\n" in page
    assert "| devicon | 1.0.0 | CC0-1.0 | 1 |" in page


def test_every_drawing_is_kept_or_counted(tmp_path, packages):
    table = table_of(tmp_path, packages)
    page = (tmp_path / "logos" / "SOURCES.md").read_text()
    counts = dict(line[2:].rsplit(": ", 1) for line in page.splitlines() if line.startswith("- "))
    left_out = sum(int(number) for what, number in counts.items() if what.startswith("left out"))
    assert int(counts["of brands drawn at least twice"]) - left_out == len(table)


def test_rendered_on_white_in_the_colour_of_the_brand(tmp_path):
    packages = {
        "simple-icons": write_npm(
            tmp_path / "npm",
            "simple-icons",
            {
                "data/simple-icons.json": b'[{"title": "A", "slug": "acme", "hex": "FF0000"}]',
                "icons/acme.svg": svg(SQUARE).encode(),
            },
        ),
        "bxl": write_npm(tmp_path / "npm", "@iconify-json/bxl", iconify({"acme": CROSS}, {"Shops": ["acme"]})),
    }
    table = table_of(tmp_path, packages)
    of = {row["collection"]: load_image(tmp_path / "logos" / row["path"]) for row in table.iter_rows(named=True)}
    assert of["simple-icons"].size == (128, 128)
    assert [of["simple-icons"].getpixel(at) for at in ((2, 2), (64, 64))] == [(255, 255, 255), (255, 0, 0)]
    assert [of["bxl"].getpixel(at) for at in ((2, 2), (64, 64))] == [(255, 255, 255), (0, 0, 0)]
    assert set(table["label_1"]) == {"Shops"}


def test_two_folders_are_alike(tmp_path, packages):
    for name in ("one", "two"):
        write_logos(tmp_path / name, root=tmp_path / "npm", packages=packages)
    assert contents(tmp_path / "one") == contents(tmp_path / "two")


def test_a_drawing_of_two_brands_joins_them_if_one_name_is_in_the_other(tmp_path):
    packages = {
        "logos": write_npm(tmp_path / "npm", "@iconify-json/logos", iconify({"teams": CIRCLE, "teams-light": SQUARE})),
        "bxl": write_npm(
            tmp_path / "npm", "@iconify-json/bxl", iconify({"big-teams": CIRCLE, "big-teams-alt": TRIANGLE, "teams": CROSS})
        ),
    }
    table = table_of(tmp_path, packages)
    assert set(table["label_0"]) == {"teams"}
    assert sorted(table["name"]) == ["big-teams-alt", "teams", "teams", "teams-light"]
    assert table["split"].n_unique() == 1


def test_same_brands_from_aliases_and_endings():
    def drawing(brand, *aliases):
        return Drawing("x", brand, brand, "", (), aliases)

    found = same_brands([drawing("vue"), drawing("vuejs"), drawing("apachekafka"), drawing("kafka"), drawing("go")])
    assert found == {"vue": "vue", "vuejs": "vue", "apachekafka": "kafka", "kafka": "kafka", "go": "go"}
    elsewhere = Drawing("y", "golang", "golang", "")
    assert same_brands([drawing("go", "golang"), elsewhere]) == {"go": "go", "golang": "go"}
    both_ways = Drawing("y", "golang", "golang", "", (), ("go",))
    assert len(set(same_brands([drawing("go", "golang"), both_ways]).values())) == 1
    assert same_brands([drawing("x", "twitter"), drawing("twitter")])["twitter"] == "twitter"  # a brand of its own


def test_aliases_lead_to_the_brand(tmp_path):
    packages = {
        "devicon": write_npm(
            tmp_path / "npm",
            "devicon",
            {
                "devicon.json": json.dumps([devicon("golang", ["language"], ["gopher"])]).encode(),
                "icons/golang/golang-original.svg": svg(SQUARE).encode(),
            },
        ),
        "bxl": write_npm(tmp_path / "npm", "@iconify-json/bxl", iconify({"gopher": CROSS})),
    }
    table = table_of(tmp_path, packages)
    assert set(table["label_0"]) == {"golang"}
    assert set(table["label_1"]) == {"language"}


def test_names_are_compared_by_letters_and_digits():
    assert brand_key("nodedotjs") == brand_key("Node.js") == brand_key("node-js") == "nodejs"
    assert brand_key("AT&T") == "atandt"
    assert brand_key("dotenv") == "dotenv"
    assert brand_key("polkadot") == "polkadot"


def picture(seed, size=96, margin=0, colour=(0, 0, 0)):
    """A few random polygons."""
    rng = np.random.default_rng(seed)
    image = Image.new("RGB", (size + 2 * margin,) * 2, "white")
    for _ in range(3):
        corners = [tuple(margin + size * at) for at in rng.random((4, 2))]
        ImageDraw.Draw(image).polygon(corners, fill=colour)
    return image


def test_alike_is_blind_to_size_margin_and_colour_and_to_nothing_else():
    inks = [ink_of(picture(seed)) for seed in range(40)]
    inks += [ink_of(picture(seed, 160, 13, (200, 30, 30))) for seed in range(40)]
    pairs = alike_pairs(inks)
    assert pairs == [(seed, seed + 40) for seed in range(40)]
    by_definition = []
    for j in range(80):
        for i in range(j):
            bits = bin(int(inks[i].hash) ^ int(inks[j].hash)).count("1")
            if bits <= 8 and np.mean(abs(inks[i].pixels - inks[j].pixels)) <= 0.05:
                by_definition.append((i, j))
    assert sorted(pairs) == sorted(by_definition)
    assert alike_pairs([]) == []


def test_blank_has_no_ink_and_aspect_is_of_what_is_drawn():
    assert ink_of(Image.new("RGB", (20, 20), "white")) is None
    image = Image.new("RGB", (50, 50), "white")
    ImageDraw.Draw(image).rectangle((10, 20, 39, 29), fill="black")  # both ends belong to it
    assert ink_of(image).aspect == pytest.approx(3)


def test_every_package_has_a_reader_and_a_checksum():
    assert set(PACKAGES) == set(DRAWINGS)
    assert len(PACKAGES) == 9
    assert {len(package.integrity) for package in PACKAGES.values()} == {88}


@pytest.mark.parametrize(
    ("collection", "files", "message"),
    [
        ("logos", {"other.json": b"{}"}, "has no icons.json"),
        ("logos", {"icons.json": b"{"}, "icons.json is not JSON"),
        ("logos", {"icons.json": b"{}"}, "not laid out as logos is: KeyError 'icons'"),
        ("bxl", iconify({}), "has no drawing where bxl keeps them"),
        ("devicon", {"devicon.json": b'[{"name": "a"}]'}, "not laid out as devicon is: KeyError 'versions'"),
        ("simple-icons", {"data/simple-icons.json": b"[1]"}, "not laid out as simple-icons is: TypeError"),
        ("thesvg", {"dist/a.js": b"export const categories = [};"}, "has no drawing where thesvg keeps them"),
    ],
)
def test_wrong_content_is_named(tmp_path, collection, files, message):
    package = write_npm(tmp_path, collection, files)
    with pytest.raises(InputError, match=message) as error:
        read_drawings(collection, tmp_path / package.archive_name())
    assert package.archive_name() in str(error.value)


def test_a_crash_in_the_middle_leaves_nothing(tmp_path, packages, monkeypatch):
    write_bytes = Path.write_bytes

    def full_disk(path, content):
        if "original" in path.name:
            raise OSError(28, "No space left on device")
        return write_bytes(path, content)

    monkeypatch.setattr(Path, "write_bytes", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_logos(tmp_path / "out" / "logos", root=tmp_path / "npm", packages=packages)
    assert list((tmp_path / "out").iterdir()) == []


def test_no_brand_drawn_twice_is_refused(tmp_path):
    packages = {"bxl": write_npm(tmp_path / "npm", "@iconify-json/bxl", iconify({"acme": CROSS, "globex": CIRCLE}))}
    with pytest.raises(InputError, match="bxl: no brand has two drawings that differ"):
        write_logos(tmp_path / "logos", root=tmp_path / "npm", packages=packages)
    assert not (tmp_path / "logos").exists()


def test_splits_follow_the_brand(tmp_path):
    """Many brands of two drawings that no other brand has."""

    def bars(seed):
        rng = np.random.default_rng(seed)
        return "".join(
            f'<path d="M{x:.1f} {y:.1f}h{w:.1f}v{h:.1f}h-{w:.1f}z" />'
            for x, y, w, h in zip(*rng.uniform(0, 14, (2, 5)), *rng.uniform(3, 10, (2, 5)), strict=True)
        )

    packages = {
        name: write_npm(
            tmp_path / "npm", PACKAGES[name].name, iconify({f"brand{i}": bars(100 * shift + i) for i in range(40)})
        )
        for shift, name in enumerate(("logos", "bxl"))
    }
    table = table_of(tmp_path, packages)
    assert table["label_0"].n_unique() > 30
    assert table.group_by("label_0").agg(pl.col("split").n_unique())["split"].max() == 1
    assert {"train", "test"} <= set(table["split"])
