"""``sightline report``."""

from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.printing import echo


def report(
    subject: Annotated[
        str,
        typer.Argument(help="A run folder or an embedding table."),
    ],
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
    against: Annotated[
        str | None, typer.Option(help="Another run or table of the same images, or `untrained`: the run's own backbone.")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for every figure as PNG and SVG.")] = None,
    published: Annotated[
        str | None, typer.Option(help="A paper's table to show beside, such as tpami_table04; else by the data set.")
    ] = None,
    detector: Annotated[
        Path | None,
        typer.Option(
            help="Written by `sightline ood fit`: show its energies and thresholds; else the one in the run's encoder."
        ),
    ] = None,
    strangers: Annotated[
        Path | None, typer.Option(help="With --detector: a table of images that do not belong, of the same encoder.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Only this split of an embedding table.")] = None,
    name: Annotated[str | None, typer.Option(help="What to call the model; else as its file.")] = None,
    against_name: Annotated[str | None, typer.Option(help="What to call the other one.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Results of a query that galleries show.")] = 10,
    seed: Annotated[int, typer.Option(min=0, help="Of what is drawn by lot.")] = 0,
) -> None:
    """Write one offline page: metrics, curves, galleries, a map of the classes, severity of mistakes, failing classes."""
    from sightline.errors import InputError

    options: dict[str, object] = {
        "--against": against,
        "--figures": figures,
        "--published": published,
        "--detector": detector,
        "--strangers": strangers,
        "--split": split,
        "--name": name,
        "--against-name": against_name,
    }
    given = [str(word) for option, value in options.items() if value is not None for word in (option, value)]
    from sightline.report.outliers import held_rejector, read_outliers

    detector = detector or held_rejector(Path(subject))
    if strangers is not None and detector is None:
        raise InputError("--strangers: a --detector is needed, to say how far out they are")
    if against_name is not None and against is None:
        raise InputError("--against-name: there is no --against to call so")
    from sightline.report.page import command_line, write_report
    from sightline.report.subject import UNTRAINED, read_subject, read_untrained

    shown = read_subject(Path(subject), show_progress=True, split=split, name=name)
    if against is None:
        other = None
    elif against == UNTRAINED:
        other = read_untrained(shown, show_progress=True, name=against_name)
    else:
        other = read_subject(Path(against), show_progress=True, split=split, name=against_name, like=shown.table)
    outliers = None if detector is None else read_outliers(detector, shown.table, strangers)
    command = ["sightline", "report", subject, *given, "-k", k, "--seed", seed, "--out", out]
    written = write_report(
        out,
        shown,
        other,
        summary=[f"Made by: {command_line(command)}"],
        figures=figures,
        published=published,
        outliers=outliers,
        k=k,
        seed=seed,
    )
    missing = f"; {written.n_missing} images shown cannot be read" if written.n_missing else ""
    drawn = f"; {len(written.figures)} figures in {figures}" if figures else ""
    echo(f"{written.file}: {written.file.stat().st_size / 1e6:.1f} MB{drawn}{missing}")
