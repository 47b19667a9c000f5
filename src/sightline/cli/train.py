"""``sightline train``, ``sightline benchmark`` and ``sightline demo``: commands that train."""

import math
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.console import echo, named_values, read_encoder
from sightline.errors import InputError, raise_faults

N_RESULTS = 7  # of a query on the demo's page: each character has seven other images


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe file (.toml), or the name of a shipped recipe.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Values to change, such as loss.name=sup_ap.")] = None,
    out: Annotated[Path, typer.Option(help="Run folder: encoder, checkpoint and logs.")] = Path("run"),
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Go on from the last checkpoint; with more schedule.epochs, also of a finished run."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan; train and write nothing.")] = False,
    max_minutes: Annotated[float | None, typer.Option(min=0, help="End after so long, ready to resume.")] = None,
    tune: Annotated[str | None, typer.Option(help="First search for better settings, for so long: 30m, 2h.")] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Import and run package.module:Name in the recipe.")] = False,
) -> None:
    """Train an encoder as a recipe says."""
    from sightline.training.distributed import process_number
    from sightline.training.large_batch import keep_freed_memory
    from sightline.training.prepare import plan_run
    from sightline.training.recipe import read_recipe
    from sightline.training.run import train as train_run
    from sightline.training.tune import tune as search

    keep_freed_memory()
    read = read_recipe(recipe, overrides)
    if tune is not None and not dry_run:
        echo(search(read, out, _minutes(tune), resume, lambda line: echo(line, err=True), trust))
        return
    done = plan_run(read, trust) if dry_run else train_run(read, out, resume, True, max_minutes, trust)
    if process_number() == 0 and (isinstance(done, str) or done.is_dir()):  # no encoder: stopped before it was validated
        echo(done)


def _minutes(text: str) -> float:
    """How long ``30m``, ``2h`` or ``90s`` is."""

    units = {"s": 1 / 60, "m": 1.0, "h": 60.0}
    try:
        minutes = float(text[:-1]) * units[text[-1:]]
    except (KeyError, ValueError):
        minutes = 0.0
    if not 0 < minutes < math.inf:
        raise InputError(f"--tune must be a time such as 30m, 2h or 90s, got {text!r}")
    return minutes


def benchmark(
    suite: Annotated[Path, typer.Argument(help="A suite (.toml): rows, data, seeds and one budget.")],
    out: Annotated[
        Path, typer.Option(help="Folder of results, which suites may share; what is finished is not run again.")
    ],
    data: Annotated[list[str] | None, typer.Option(help="Where a data set is: emoji=sets/emoji/manifest.csv.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Name of a row to run; may be given again.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="A seed to run; may be given again.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep each run's encoder, checkpoint and log.")] = False,
    tables: Annotated[bool, typer.Option("--tables", help="Write the tables of what is finished; run nothing.")] = False,
    repeat: Annotated[bool, typer.Option("--repeat", help="Run finished cells again and compare, bit for bit.")] = False,
    page: Annotated[Path | None, typer.Option(help="A Markdown page whose part for this suite is renewed.")] = None,
) -> None:
    """Run a grid of data x loss x seed on one budget; write tables beside the published ones."""
    from sightline.studies.cells import read_finished, run_cells
    from sightline.studies.cells import repeat as repeated
    from sightline.studies.suite import cells_of, read_suite
    from sightline.studies.suite_page import write_page

    if tables and repeat:
        raise InputError("--tables and --repeat do not go together; give one of them")
    read = read_suite(suite)
    given = {name: Path(manifest) for name, manifest in named_values("--data", data or []).items()}
    cells = cells_of(read, given, out / "data", only or [], seed or [], check=not tables, show_progress=sys.stderr.isatty())
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both let the running cell save a checkpoint
    if repeat:
        faults = [f"{cell.title}: {'; '.join(found)}" for cell, found in repeated(out, cells).items() if found]
        raise_faults("not as before", faults)
        echo(f"{len(cells)} runs repeated: every value of every query is the same")
        return
    if not tables:
        run_cells(out, cells, keep, lambda line: echo(line, err=True))
    everything = cells_of(read, given, out / "data", check=False)
    done = read_finished(out, everything)
    echo(f"{len(done)} of {len(everything)} runs are finished")
    tables_file = out / f"{suite.stem}.md"
    tables_file.unlink(missing_ok=True)
    for file in filter(None, (tables_file, page)):
        echo(write_page(file, read, suite, done, len(everything)))


def demo(
    overrides: Annotated[list[str] | None, typer.Argument(help="Values of the recipe `glyphs` to change.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for everything the demo makes.")] = Path("demo"),
) -> None:
    """Train on drawn characters, measure on unseen ones, search, and write a page that shows it."""
    from sightline.data.manifest import read_manifest
    from sightline.data.readers.glyphs import write_glyphs
    from sightline.evaluation.result import shown
    from sightline.gallery.query import search_images
    from sightline.models.embed import embed_manifest
    from sightline.report.numbers import table_metrics
    from sightline.report.page import ReportOptions, write_report
    from sightline.report.subject import Subject, read_untrained
    from sightline.training.large_batch import keep_freed_memory
    from sightline.training.logs import read_log
    from sightline.training.recipe import read_recipe
    from sightline.training.run import train
    from sightline.training.run_folder import RunFolder

    keep_freed_memory()
    since, run = time.monotonic(), RunFolder(out / "run")
    manifest = write_glyphs(out / "glyphs", show_progress=True)
    recipe = read_recipe("glyphs", [f"data.manifest={manifest}", *(overrides or [])])
    test = read_manifest(manifest).split("test")
    encoder = read_encoder(train(recipe, run.path, resume=True, show_progress=True))
    table = embed_manifest(encoder, test, show_progress=True)
    table.write(out / "test.parquet")
    trained = Subject("trained", table, tuple(read_log(run.log_file)), recipe)
    untrained = read_untrained(trained, show_progress=True)  # the pretrained backbone's features, without a projection
    summary = [
        f"An ImageNet {recipe.model.backbone} was trained with the loss {recipe.loss.name!r} for {recipe.schedule.epochs} "
        "epochs on characters drawn in several typefaces, then asked to find the same character in other typefaces. "
        "No character of this page was seen in training.",
        "Untrained: the pretrained features as they are. Repeat with: sightline demo",
    ]
    title = "Sightline on characters it has never seen"
    options = ReportOptions(title=title, summary=summary, k=N_RESULTS, seed=recipe.seed)
    report = write_report(out / "report.html", trained, untrained, options)
    before, after = (report.results[one.name] for one in (untrained, trained))
    echo(f"Test metrics on unseen characters, shares in percent ({after.n_queries} queries):")
    echo(f"{'':<12}{'before':>8}{'after':>8}{'change':>8}")
    for name in table_metrics(test.n_levels, N_RESULTS):
        cells = shown(name, before[name]), shown(name, after[name]), shown(name, after[name] - before[name], sign="+")
        echo(f"{name:<12}" + "".join(f"{cell:>8}" for cell in cells))
    random = next(gallery for gallery in report.galleries if gallery.name == "random")
    queries = [test.paths()[asked.query.row] for asked in random.rows[:3]]
    for query, hits in zip(queries, search_images(encoder, table, queries, k=6), strict=True):
        echo(f"nearest to {query}:")
        for hit in [hit for hit in hits if Path(hit.path or "").resolve() != query.resolve()][:5]:
            echo(f"  {hit.score:.3f}  {hit.id}  {hit.labels[0]}")
    echo(f"Report: {report.file} (took {time.monotonic() - since:.0f} s)")
