"""``sightline evaluate``."""

from pathlib import Path
from typing import Annotated

import typer


def evaluate(
    table: Annotated[Path, typer.Argument(help="Written by `sightline embed`.")],
    k: Annotated[list[int] | None, typer.Option("-k", min=1, help="Places for recall@k; may be repeated.")] = None,
    split: Annotated[str | None, typer.Option(help="Only this split.")] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the values of every query to this file.")] = None,
) -> None:
    """Rank the images for every query; print recall@k, map@r and map in percent."""
    from sightline.embedding.table import EmbeddingTable
    from sightline.evaluation.protocol import DEFAULT_KS, evaluate_table

    embedded = EmbeddingTable.read(table)
    embedded = embedded if split is None else embedded.split(split)
    result = evaluate_table(embedded, ks=k or DEFAULT_KS)
    typer.echo(result.as_text())
    if json is not None:
        result.write_json(json)
