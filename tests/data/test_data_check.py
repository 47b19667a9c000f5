"""All that is wrong with a set of images, in one pass."""

import os
import shutil
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image

import sightline as sl
from refusals import REMEDY, assert_refused
from sightline.data import check, images
from sightline.training.recipe import read_recipe


def draw(folder, *paths, side=40):
    """Images that all differ."""
    rng = np.random.default_rng(len(paths) + side)
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)).save(folder / path)
    return folder


@pytest.fixture
def sound(tmp_path):
    """24 classes of 4 images, which the recipe `images` can train on."""
    return draw(tmp_path / "photos", *(f"class {n}/Käse {i}.png" for n in range(24) for i in range(4)))


def finding(report, word):
    """The one finding whose title has the word, and whether it is a fault."""
    (found,) = [one for one in report.findings if word in one.title]
    return found


def test_a_messy_folder_shows_all_at_once(sound, sightline):
    draw(sound, "loose.png", "class 1/deep/1.png", "class 1/deep/2.png", "lonely/1.png")
    draw(sound, "class 2/dot.png", side=1)
    cut = (sound / "class 3/Käse 0.png").read_bytes()
    (sound / "class 3/cut.png").write_bytes(cut[: len(cut) // 2])
    (sound / "class 3/empty.png").touch()
    os.mkfifo(sound / "class 3/pipe.png")
    for name in ("a.RAW", "b.raw", "notes.txt", "README"):
        (sound / "class 4" / name).write_text(name)
    shutil.copy(sound / "class 5/Käse 0.png", sound / "class 6/other.png")
    shutil.copy(sound / "class 7/Käse 0.png", sound / "class 7/copy.png")
    status, out, err = sightline("data", "check", sound, "data.val_fraction=0")
    assert (status, out, "Traceback" in err) == (2, "", False)
    for facts in (
        "106 images 1 label level 3 faults 4 warnings",
        "fault: 2 layout folders .csv",
        "    .: 1 image label",
        "    class 1/deep: 2 images 2 folders 1 class 1",
        "fault: 3 images decoded data.skip_unreadable=true",
        f"    {sound}/class 3/cut.png readable",
        f"    {sound}/class 3/pipe.png regular",
        "fault: 1 of 25 classes sampler.per_class=4 sampler.skip_small_classes=true",
        "    lonely: 1",
        "warning: 1 image more than one class",
        "    class 5/Käse 0.png = class 6/other.png",
        "warning: 1 image more than once one class",
        "    class 7/Käse 0.png = class 7/copy.png",
        "warning: 1 image 32 pixels",
        f"    {sound}/class 2/dot.png: 1 x 1",
        "warning: 4 files 2 .raw 1 .txt 1 without",
    ):
        assert any(all(fact in line for fact in facts.strip().split(" ")) for line in err.splitlines()), facts
    assert "102 images  25 classes" in err  # deep ones count where they should lie, unreadable ones nowhere
    report = sl.check_data(sound, read_recipe("images"), ["data.skip_unreadable=true", "sampler.skip_small_classes=true"])
    assert [one.title.split()[2] for one in report.faults] == ["in"]  # the layout
    assert [one.title for one in report.warnings if not REMEDY.search(one.title)] == []


def test_where_training_refuses_there_is_a_fault(tmp_path, sightline):
    folder = draw(tmp_path / "few", *(f"{n}/{i}.png" for n in range(6) for i in range(2 if n < 2 else 4)))
    for overrides, status in (([], 2), (["sampler.batch_size=8", "sampler.skip_small_classes=true"], 0)):
        assert sightline("data", "check", folder, *overrides)[0] == status
        assert sightline("train", "images", f"data.manifest={folder}", *overrides, "--dry-run")[0] == status
    report = sl.check_data(folder)
    assert "16 classes" in report.faults[-1].title  # what is left of the batch when small classes are gone
    assert sl.check_data(folder, None).findings == ()
    assert sightline("data", "check", folder, "--recipe", "none")[0] == 0
    folder = draw(tmp_path / "two", *(f"{s}/{s}{n}/{i}.png" for s in "ab" for n in range(3) for i in range(2)))
    sampler = ["sampler.name=hierarchical", "sampler.batch_size=16", "sampler.per_class=2", "data.val_fraction=0"]
    report = sl.check_data(folder, overrides=sampler)  # what the sampler warns of
    assert "2 of 2 super-labels" in finding(report, "super-labels").title
    assert report.faults == []


def test_what_is_in_several_splits(tmp_path):
    classes = ("train/class 0", "train/class 1", "test/class 2", "test/class 3")
    folder = draw(tmp_path / "photos", *(f"{name}/{number}.png" for name in classes for number in range(4)))
    shutil.copytree(folder / "train/class 0", folder / "test/class 0")
    report = sl.check_data(folder, None)
    assert len(finding(report, "more than one split; keep").details) == 4
    assert (finding(report, "label_0").details, report.faults) == (("class 0",), [])
    draw(folder, "stray/1.png")
    (folder / "stray/2.png").touch()
    report = sl.check_data(folder, None)
    assert "stray" in finding(report, "layout").details[0]
    assert "stray/2.png" in finding(report, "decoded").details[0]


def test_a_table_shows_rows_and_images_at_fault(tmp_path):
    table = draw(tmp_path, "0.png", "1.png", "2.png") / "m.csv"

    def check_rows(*rows, header="path,split,label", **options):
        table.write_text("\n".join([header, *rows]) + "\n")
        return sl.check_data(table, **options)

    report = check_rows("0.png,train,a", "gone.png,train,a", "1.png,trian,a", "2.png,test,b", recipe=None)
    assert [one.details[0].split(":")[0] for one in report.faults] == ["line 4", "line 3"]
    assert "'train'" in finding(check_rows("2.png,test,b"), "split").title
    assert_refused("'label'", check_rows, "0.png,train", header="path,split")
    report = check_rows("0.png,train", header="path,split", labelled=False)
    assert "'label_0'" in finding(report, "no label levels").title
    boxes = ["x,0.png,train,a,0,0,9,9", "y,0.png,train,b,0,0,9,8", "z,0.png,train,b,0,0,9,9"]
    report = check_rows(*boxes, header="id,path,split,label,x_1,y_1,x_2,y_2", recipe=None)
    assert finding(report, "more than one class").details == ("x = z",)


def test_a_flat_folder_is_a_fault_only_where_labels_are_asked_for(tmp_path, sightline):
    draw(tmp_path, "a.png", "b/c.png", "b/d/e.png")
    (tmp_path / "f.png").touch()
    assert [len(one.details) for one in sl.check_data(tmp_path, labelled=False, recipe=None).faults] == [1]
    assert len(sl.check_data(tmp_path).faults) >= 2
    assert "2 at depth 0, 1 at depth 1, 1 at depth 2" in sightline("data", "stats", tmp_path)[1]
    draw(tmp_path, "b/d/g.png", "b/d/h.png", "b/d/i.png")
    lines = finding(sl.check_data(tmp_path), "layout").details
    assert ["2 folders" in lines[0], "1 folder deep" in lines[1], len(lines)] == [True, True, 2]
    (tmp_path / "only").mkdir()
    (tmp_path / "only" / "f.png").touch()  # none is left: nothing to say of their depth
    assert len(sl.check_data(tmp_path / "only", labelled=False, recipe=None).findings) == 1
    flat = draw(tmp_path / "flat", "a.png")
    assert "no folder" in sightline("data", "stats", flat)[1]


def test_large_images_links_long_lists_many_suffixes_and_names_with_line_breaks(sound, tmp_path, monkeypatch, sightline):
    draw(tmp_path / "outside", "1.png")
    (sound / "class 0/link.png").symlink_to(tmp_path / "outside/1.png")
    (sound / "class 0/inside.png").symlink_to("Käse 0.png")
    (sound / "linked").symlink_to(tmp_path / "outside")
    (sound / "class 1/a\n  no fault.png").touch()
    with suppress(OSError):  # of a file system whose names are all UTF-8
        (sound / os.fsdecode(b"class 1/\xff.png")).touch()
    for number in range(12):
        (sound / f"a.{number:04}").touch()
    monkeypatch.setattr(images, "LARGE", 1000)  # decoded one at a time
    monkeypatch.setattr(check, "LARGE", 1000)
    report = sl.check_data(sound, None)
    assert len(finding(report, "million pixels").details) >= 96
    assert "2 other suffixes" in finding(report, "not read").title
    assert len(finding(report, "reached by links").details) == 2
    assert ("\n  no fault" in str(report), "more\n" in report.as_text()) == (False, True)
    assert "more\n" not in "".join(sightline("data", "check", sound, "--all")[1:])
