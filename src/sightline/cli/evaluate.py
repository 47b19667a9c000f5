"""``sightline evaluate``, ``sightline compare`` and ``sightline report``: measure an encoder."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sightline.cli.console import Backend, RefineOptions, Trust, echo, expand_settings, read_table
from sightline.errors import InputError, choose, needs_extra

if TYPE_CHECKING:
    from sightline.data.embedding_table import EmbeddingTable
    from sightline.evaluation.result import Result
    from sightline.evaluation.tables import Steps
    from sightline.labels.codes import CodeRelevance


@dataclass(frozen=True)
class StepOptions:
    """Steps on vectors and rankings before they are measured."""

    whiten: Annotated[Path | None, typer.Option(help="Whiten all vectors: a .safetensors by `sightline whiten`.")] = None
    augment: Annotated[int, typer.Option(min=0, help="Average each gallery image with this many neighbours.")] = 0
    each_step: Annotated[bool, typer.Option("--each-step", help="Also measure without steps and after each step.")] = False


@dataclass(frozen=True)
class ProtocolOptions:
    """The protocol of a published set of landmarks or of DyML."""

    protocol: Annotated[
        str | None, typer.Option(help="Measure as a paper does: roxford5k, rparis6k, gldv2 or dyml; see docs/data.md.")
    ] = None
    judgements: Annotated[
        Path | None, typer.Option(help="With --protocol: the .judgements.json beside the set's manifest.")
    ] = None
    distractors: Annotated[
        Path | None, typer.Option(help="With --protocol: a table of more images, relevant to no query, read in pieces.")
    ] = None


@dataclass(frozen=True)
class CodeOptions:
    """Several codes an image in place of labels."""

    codes: Annotated[
        str | None, typer.Option(help="A column of several codes an image, such as 26.1.15;5.3.13, in place of labels.")
    ] = None
    code_tree: Annotated[Path | None, typer.Option(help="With --codes: a table child,parent of the codes there are.")] = (
        None
    )
    code_alpha: Annotated[float, typer.Option(help="With --codes: above 1 only near matches are worth much.")] = 1.0
    code_table: Annotated[Path | None, typer.Option(help="With --codes: a CSV file for the AP of every code.")] = None


@expand_settings
def evaluate(
    table: Annotated[Path, typer.Argument(help="Written by `sightline embed`.")],
    options: StepOptions,
    refine: RefineOptions,
    published: ProtocolOptions,
    several: CodeOptions,
    k: Annotated[
        list[int] | None, typer.Option("-k", min=1, help="Places for recall@k; repeatable; default: 1 2 4 8.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Only this split.")] = None,
    gallery: Annotated[Path | None, typer.Option(help="Another table of the same encoder to search in.")] = None,
    metric: Annotated[
        list[str] | None, typer.Option(help="Only this metric, such as ndcg@10 or map_label_1; repeatable.")
    ] = None,
    interval: Annotated[float | None, typer.Option(help="Also print confidence intervals, such as 0.95.")] = None,
    by: Annotated[
        str,
        typer.Option(help="What intervals resample: queries, or classes to generalise to other classes."),
    ] = "queries",
    exclude: Annotated[
        str | None, typer.Option(help="A column, such as the camera: ignore images with the same value as the query.")
    ] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the values of every query to this JSON file.")] = None,
    trec: Annotated[
        Path | None, typer.Option(help="Also write run.trec and qrels.trec, for trec_eval and ranx, to this folder.")
    ] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Import and run metrics named as package.module:NAME.")] = False,
) -> None:
    """Rank the images for every query; print recall@k, map@r, map and, for label trees, more metrics, in percent."""
    from sightline.evaluation.protocol import DEFAULT_KS
    from sightline.evaluation.result import UNITS
    from sightline.evaluation.tables import Steps, evaluate_table, join_processes
    from sightline.evaluation.trec import write_trec
    from sightline.models.heads import Whitening

    unit = choose(UNITS, by, "unit")
    embedded = read_table(table, split)
    other = None if gallery is None else read_table(gallery)
    whitening = None if options.whiten is None else Whitening.load(options.whiten)
    steps = Steps(whitening, options.augment, refine.refinement())
    if published.protocol is not None:
        other_options: dict[str, object] = {"--gallery": gallery, "--metric": metric, "--exclude": exclude, "--trec": trec}
        other_options |= {"--each-step": options.each_step, "--codes": several.codes}
        if wrong := [name for name, value in other_options.items() if value]:
            raise InputError(f"--protocol takes no {' or '.join(wrong)}")
        _by_protocol(published, embedded, steps, k or (), interval, json)
        return
    if published.judgements or published.distractors:
        raise InputError("--judgements and --distractors need a --protocol")
    relevance = _code_relevance(several, embedded, other, trec)
    with join_processes() as is_first:
        for name, some in steps.one_by_one().items() if options.each_step else [("", steps)]:
            result = evaluate_table(
                embedded, k or DEFAULT_KS, other, metric, some, exclude, trust, several.codes, relevance
            )
            if is_first:
                echo((f"{name}\n" if name else "") + result.as_text(interval, unit))
        if is_first:
            _write(result, json, several.code_table)
            if trec is not None:
                echo(write_trec(trec, embedded, other))


def _write(result: "Result", json: Path | None, code_table: Path | None) -> None:
    """Write the files that were asked for."""
    if json is not None:
        result.write_json(json)
    if code_table is not None:
        result.write_codes(code_table)


def _code_relevance(
    options: CodeOptions, table: "EmbeddingTable", gallery: "EmbeddingTable | None", trec: Path | None
) -> "CodeRelevance | None":
    """What sharing codes is worth, in the levels of the tree or of the deepest code; refuses codes outside the tree."""
    from sightline.labels.code_column import code_lists, deepest, read_code_tree, read_codes
    from sightline.labels.codes import CodeRelevance

    if options.codes is None:
        if options.code_tree or options.code_table or options.code_alpha != 1:
            raise InputError("--code-tree, --code-alpha and --code-table need --codes; add it")
        return None
    if trec is not None:
        raise InputError("--trec writes label levels, not codes; leave out one of the two")
    column = options.codes
    known = None if options.code_tree is None else read_code_tree(options.code_tree)
    both = [read_codes(one.manifest, column, known) for one in (table, gallery) if one is not None]
    n_levels = deepest(*(code_lists(one, column) for one in both)) if known is None else known.tree.n_levels
    return CodeRelevance(n_levels, alpha=options.code_alpha)


def _by_protocol(
    published: ProtocolOptions,
    table: "EmbeddingTable",
    steps: "Steps",
    ks: Sequence[int],
    level: float | None,
    json: Path | None,
) -> None:
    """Print what a protocol measures, and what papers print beside it."""
    from sightline.evaluation.benchmark_protocols import Asked, evaluate_protocol
    from sightline.evaluation.result import text_table
    from sightline.studies.papers import PROTOCOL_TABLES

    name = str(published.protocol)
    found = evaluate_protocol(name, Asked(table, published.judgements, steps, published.distractors, ks))
    for setup, result in found.items():
        echo(f"{setup}\n{result.as_text(level)}\n")
        if json is not None:
            result.write_json(json.with_name(f"{json.stem}.{setup}.json"))
    paper = PROTOCOL_TABLES[name]
    ours: dict[str, float] = {}
    for column, (one, metric) in paper.columns.items():
        results = [result for setup, result in found.items() if one in (None, setup) and metric in result.per_query]
        ours |= {column: 100 * sum(result[metric] for result in results) / len(results)} if results else {}
    methods = {"this encoder": ours, **paper.rows("+R1M" if published.distractors else "")}
    rows = [[method, *(f"{row[c]:.1f}" if c in row else "-" for c in paper.columns)] for method, row in methods.items()]
    # The file does not say which set it is: a part of it, or another set in its layout, is measured by the same protocol.
    echo(f"published on {paper.dataset.rstrip('-')} ({paper.table}); compare if {table.manifest.source} is of that set")
    echo(text_table([["", *paper.columns], *rows], "<" + ">" * len(paper.columns)))


def compare(
    a: Annotated[Path, typer.Argument(help="Written by `sightline evaluate --json`.")],
    b: Annotated[Path, typer.Argument(help="Another, of the same queries.")],
    by: Annotated[
        str, typer.Option(help="What to resample: queries, or classes to generalise to other classes.")
    ] = "queries",
    level: Annotated[float, typer.Option(help="Confidence, between 0 and 1.")] = 0.95,
) -> None:
    """Compare two results query by query: both means, the difference with an interval, and whether it may be chance."""
    from sightline.evaluation.result import UNITS, Result, compare

    unit = choose(UNITS, by, "unit")
    echo(compare(Result.read_json(a), Result.read_json(b), level, unit, titles=_titles(a, b)).as_text())


def _titles(a: Path, b: Path) -> tuple[str, str]:
    """The names of two files, with as many of their folders as it takes to tell them apart."""
    one, other = a.with_suffix("").parts, b.with_suffix("").parts
    for length in range(1, max(len(one), len(other)) + 1):
        if one[-length:] != other[-length:]:
            return "/".join(one[-length:]), "/".join(other[-length:])
    return f"{a.stem} (1)", f"{b.stem} (2)"


@dataclass(frozen=True)
class PageOptions:
    """What the report calls the models, and how much it shows."""

    name: Annotated[str | None, typer.Option(help="Name of the model in the report; default: that of its file.")] = None
    against_name: Annotated[str | None, typer.Option(help="Name of the other one.")] = None
    k: Annotated[int, typer.Option("-k", min=1, help="Results shown for each query.")] = 10
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0
    codes: Annotated[
        str | None,
        typer.Option(help="Column of codes that colours results by the deepest shared one; default: the first of lists."),
    ] = None


@expand_settings
def report(
    subject: Annotated[str, typer.Argument(help="A run folder or an embedding table.")],
    page: PageOptions,
    against: Annotated[
        str | None, typer.Option(help="Another run or table of the same images, or `untrained`: the run's own backbone.")
    ] = None,
    figures: Annotated[Path | None, typer.Option(help="Folder for every figure as PNG and SVG.")] = None,
    published: Annotated[
        str | None, typer.Option(help="A published table to show, such as tpami_table04; default: by the data set.")
    ] = None,
    detector: Annotated[
        Path | None, typer.Option(help="Rejector whose energies to show; default: the one in the run's encoder.")
    ] = None,
    outliers: Annotated[
        Path | None, typer.Option(help="With --detector: a table of out-of-distribution images, of the same encoder.")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Only this split of an embedding table.")] = None,
    backend: Backend = "auto",
    trust: Trust = False,
    out: Annotated[Path, typer.Option(help="The page to write.")] = Path("report.html"),
) -> None:
    """Write a self-contained HTML report: metrics, curves, example rankings, a map of the classes, the worst mistakes."""
    with needs_extra("a report", "report"):
        from sightline.report.page import ReportOptions, write_report
    from sightline.models.inference import check_backend
    from sightline.report.subject import (
        UNTRAINED,
        held_rejector,
        needs_inputs,
        read_outliers,
        read_subject,
        read_untrained,
    )

    check_backend(backend)
    detector = detector or held_rejector(Path(subject))
    if outliers is not None and detector is None:
        raise InputError("--outliers needs a --detector to score them")
    if page.against_name is not None and against is None:
        raise InputError("--against-name needs --against")
    summary = [f"Made by: {shlex.join(['sightline', *sys.argv[1:]])}"]
    read: dict[str, Any] = {"show_progress": True, "trust": trust, "backend": backend}
    needs = needs_inputs(detector)
    shown = read_subject(Path(subject), split=split, name=page.name, codes=page.codes, scorer_inputs=needs, **read)
    other = None
    if against == UNTRAINED:
        other = read_untrained(shown, name=page.against_name, **read)
    elif against is not None:
        read |= {"split": split, "name": page.against_name, "codes": shown.codes, "like": shown.table}
        other = read_subject(Path(against), **read)
    found = None if detector is None else read_outliers(detector, shown.table, outliers)
    options = ReportOptions(None, summary, figures, published, found, page.k, seed=page.seed, codes=page.codes)
    written = write_report(out, shown, other, options)
    missing = f"; {written.n_missing} images shown cannot be read" if written.n_missing else ""
    drawn = f"; {len(written.figures)} figures in {figures}" if figures else ""
    echo(f"{written.file}: {written.file.stat().st_size / 1e6:.1f} MB{drawn}{missing}")
