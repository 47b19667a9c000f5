"""``sightline evaluate``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.printing import echo
from sightline.cli.settings import RefineOptions, expand_settings


@dataclass(frozen=True)
class StepOptions:
    """What is done to vectors and rankings before they are measured."""

    whiten: Annotated[Path | None, typer.Option(help="Whiten all vectors: a .safetensors by `sightline whiten`.")] = None
    augment: Annotated[int, typer.Option(min=0, help="Average each gallery image with so many neighbours.")] = 0
    each_step: Annotated[bool, typer.Option("--each-step", help="Also measure without steps and after each.")] = False


@expand_settings
def evaluate(
    table: Annotated[Path, typer.Argument(help="Written by `sightline embed`.")],
    options: StepOptions,
    refine: RefineOptions,
    k: Annotated[list[int] | None, typer.Option("-k", min=1, help="Places for recall@k; may be repeated.")] = None,
    split: Annotated[str | None, typer.Option(help="Only this split.")] = None,
    gallery: Annotated[Path | None, typer.Option(help="A table to rank instead, of the same encoder.")] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="Only this one, such as ndcg@10 or map_label_1; may be repeated.")
    ] = None,
    interval: Annotated[
        float | None, typer.Option(help="Also print between which values each mean lies, with this confidence: 0.95.")
    ] = None,
    by: Annotated[
        str, typer.Option(help="What intervals resample: queries, or classes to hold for other classes too.")
    ] = "queries",
    exclude: Annotated[
        str | None, typer.Option(help="A column, such as the camera: images with the query's value in it never count.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the values of every query to this file.")] = None,
    trec: Annotated[
        Path | None, typer.Option(help="Also write run.trec and qrels.trec, which trec_eval and ranx read, to this folder.")
    ] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Import metrics named as package.module:NAME.")] = False,
) -> None:
    """Rank the images for every query; print recall@k, map@r, map and, for labels in levels, more, in percent."""
    from sightline.data.embedding_table import EmbeddingTable
    from sightline.errors import choose
    from sightline.evaluation.protocol import DEFAULT_KS
    from sightline.evaluation.result import UNITS
    from sightline.evaluation.tables import Steps, evaluate_table, joined_processes
    from sightline.evaluation.trec import write_trec
    from sightline.models.heads import Whitening

    unit = choose(UNITS, by, "unit")
    embedded = EmbeddingTable.read(table)
    embedded = embedded if split is None else embedded.split(split)
    other = None if gallery is None else EmbeddingTable.read(gallery)
    whitening = None if options.whiten is None else Whitening.load(options.whiten)
    steps = Steps(whitening, options.augment, refine.refinement())
    with joined_processes() as is_first:
        for name, some in steps.one_by_one().items() if options.each_step else [("", steps)]:
            result = evaluate_table(embedded, k or DEFAULT_KS, other, metric, some, exclude, trust)
            if is_first:
                echo((f"{name}\n" if name else "") + result.as_text(interval, unit))
        if json is not None and is_first:
            result.write_json(json)
        if trec is not None and is_first:
            echo(write_trec(trec, embedded, other))
