"""``sightline demo``."""

import time
from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.printing import echo


def demo(
    overrides: Annotated[list[str] | None, typer.Argument(help="Values of the recipe `glyphs` to change.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for everything the demo makes.")] = Path("demo"),
) -> None:
    """Train on drawn characters, measure on unseen ones, search, and write a page that shows it."""
    from sightline.data.embedding_table import EmbeddingTable
    from sightline.demo import run_demo
    from sightline.evaluation.result import shown
    from sightline.gallery.query import search_images
    from sightline.models.encoder import Encoder
    from sightline.training.large_batch import keep_freed_memory

    keep_freed_memory()
    since = time.monotonic()
    outcome = run_demo(out, overrides, show_progress=True)
    echo(f"Test metrics on unseen characters, shares in percent ({outcome.after.n_queries} queries):")
    echo(f"{'':<12}{'before':>8}{'after':>8}{'change':>8}")
    for name, after in outcome.after.means.items():
        before = outcome.before[name]
        cells = shown(name, before), shown(name, after), shown(name, after - before, sign="+")
        echo(f"{name:<12}" + "".join(f"{cell:>8}" for cell in cells))
    table, encoder = EmbeddingTable.read(outcome.table), Encoder.from_pretrained(outcome.encoder)
    queries = outcome.queries[:3]
    for query, hits in zip(queries, search_images(encoder, table, queries, k=6), strict=True):
        echo(f"nearest to {query}:")
        for hit in [hit for hit in hits if Path(str(hit.path)).resolve() != query.resolve()][:5]:
            echo(f"  {hit.score:.3f}  {hit.id}  {hit.labels[0]}")
    echo(f"Report: {outcome.report} (took {time.monotonic() - since:.0f} s)")
