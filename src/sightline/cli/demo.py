"""``sightline demo``: the embedded characters trained, measured, searched and shown, in a few minutes."""

import time
from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.printing import echo

N_RESULTS = 7  # of a query on the page: each character has seven other images


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
    from sightline.models.encoder import Encoder
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
    encoder = Encoder.from_pretrained(train(recipe, run.path, resume=True, show_progress=True))
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
