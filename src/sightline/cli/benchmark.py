"""``sightline benchmark``."""

import signal
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
    keep: Annotated[bool, typer.Option("--keep", help="Keep each run's encoder, checkpoint and log.")] = False,
    tables: Annotated[bool, typer.Option("--tables", help="Write the tables of what is finished; run nothing.")] = False,
    repeat: Annotated[bool, typer.Option("--repeat", help="Run finished cells again and compare, bit for bit.")] = False,
    page: Annotated[Path | None, typer.Option(help="A Markdown page whose part for this suite is renewed.")] = None,
) -> None:
    """Run a grid of data x loss x seed on one budget; write tables beside the published ones."""
    from sightline.errors import InputError
    from sightline.studies.page import write_page
    from sightline.studies.run import finished, run_cells
    from sightline.studies.run import repeat as repeated
    from sightline.studies.suite import cells_of, read_suite

    if tables and repeat:
        raise InputError("--tables and --repeat do not go together; give one of them")
    read, given = read_suite(suite), _manifests(data or [])
    cells = cells_of(read, given, out / "data", only or [], seed or [], check=not tables, show_progress=sys.stderr.isatty())
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both let the running cell save a checkpoint
    if repeat:
        faults = [f"{cell.title}: {'; '.join(found)}" for cell, found in repeated(out, cells).items() if found]
        if faults:
            raise InputError("\n  ".join(["not as before:", *faults]))
        echo(f"{len(cells)} runs repeated: every value of every query is the same")
        return
    if not tables:
        run_cells(out, cells, keep, lambda line: echo(line, err=True), reuse or [])
    everything = cells_of(read, given, out / "data", check=False)
    done = finished(out, everything)
    echo(f"{len(done)} of {len(everything)} runs are finished")
    (out / "tables.md").unlink(missing_ok=True)
    for file in filter(None, (out / "tables.md", page)):
        echo(write_page(file, read, suite, done, len(everything)))


def _manifests(given: list[str]) -> dict[str, Path]:
    """``name=manifest`` pairs of the command line."""
    from sightline.errors import InputError

    pairs = [one.partition("=") for one in given]
    for name, equals, path in pairs:
        if not (name and equals and path):
            raise InputError(
                f"--data {name + equals + path!r}: must be a name and a manifest, such as emoji=sets/emoji/manifest.csv"
            )
    return {name: Path(path) for name, _, path in pairs}
