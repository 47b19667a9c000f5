import ast
import json
from pathlib import Path

import polars as pl
import pytest

from sightline.cli import console, main
from sightline.progress import COMMANDS, printable

NASTY = "a\x1b]0;owned\x07\x1b[2Jb\rc\x9b31m\u202egnp.exe\x7f\x00"


def test_all_that_is_printed_goes_one_way():
    files = [*Path(main.__file__).parent.glob("*.py")]
    assert len(files) >= 9
    for file in files:
        nodes = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Attribute | ast.Name)]
        direct = {"typer.echo", "typer.secho", "click.echo", "print"} & {ast.unparse(node) for node in nodes}
        assert direct == ({"typer.echo"} if file.name == Path(console.__file__).name else set()), file.name


def test_what_a_terminal_would_obey_is_shown(capsys):
    assert printable(NASTY) == "a\\u001b]0;owned\\u0007\\u001b[2Jb\\u000dc\\u009b31m\\u202egnp.exe\\u007f\\u0000"
    assert printable("über 漢字 👩‍👩‍👧 a\tb\nc") == "über 漢字 👩‍👩‍👧 a\tb\nc"
    assert printable("\udcff") == "\\udcff"
    assert json.loads(printable(json.dumps([NASTY], ensure_ascii=False))) == [NASTY]
    main._warn(UserWarning(NASTY), UserWarning, "", 0)
    assert capsys.readouterr() == ("", f"sightline: {printable(NASTY)}\n")


@pytest.mark.parametrize("command", ["check", "stats"])
def test_labels_and_paths_do_not_reach_the_terminal_raw(sightline, tmp_path, command):
    nasty = NASTY.replace("\0", "").replace("\r", "")
    rows = {"path": [f"{nasty}.png", "b.png"], "split": ["train", "test"], "label": [nasty, nasty]}
    pl.DataFrame(rows).write_csv(tmp_path / "m.csv")
    for name, expected in (("m", 2 if command == "check" else 0), (nasty, 2)):
        status, out, err = sightline("data", command, tmp_path / f"{name}.csv")
        assert (status, "Traceback" in err, COMMANDS.search(out + err)) == (expected, False, None)
    assert (out, "\\u001b]0;owned" in err) == ("", True)
