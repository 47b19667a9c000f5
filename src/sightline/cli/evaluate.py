"""``sightline evaluate``."""

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    table: Annotated[Path, typer.Argument(help="Written by `sightline embed`.")],
    k: Annotated[list[int] | None, typer.Option("-k", min=1, help="Places for recall@k; may be repeated.")] = None,
    split: Annotated[str | None, typer.Option(help="Only this split.")] = None,
    gallery: Annotated[Path | None, typer.Option(help="A table to rank instead, of the same encoder.")] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="Only this one, such as ndcg@10 or map_label_1; may be repeated.")
    ] = None,
    interval: Annotated[
        float | None, typer.Option(help="Also print between which values each mean lies, with this confidence: 0.95.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the values of every query to this file.")] = None,
) -> None:
    """Rank the images for every query; print recall@k, map@r, map and, for labels in levels, more, in percent."""
    from sightline.embedding.table import EmbeddingTable
    from sightline.evaluation.protocol import DEFAULT_KS, evaluate_table

    embedded = EmbeddingTable.read(table)
    embedded = embedded if split is None else embedded.split(split)
    other = None if gallery is None else EmbeddingTable.read(gallery)
    result = evaluate_table(embedded, k or DEFAULT_KS, other, metric)
    typer.echo(result.as_text(interval))
    if json is not None:
        result.write_json(json)
