"""Command lines of ``sightline`` in pages, held against the real commands without running them."""

import re
import runpy
import shlex
from pathlib import Path
from typing import get_args, get_type_hints

from sightline.data.readers import READERS
from sightline.errors import InputError
from sightline.losses import LOSSES
from sightline.training.recipe import read_recipe, shipped_recipes

ROOT = Path(__file__).parent.parent
COMMANDS = dict(runpy.run_path(str(ROOT / "docs" / "make_reference.py"))["commands"]())
PLACEHOLDER = re.compile(r"<[^>]*>|\.\.\.|…|^[A-Z]+$")  # stands for something of the reader's


def shell_lines(page):
    """Lines to be typed into a shell, in order, each as a whole: what was printed and comments are left out."""
    for language, block in re.findall(r"^```(bash|sh|console)\n(.*?)^```", page, flags=re.S | re.M):
        begun = ""
        for line in block.replace("\\\n", " ").splitlines():
            if language == "console" and not begun and not line.startswith("$ "):
                continue  # what it printed
            begun += line.removeprefix("$ ")
            try:
                words = shlex.split(begun, comments=True)
            except ValueError:  # a quotation goes on in the next line
                begun += "\n"
                continue
            if words:
                yield begun
            begun = ""


def lines_of(page):
    """Commands of a page: ``(words, is_whole)``, where one inside a sentence need not be whole."""
    fences = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```", page, flags=re.S | re.M)
    for language, block in fences:
        if language in ("bash", "sh", "console", "powershell"):
            block = re.sub(r"python -c '[^']*'", "python", block).replace("\\\n", " ")
            for line in block.splitlines():
                if language == "console" and not line.startswith("$ "):
                    continue  # what it printed
                yield from ((words, True) for words in _calls(line.removeprefix("$ ")))
    sentences = re.sub(r"^```.*?^```", "", page, flags=re.S | re.M)
    for code in re.findall(r"(?<!`)`([^`]+)`(?!`)", sentences):
        yield from ((words, False) for words in _calls(" ".join(code.split())))


def _calls(line):
    """The words after ``sightline`` of each call in a line."""
    if not re.search(r"(^|[;&|] *|-m |bin/)sightline\s", line):
        return
    words = re.sub(r"\s\[[^]]*\]", "", line)  # [key=value ...]
    words = re.sub(r"<([^>]*)>", lambda shown: "<" + shown[1].replace(" ", "-") + ">", words)
    lexer = shlex.shlex(words, posix=True, punctuation_chars=";|&")
    lexer.whitespace_split = True
    lexer.commenters = "#"
    call = None
    for word in [*lexer, ";"]:
        if set(word) <= set(";|&"):
            if call is not None:
                yield call
            call = None
        elif call is not None:
            call.append(word)
        elif Path(word).name == "sightline" and not word.endswith("/sightline/"):
            call = []


def faults(words, is_whole=True):
    """What is wrong with a call, in sentences; nothing if it fits the command line."""
    name, rest = "sightline", list(words)
    while rest and f"{name} {rest[0]}" in COMMANDS:
        name = f"{name} {rest.pop(0)}"
    command = COMMANDS[name]
    if hasattr(command, "commands"):
        known = {"--help", "--version"}
        return [f"no command {name} {word}" for word in rest[:1] if word not in known and "|" not in word]
    hints = get_type_hints(command.callback)
    options = {text: one for one in command.params for text in [*one.opts, *one.secondary_opts] if text.startswith("-")}
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    found, given, values = [], set(), []
    while rest:
        word = rest.pop(0)
        text, equals, value = word.partition("=")
        if not word.startswith("-"):
            values.append(word)
        elif text not in options:
            found.append(f"{name} has no option {text}")
        else:
            option = options[text]
            given.add(option.name)
            if not option.is_flag:
                value = value if equals else rest.pop(0) if rest else None
                if value is None:
                    if is_whole:
                        found.append(f"{name} {text} needs a value")
                elif not _fits(value, hints[option.name]):
                    found.append(f"{name} {text} does not take {value}")
    least = sum(one.required for one in arguments)
    most = float("inf") if any(one.nargs == -1 for one in arguments) else len(arguments)
    if not (least if is_whole else 0) <= len(values) <= most:
        found.append(f"{name} takes {least} to {most} arguments, not {values}")
    if is_whole:
        found += [f"{name} needs --{one.name}" for one in options.values() if one.required and one.name not in given]
    return found + _unknown_names(name, values)


def _fits(value, kind):
    kinds = {kind, *get_args(kind), *(inner for part in get_args(kind) for inner in get_args(part))}
    if PLACEHOLDER.search(value):
        return True
    number = int if int in kinds else float if float in kinds else str
    try:
        number(value)
    except ValueError:
        return False
    return True


def _unknown_names(name, values):
    """Recipes, data sets, suites and losses that are named and are not there."""
    if not values or PLACEHOLDER.search(values[0]):
        return []
    if name == "sightline data prepare":
        return [] if values[0] in READERS or ":" in values[0] else [f"no data set {values[0]}"]
    if name == "sightline benchmark":
        return [] if (ROOT / values[0]).is_file() else [f"no suite {values[0]}"]
    if name not in ("sightline train", "sightline demo"):
        return []
    recipe, overrides = ("glyphs", values) if name == "sightline demo" else (values[0], values[1:])
    if recipe.endswith(".toml"):
        if not (ROOT / recipe).is_file():  # the reader's own: any recipe stands for it
            recipe = "images"
    elif recipe not in shipped_recipes():
        return [f"no recipe {recipe}"]
    try:
        read = read_recipe(
            str(ROOT / recipe) if recipe.endswith(".toml") else recipe, [one for one in overrides if "<" not in one]
        )
    except InputError as error:
        return [str(error)]
    return [] if read.loss.name in LOSSES else [f"no loss {read.loss.name}"]
