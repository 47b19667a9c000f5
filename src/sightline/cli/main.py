"""``sightline <verb>``: the commands in one application."""

import sys
import warnings
from typing import Annotated, TextIO

import typer

from sightline import __version__
from sightline.cli import data, hierarchy, index, ood
from sightline.cli.console import echo
from sightline.cli.encoder import convert, embed, export, whiten
from sightline.cli.evaluate import compare, evaluate, report
from sightline.cli.search import search, serve, token
from sightline.cli.train import benchmark, demo, train
from sightline.errors import InputError

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False, add_completion=False)
app.add_typer(data.app, name="data")
app.add_typer(export, name="export")
app.add_typer(hierarchy.app, name="hierarchy")
app.add_typer(index.app, name="index")
app.add_typer(ood.app, name="ood")
for command in (train, embed, whiten, convert, evaluate, compare, search, serve, token, report, demo, benchmark):
    app.command()(command)


def _print_version(is_asked: bool) -> None:
    if is_asked:
        echo(f"sightline {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Image retrieval, trained on the metric you report."""


def run() -> None:
    """Run the console command; bad input or a file that cannot be read or written gives one message and status 2."""
    with warnings.catch_warnings():
        warnings.showwarning = _warn
        try:
            app(prog_name="sightline")
        except InputError as error:
            echo(f"sightline: {error}", err=True)
            sys.exit(2)
        except OSError as error:
            if error.filename is None:  # a fault of the program, not of a file
                raise
            echo(f"sightline: {error.filename}: {error.strerror}", err=True)
            sys.exit(2)


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print a warning of Sightline's as one line; those of libraries are for programmers."""
    if category is UserWarning:
        echo(f"sightline: {message}", err=True)
