"""``sightline report``."""

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli.printing import echo

if TYPE_CHECKING:
    from sightline.report.subject import Subject


def report(
    subject: Annotated[str, typer.Argument(help="A run folder or an embedding table.")],
    against: Annotated[
        str | None, typer.Option(help="Another run or table of the same images, or `untrained`: the run's own backbone.")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for every figure as PNG and SVG.")] = None,
    published: Annotated[
        str | None, typer.Option(help="A paper's table to show beside, such as tpami_table04; default: by the data set.")
    ] = None,
    detector: Annotated[
        Path | None, typer.Option(help="Rejector whose energies to show; default: the one in the run's encoder.")
    ] = None,
    outliers: Annotated[
        Path | None, typer.Option(help="With --detector: a table of images that do not belong, of the same encoder.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Only this split of an embedding table.")] = None,
    name: Annotated[str | None, typer.Option(help="What to call the model; default: the name of its file.")] = None,
    against_name: Annotated[str | None, typer.Option(help="What to call the other one.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Results of a query that galleries show.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """Write one offline page: metrics, curves, galleries, a map of the classes, severity of mistakes, failing classes."""
    from sightline.errors import InputError
    from sightline.report.page import ReportOptions, write_report
    from sightline.report.subject import held_rejector, read_outliers, read_subject

    detector = detector or held_rejector(Path(subject))
    if outliers is not None and detector is None:
        raise InputError("--outliers goes with a --detector, which says how far out they are")
    if against_name is not None and against is None:
        raise InputError("--against-name: there is no --against to call so")
    summary = [f"Made by: {shlex.join(['sightline', *sys.argv[1:]])}"]
    shown = read_subject(Path(subject), show_progress=True, split=split, name=name)
    other = None if against is None else _other(against, shown, split, against_name)
    found = None if detector is None else read_outliers(detector, shown.table, outliers)
    options = ReportOptions(None, summary, figures, published, found, k, seed=seed)
    written = write_report(out, shown, other, options)
    missing = f"; {written.n_missing} images shown cannot be read" if written.n_missing else ""
    drawn = f"; {len(written.figures)} figures in {figures}" if figures else ""
    echo(f"{written.file}: {written.file.stat().st_size / 1e6:.1f} MB{drawn}{missing}")


def _other(against: str, shown: "Subject", split: str | None, name: str | None) -> "Subject":
    from sightline.report.subject import UNTRAINED, read_subject, read_untrained

    if against == UNTRAINED:
        return read_untrained(shown, show_progress=True, name=name)
    return read_subject(Path(against), show_progress=True, split=split, name=name, like=shown.table)
