"""``sightline compare``."""

from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.printing import echo


def compare(
    a: Annotated[Path, typer.Argument(help="Written by `sightline evaluate --json`.")],
    b: Annotated[Path, typer.Argument(help="Another, of the same queries.")],
    by: Annotated[
        str, typer.Option(help="What chance draws: queries, or classes to hold for other classes too.")
    ] = "queries",
    level: Annotated[float, typer.Option(help="Confidence, between 0 and 1.")] = 0.95,
) -> None:
    """Print both results' metrics, their difference with an interval, and which differences are real."""
    from sightline.errors import choose
    from sightline.evaluation.result import UNITS, Result
    from sightline.evaluation.result import compare as compare_results

    unit = choose(UNITS, by, "unit")
    echo(compare_results(Result.read_json(a), Result.read_json(b), level, unit).as_text())
