"""What the README says is run, small; its other commands are held against the command line."""

import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from command_lines import faults, lines_of
from sightline.cli.main import run

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
TUTORIAL = (ROOT / "docs" / "tutorials" / "own-folder.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.S)


def answer(address):
    for _ in range(300):
        try:
            with urllib.request.urlopen(address, timeout=5) as response:
                return response.read().decode()
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"{address} does not answer")


def test_folder_to_search_page_in_under_ten_commands_and_the_python_after_them(
    image_tree, tiny_recipe, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(image_tree, "photos")
    shutil.copy(image_tree / "super0/class00/0.png", "query.jpg")
    (commands,) = [block for block in blocks("bash") if "photos" in block]
    lines = [shlex.split(line, comments=True) for line in commands.strip().splitlines()]
    assert len(lines) < 10
    assert [words[0] for words in lines[:3]] == ["python3", ".", "pip"]  # this environment stands for the new one
    *before, serving = lines[3:]
    for words in before:
        monkeypatch.setattr(sys, "argv", words + (tiny_recipe if words[1] == "train" else []))
        with pytest.raises(SystemExit) as ended:
            run()
        assert not ended.value.code, words
    assert "super0" in Path("report.html").read_text()
    capsys.readouterr()

    python = blocks("python")
    assert len(python) == 2
    names = {}
    for block in python:
        exec(block, names)
    assert names["loss"].item() >= 0
    assert capsys.readouterr().out.splitlines()[0] == "1.000 super0/class00/0.png"

    with subprocess.Popen(
        [sys.executable, "-m", *serving, "--port", "0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as server:
        try:
            address = server.stdout.readline().strip()
            assert "<html" in answer(address)
            with urllib.request.urlopen(f"{address}/v1/items/super0%2Fclass00%2F0.png/thumbnail", timeout=60) as response:
                assert response.headers["content-type"] == "image/png"  # the page shows pictures
        finally:
            server.terminate()


def test_commands_fit_the_command_line():
    calls = list(lines_of(README))
    assert len(calls) > 15
    assert [(words, fault) for words, whole in calls for fault in faults(words, whole)] == []


def test_both_commands_are_named_and_files_are_there():
    assert "make demo" in README
    assert "make test" in README
    linked = re.findall(r"\]\(([^)#]+)[^)]*\)", README)
    assert len(re.findall(r"!\[", README)) == 1
    assert [file for file in linked if not (ROOT / file).is_file()] == []


def test_tutorial_has_the_same_commands_in_the_same_order():
    (commands,) = [block for block in blocks("bash") if "photos" in block]
    verbs = [tuple(words[:2]) for words, whole in lines_of(f"```bash\n{commands}```") if whole]
    told = [tuple(words[:2]) for words, whole in lines_of(TUTORIAL) if whole]
    assert [verb for verb in told if verb in verbs][: len(verbs)] == verbs
