"""What the README says is run, small."""

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from sightline.cli.main import run

README = (Path(__file__).parent.parent / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


def test_own_images_in_five_lines_and_the_python_after_them(image_tree, tiny_recipe, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(image_tree, "photos")
    shutil.copy(image_tree / "super0/class00/0.png", "query.jpg")
    (commands,) = [block for block in blocks("bash") if "photos" in block]
    lines = [shlex.split(line, comments=True) for line in commands.strip().splitlines()]
    assert len(lines) <= 5
    for words in lines:
        monkeypatch.setattr(sys, "argv", words + (tiny_recipe if words[1] == "train" else []))
        with pytest.raises(SystemExit) as ended:
            run()
        assert not ended.value.code, words
    _, first_hit = capsys.readouterr().out.partition("query.jpg\n")[2].split("\n", 1)[0].split("  ", 2)[1:]
    assert "photos/super0/class00/0.png" in first_hit

    python = blocks("python")
    assert len(python) == 2
    names = {}
    for block in python:
        exec(block, names)
    assert names["loss"].item() >= 0
    assert "photos/super" in capsys.readouterr().out


def test_both_commands_are_named_and_pictures_are_there():
    assert "make demo" in README
    assert "make test" in README
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)
    assert len(pictures) == 1
    assert all((Path(__file__).parent.parent / picture).is_file() for picture in pictures)
