"""``sightline train``, ``sightline benchmark`` and ``sightline demo``: commands that train."""

import math
import shlex
import signal
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.console import echo, named_values, read_encoder
from sightline.errors import InputError, needs_extra, raise_faults

N_RESULTS = 7  # of a query on the demo's page: each character has seven other images


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe file (.toml), or the name of a shipped recipe.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Values to override, such as loss.name=sup_ap.")] = None,
    out: Annotated[Path, typer.Option(help="Run folder: encoder, checkpoint and logs.")] = Path("run"),
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue from the last checkpoint; more schedule.epochs extend a finished run."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan without training or writing.")] = False,
    max_minutes: Annotated[float | None, typer.Option(min=0, help="Stop after this time with a checkpoint.")] = None,
    tune: Annotated[str | None, typer.Option(help="Search for better settings for this long: 30m, 2h.")] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Import what the recipe names as package.module:Name.")] = False,
) -> None:
    """Train an encoder from a recipe."""
    from sightline.training.distributed import process_number
    from sightline.training.large_batch import keep_freed_memory
    from sightline.training.prepare import plan_run
    from sightline.training.recipe import read_recipe
    from sightline.training.run import train as train_run
    from sightline.training.tune import tune as search

    keep_freed_memory()
    read = read_recipe(recipe, overrides)
    done: str | Path
    try:
        if dry_run:
            done = plan_run(read, trust)
        elif tune is not None:
            done = search(read, out, _minutes(tune), resume, lambda line: echo(line, err=True), trust)
        else:
            done = train_run(read, out, resume, True, max_minutes, trust)
    except KeyboardInterrupt:
        if process_number() == 0:
            echo(_how_to_resume(out), err=True)
        raise typer.Exit(130) from None
    if process_number() == 0 and (isinstance(done, str) or done.is_dir()):  # no encoder: stopped before validation
        echo(done)


def _how_to_resume(out: Path) -> str:
    """What to type after Ctrl-C."""
    words = [word for word in sys.argv[1:] if word != "--resume"]
    if not out.exists():
        return f"sightline: stopped before anything was written; to start again: sightline {shlex.join(words)}"
    return f"sightline: stopped; to continue from the last checkpoint: sightline {shlex.join([*words, '--resume'])}"


def _minutes(text: str) -> float:
    """Minutes of a time such as ``30m``, ``2h`` or ``90s``."""
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
    out: Annotated[Path, typer.Option(help="Folder of results; suites may share it, and finished runs are kept.")],
    data: Annotated[list[str] | None, typer.Option(help="Manifest of a data set: emoji=sets/emoji/manifest.csv.")] = None,
    only: Annotated[list[str] | None, typer.Option(help="Row to run; repeatable.")] = None,
    seed: Annotated[list[int] | None, typer.Option(help="Random seed to run; repeatable.")] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Keep each run's encoder, checkpoint and log.")] = False,
    tables: Annotated[bool, typer.Option("--tables", help="Write the tables of finished runs; run nothing.")] = False,
    repeat: Annotated[bool, typer.Option("--repeat", help="Repeat finished runs and compare them bit for bit.")] = False,
    page: Annotated[Path | None, typer.Option(help="Markdown page whose section on this suite is rewritten.")] = None,
) -> None:
    """Run a grid of data sets, losses and seeds on one budget; write tables beside the published ones."""
    from sightline.studies.cells import read_finished, run_cells
    from sightline.studies.cells import repeat as repeated
    from sightline.studies.suite import cells_of, read_suite

    with needs_extra("the page of a suite", "report"):
        from sightline.studies.suite_page import write_page

    if tables and repeat:
        raise InputError("--tables and --repeat exclude each other; give one of them")
    read = read_suite(suite)
    given = {name: Path(manifest) for name, manifest in named_values("--data", data or []).items()}
    cells = cells_of(read, given, out / "data", only or [], seed or [], check=not tables, show_progress=sys.stderr.isatty())
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both let the running cell save a checkpoint
    if repeat:
        faults = [f"{cell.title}: {'; '.join(found)}" for cell, found in repeated(out, cells).items() if found]
        raise_faults("runs that differ from the first time", faults)
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
    overrides: Annotated[list[str] | None, typer.Argument(help="Values of the recipe `glyphs` to override.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for everything the demo writes.")] = Path("demo"),
) -> None:
    """Train on drawn characters, evaluate on unseen ones, search, and write a report."""
    from sightline.data.manifest import read_manifest
    from sightline.data.readers.glyphs import write_glyphs
    from sightline.evaluation.result import shown
    from sightline.gallery.query import search_images
    from sightline.models.embed import embed_manifest
    from sightline.report.numbers import table_metrics

    with needs_extra("the demo", "report"):
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
    trained = Subject("trained", table, tuple(read_log(run.log_file)), recipe, encoder.card)
    untrained = read_untrained(trained, show_progress=True)  # the pretrained backbone's features, without a projection
    summary = [
        f"An ImageNet {recipe.model.backbone} was trained with the loss {recipe.loss.name!r} for {recipe.schedule.epochs} "
        "epochs on characters drawn in several typefaces. Each query is a character that training never saw; the other "
        "typefaces of that character are the right answers.",
        "Untrained: the features of the pretrained backbone. To run it again: sightline demo",
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
