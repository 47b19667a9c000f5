"""Command lines of ``sightline`` in pages, parsed by the real commands without running them."""

import re
import shlex
from pathlib import Path

import typer

from sightline.cli.main import app
from sightline.data.readers import READERS
from sightline.errors import InputError
from sightline.losses import LOSSES
from sightline.training.recipe import read_recipe, shipped_recipes

ROOT, COMMAND = Path(__file__).parent.parent, typer.main.get_command(app)
PLACEHOLDER = re.compile(r"<[^>]*>|\.\.\.|…|^[A-Z]+$")  # stands for something of the reader's
UNFINISHED = ("MissingParameter", "BadOptionUsage")  # no fault of a command inside a sentence


def shell_lines(page):
    """Lines to type into a shell, in order, each as a whole; output and comments are left out."""
    for language, block in re.findall(r"^```(bash|sh|console)\n(.*?)^```", page, flags=re.S | re.M):
        begun = ""
        for line in block.replace("\\\n", " ").splitlines():
            if language == "console" and not begun and not line.startswith("$ "):
                continue
            begun += line.removeprefix("$ ")
            try:
                words = shlex.split(begun, comments=True)
            except ValueError:  # a quotation continues in the next line
                begun += "\n"
                continue
            if words:
                yield begun
            begun = ""


def calls(page):
    """Calls of ``sightline`` in a page: ``(words, is_whole)``; one inside a sentence need not be whole."""
    for line in shell_lines(page):
        yield from ((words, True) for words in _calls_of(line))
    sentences = re.sub(r"^```.*?^```", "", page, flags=re.S | re.M)
    for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", sentences):
        yield from ((words, False) for words in _calls_of(" ".join(code.split())))


def _calls_of(line):
    """The words after ``sightline`` of each call in a line."""
    if not re.search(r"(^|[;&|] *|-m |bin/)sightline\s", line):
        return
    words = re.sub(r"\s\[[^]]*\]", "", line)  # [key=value ...]
    words = re.sub(r"<([^>]*)>", lambda found: "<" + found[1].replace(" ", "-") + ">", words)
    lexer = shlex.shlex(words, posix=True, punctuation_chars=";|&")
    lexer.whitespace_split = True
    call = None
    for word in [*lexer, ";"]:
        if set(word) <= set(";|&"):
            if call is not None:
                yield call
            call = None
        elif call is not None:
            call.append(word)
        elif Path(word).name == "sightline":
            call = []


def faults(words, is_whole=True):
    """What the command line would refuse in a call, and names in it that do not exist."""
    command, name, rest = COMMAND, "", list(words)
    while (inner := getattr(command, "commands", {}).get(rest[0] if rest else "")) is not None:
        command, name = inner, f"{name} {rest.pop(0)}".strip()
    is_open = any(map(PLACEHOLDER.search, rest))
    if hasattr(command, "commands"):
        return [] if is_open or not rest or rest[0] in ("--help", "--version") else [f"no command {name} {rest[0]}"]
    try:
        given = command.make_context(name, [*rest]).params
    except typer.Exit:  # --help
        return []
    except Exception as error:  # of typer's own classes, which are not public
        kind = type(error).__name__
        is_fine = (kind == "BadParameter" and is_open) or (kind in UNFINISHED and not is_whole)
        return [] if is_fine else [f"{name}: {error.format_message()}"]
    return [] if rest and PLACEHOLDER.search(rest[0]) else _unknown_names(name, given)


def _unknown_names(name, given):
    """Recipes, data sets, suites and losses that are named and do not exist."""
    if name == "data prepare":
        return [] if given["name"] in READERS or ":" in given["name"] else [f"no data set {given['name']}"]
    if name == "benchmark":
        return [] if (ROOT / given["suite"]).is_file() else [f"no suite {given['suite']}"]
    if name not in ("train", "demo"):
        return []
    recipe, overrides = given.get("recipe", "glyphs"), given["overrides"] or []
    if recipe.endswith(".toml"):
        recipe = str(ROOT / recipe) if (ROOT / recipe).is_file() else "images"  # the reader's own: any recipe stands for it
    elif recipe not in shipped_recipes():
        return [f"no recipe {recipe}"]
    try:
        loss = read_recipe(recipe, [one for one in overrides if "<" not in one]).loss.name
    except InputError as error:
        return [str(error)]
    return [] if loss in LOSSES else [f"no loss {loss}"]
