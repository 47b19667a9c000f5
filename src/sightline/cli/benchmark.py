"""``sightline benchmark``."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.printing import echo


def benchmark(
    suite: Annotated[Path, typer.Argument(help="A suite (.toml): rows, data, seeds and one budget.")],
    out: Annotated[Path, typer.Option(help="Folder for results, tables and pictures; what is finished there is kept.")],
    data: Annotated[list[str] | None, typer.Option(help="Where a data set is: emoji=sets/emoji/manifest.csv.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Name of a row to run; may be given again.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="A seed to run; may be given again.")] = None,
    reuse: Annotated[list[Path] | None, typer.Option(help="Another suite's folder: runs done there are taken.")] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at once; as many as cores allow if not given.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep each run's encoder, checkpoint and log.")] = False,
    background: Annotated[bool, typer.Option("--background", help="Start it detached and return.")] = False,
    status: Annotated[bool, typer.Option("--status", help="Say how far it is; run nothing.")] = False,
    tables: Annotated[bool, typer.Option("--tables", help="Write the tables of what is finished; run nothing.")] = False,
    repeat: Annotated[bool, typer.Option("--repeat", help="Run finished cells again and compare, bit for bit.")] = False,
    page: Annotated[Path | None, typer.Option(help="A Markdown page whose part for this suite is renewed.")] = None,
) -> None:
    """Run a grid of data x loss x seed on one budget; write tables beside the published ones."""
    from sightline.benchmark.grid import cells_of
    from sightline.benchmark.pages import update_page, write_pages
    from sightline.benchmark.runs import repeat as repeated
    from sightline.benchmark.runs import run_cells, start_in_background, usual_jobs
    from sightline.benchmark.runs import status as status_of
    from sightline.benchmark.sources import parse_data
    from sightline.benchmark.suite import read_suite
    from sightline.errors import InputError, names

    def say(line: str) -> None:
        echo(line, err=True)

    asked = {"--background": background, "--status": status, "--tables": tables, "--repeat": repeat}
    if len(together := [option for option, is_given in asked.items() if is_given]) > 1:
        raise InputError(f"{names(together)} do not go together; give one of them")
    read = read_suite(suite)
    jobs = jobs or usual_jobs(read.threads)
    given = parse_data(data or [])
    runs_something = not (status or tables)
    cells = cells_of(
        read, given, out / "data", only or [], seed or [], check=runs_something, show_progress=sys.stderr.isatty()
    )
    if status:
        echo(status_of(out, cells).as_text(jobs))
        return
    if background:
        words = [str(suite), "--out", str(out), "--jobs", str(jobs), *(["--keep"] if keep else [])]
        lists = {"--data": data, "--only": only, "--seed": seed, "--reuse": reuse, "--page": [page] if page else []}
        for option, values in lists.items():
            words += [word for value in values or [] for word in (option, str(value))]
        process = start_in_background(out, words)
        echo(f"process {process} runs {len(cells)} cells; its lines go to {out / 'log.txt'}")
        return
    if repeat:
        faults = {cell: found for cell, found in repeated(out, cells).items() if found}
        if faults:
            raise InputError(
                "\n  ".join(["not as before:", *(f"{cell.title}: {'; '.join(f)}" for cell, f in faults.items())])
            )
        echo(f"{len(cells)} runs repeated: every value of every query is the same")
        return
    if not tables:
        run_cells(out, cells, jobs, keep, say, reuse or [])
    everything = cells_of(read, given, out / "data", check=False)
    for file in write_pages(read, suite, everything, out):
        echo(file)
    if page is not None:
        echo(update_page(page, read, suite, everything, out))
