"""Write the pages in ``reference/`` from the code: ``python docs/make_reference.py``."""

import inspect
import re
import sys
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

import sightline
from sightline.cli.main import app
from sightline.training.recipe import LossSection, Recipe, shipped_recipes

FOLDER = Path(__file__).parent
MADE = "<!-- Made by docs/make_reference.py from the code; change that. -->\n"

API_HEAD = """\
# Python

`import sightline as sl` has these names; they load on first use. What is not here may change between versions.

"""
API = {
    "Images in, vectors out": [
        "Encoder",
        "Preprocessing",
        "EmbeddingTable",
        "embed_manifest",
        "Manifest",
        "read_manifest",
    ],
    "Training": ["train", "tune", "Recipe", "read_recipe", "create_loss", "list_losses"],
    "Evaluation": [
        "evaluate",
        "evaluate_table",
        "evaluate_each_label",
        "Metric",
        "Relevance",
        "list_metrics",
        "Result",
        "compare",
        "decomposability_gap",
    ],
    "Protocols of public sets": ["evaluate_dyml", "evaluate_revisited", "evaluate_gldv2", "RetrievalSet"],
    "Label trees": ["Tree", "CodeRelevance"],
    "Search": ["Gallery", "Item", "EncoderIdentity", "search_images", "refined_search", "Refinement", "Whitening"],
    "Elsewhere": ["export_onnx", "read_card"],
    "Errors": ["InputError"],
}
SUBPACKAGES = {
    "losses": "Every loss as a function and a module, and `create_loss`: [all of them](../losses.md).",
    "ood": "Outlier scorers, `create` and `load`: [does this image belong here?](../ood.md).",
}


def cli_page() -> str:
    """Every command with its arguments and options, as its help has them."""
    lines = [MADE + "# Command line\n", "`sightline --help`, or `--help` after any command, prints the same.\n"]
    for name, command in commands():
        if not getattr(command, "commands", None):
            lines += [f"## `{name}`\n", f"{_text(command.help)}\n", *_table(command)]
    return "\n".join(lines)


def commands() -> list[tuple[str, Any]]:
    """All commands and groups of commands by their full name, in the order of their names."""
    found: list[tuple[str, Any]] = []

    def walk(name: str, command: Any) -> None:
        found.append((name, command))
        for word, inner in sorted(getattr(command, "commands", {}).items()):
            walk(f"{name} {word}", inner)

    walk("sightline", typer.main.get_command(app))
    return found


def _table(command: Any) -> list[str]:
    kinds = get_type_hints(command.callback)
    rows = []
    for parameter in command.params:
        if parameter.name == "help":
            continue
        is_argument = parameter.param_type_name == "argument"
        name = parameter.name.upper() if is_argument else ", ".join([*parameter.opts, *parameter.secondary_opts])
        kind = kinds[parameter.name]
        value = "" if _plain(kind) is bool or is_argument else f" {_kind(kind)}"
        default = "required" if parameter.required else _default(parameter.default, kind)
        rows.append(f"| `{name}{value}` | {_text(parameter.help)} | {default} |")
    return ["| | | default |", "|---|---|---|", *rows, ""] if rows else []


def _text(text: str | None) -> str:
    return re.sub(r"\s+", " ", (text or "").strip()).replace("|", "\\|").replace("<", "&lt;")


def _default(value: Any, kind: Any) -> str:
    if value is None or value == "" or (value is False and _plain(kind) is bool):
        return ""
    return f"`{'yes' if value is True else value}`"


def _plain(kind: Any) -> Any:
    """``X`` of ``X | None``."""
    inner = [part for part in get_args(kind) if part is not type(None)]
    return inner[0] if get_origin(kind) in (Union, types.UnionType) and len(inner) == 1 else kind


def _kind(kind: Any) -> str:
    kind = _plain(kind)
    if get_origin(kind) is list:
        return _kind(get_args(kind)[0]) + " ..."
    return {Path: "PATH", str: "TEXT", int: "INTEGER", float: "NUMBER"}[kind]


def recipe_page() -> str:
    """Every key of a recipe with what it takes, its default and the comment beside it."""
    lines = [
        MADE + "# Recipe\n",
        "What a recipe (TOML) can say. On the command line a key is written with its section: `sampler.batch_size=256`.",
        "The word `none` stands for no value. A key that is not here is refused, and the nearest one is named.\n",
        "## Beside the sections\n",
        *_keys(Recipe, ""),
    ]
    for name, field in Recipe.model_fields.items():
        model = field.annotation
        if isinstance(model, type) and issubclass(model, BaseModel):
            lines += [f"## `[{name}]`\n", f"{inspect.getdoc(model)}\n", *_keys(model, f"{name}.")]
            if model is LossSection:
                lines += ["The options of each loss: [losses](../losses.md).\n"]
    lines += ["## Recipes that ship\n", "`sightline train NAME` takes one of these; [what they are](../recipes.md).\n"]
    lines += [", ".join(f"`{name}`" for name in shipped_recipes()) + "\n"]
    return "\n".join(lines)


def _keys(model: type[Any], prefix: str) -> list[str]:
    comments = _comments(model)
    rows = []
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            continue
        default = "required" if field.is_required() else f"`{_toml(field.default)}`"
        rows.append(f"| `{prefix}{name}` | {_takes(field)} | {default} | {_text(comments.get(name))} |")
    return ["| key | takes | default | |", "|---|---|---|---|", *rows, ""]


def _comments(model: type[Any]) -> dict[str, str]:
    """The comment beside each key, or on the lines above it."""
    found: dict[str, str] = {}
    above: list[str] = []
    for line in inspect.getsource(model).splitlines():
        if (alone := re.fullmatch(r"    # (.*)", line)) is not None:
            above.append(alone[1])
            continue
        if (key := re.match(r"    (\w+): [^#]*(?:# (.*))?$", line)) is not None:
            found[key[1]] = key[2] or " ".join(above)
        above = []
    return found


def _takes(field: FieldInfo) -> str:
    bounds = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
    limits = [
        f"{words} {getattr(limit, name)}"
        for limit in field.metadata
        for name, words in bounds.items()
        if hasattr(limit, name)
    ]
    return ", ".join([_words(field.annotation), *limits])


def _words(kind: Any) -> str:
    if kind is type(None):
        return "`none`"
    if get_origin(kind) is Literal:
        return ", ".join(f"`{value}`" for value in get_args(kind))
    if get_origin(kind) in (Union, types.UnionType):
        return " or ".join(_words(part) for part in get_args(kind))
    if get_origin(kind) is tuple:
        parts = [part for part in get_args(kind) if part is not Ellipsis]
        return f"list of {_words(parts[0])}s" if len(parts) == 1 else f"{len(parts)} {_words(parts[0])}s"
    return {int: "integer", float: "number", str: "word", bool: "`true`, `false`", Path: "path"}[kind]


def _toml(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return "[" + ", ".join(f'"{part}"' if isinstance(part, str) else str(part) for part in value) + "]"
    return str(value)


def api_page() -> str:
    """A directive of mkdocstrings for each public name, below what it is for."""
    lines = [MADE + API_HEAD]
    for title, names in API.items():
        lines += [f"## {title}\n", *(_directive(name) for name in names)]
    lines += ["## Subpackages\n", *(f"- `sl.{name}`: {text}" for name, text in SUBPACKAGES.items()), ""]
    return "\n".join(lines)


def _directive(name: str) -> str:
    module = sightline._MODULES[name]
    return f"::: sightline.{module}.{name}\n"


def public_names() -> set[str]:
    """The names that the page of the API has."""
    return {name for names in API.values() for name in names} | set(SUBPACKAGES)


FILES = {"reference/cli.md": cli_page, "reference/recipe.md": recipe_page, "reference/api.md": api_page}

if __name__ == "__main__":
    for file, made in FILES.items():
        (FOLDER / file).parent.mkdir(exist_ok=True)
        (FOLDER / file).write_text(made())
    sys.stdout.write(", ".join(FILES) + "\n")
