"""The one way to print: what comes from files and names cannot command the terminal."""

import typer

from sightline.progress import printable


def echo(message: object, err: bool = False) -> None:
    """Print a line to standard output, or to standard error, by way of :func:`sightline.progress.printable`."""
    typer.echo(printable(str(message)), err=err)
