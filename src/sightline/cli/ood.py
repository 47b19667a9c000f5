"""``sightline ood``: does an image belong to a collection?"""

from dataclasses import dataclass
from inspect import signature
from json import JSONDecodeError, loads
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli.console import echo, expand_settings, named_values, read_table
from sightline.errors import InputError

if TYPE_CHECKING:
    from sightline.data.embedding_table import EmbeddingTable

PICTURES = (".svg", ".png")
app = typer.Typer(no_args_is_help=True, help="Separate images that belong from those that do not.")


@dataclass(frozen=True)
class ScorerOptions:
    """Which scorer a rejector has, and how it is fitted."""

    scorer: Annotated[
        str, typer.Option(help="One that `sightline ood scorers` prints, or package.module:Name with --trust.")
    ] = "heat"
    level: Annotated[int, typer.Option(min=0, help="Label level to fit on; 0 is the finest.")] = 0
    seed: Annotated[int, typer.Option(min=0, help="Of the part held out, and of the scorer.")] = 0
    option: Annotated[
        list[str] | None, typer.Option("--option", help="One of the scorer's, as name=value in JSON; may be repeated.")
    ] = None
    trust: Annotated[bool, typer.Option("--trust", help="Import a scorer named as package.module:Name.")] = False


@app.command()
@expand_settings
def fit(
    options: ScorerOptions,
    table: Annotated[Path | None, typer.Argument(help="Images that belong, written by `sightline embed`.")] = None,
    gallery: Annotated[
        str | None, typer.Option(help="Or a gallery, whose items belong and are what queries are matched with.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write, such as encoder/rejector; a gallery's own if not given.")
    ] = None,
    tpr: Annotated[float, typer.Option(help="Share of images that belong to accept.")] = 0.95,
    split: Annotated[str | None, typer.Option(help="Fit on this split alone.")] = None,
    held_out_table: Annotated[
        Path | None, typer.Option(help="Images that belong, to calibrate on; without it, a fifth of the table.")
    ] = None,
    gallery_table: Annotated[
        Path | None, typer.Option(help="The gallery, to calibrate from which similarity on there is a match.")
    ] = None,
    policy: Annotated[str, typer.Option(help="What search does with outliers: reject, flag or ignore.")] = "reject",
) -> None:
    """Fit and calibrate a rejector; print its thresholds."""
    from sightline.ood.rejector import check_place, fit_rejector

    if (table is None) == (gallery is None) or (gallery is not None and gallery_table is not None):
        raise InputError("either a table or --gallery is needed; --gallery-table goes with a table")
    matched, generation = None if gallery_table is None else read_table(gallery_table), None
    if table is not None:
        embedded = read_table(table)
    else:
        embedded, matched, generation, out = _gallery(str(gallery), out)
    if out is None:
        raise InputError("--out is needed: the folder to write")
    check_place(out)
    scorer_options = {name: _value(text) for name, text in named_values("--option", options.option or []).items()}
    if taken := scorer_options.keys() & signature(fit_rejector).parameters.keys():
        raise InputError(f"--option {min(taken)}: not one of the scorer's; the command has options of its own")
    rejector = fit_rejector(
        embedded if split is None else embedded.split(split),
        options.scorer,
        tpr,
        None if held_out_table is None else read_table(held_out_table),
        matched,
        policy,
        options.level,
        options.seed,
        show_progress=True,
        trust=options.trust,
        **scorer_options,
    )
    rejector.generation = generation
    echo(f"{rejector.save(out)}: {options.scorer}, energies up to {rejector.scorer.threshold:.4g} belong ({100 * tpr:g} %)")
    if rejector.similarity_threshold is not None:
        echo(f"similarities from {rejector.similarity_threshold:.4f} on are a match ({100 * tpr:g} %)")
    elif gallery is not None:
        echo("no two items share a label: from which similarity on there is a match is not known")


@app.command()
def scorers() -> None:
    """Print what `sightline ood fit --scorer` takes, those of other packages too, each with its options."""
    from sightline.ood import SCORERS

    for name in SCORERS:
        if SCORERS.find(name).needs == ("vectors",):  # type: ignore[attr-defined]
            echo(f"{name} ({', '.join(SCORERS.options(name)) or 'no options'}): {SCORERS.summary(name)}")


@app.command()
def evaluate(
    rejector: Annotated[Path, typer.Argument(help="Folder written by `sightline ood fit`.")],
    inside: Annotated[Path, typer.Option("--in", help="Table of images that belong and that it was not fitted on.")],
    out_sets: Annotated[list[str], typer.Option("--out-sets", help="name=table of images that do not; may be repeated.")],
    split: Annotated[str | None, typer.Option(help="Only this split of the images that belong.")] = None,
    interval: Annotated[float | None, typer.Option(help="Also print between which values each lies: 0.95.")] = None,
    json: Annotated[Path | None, typer.Option(help="Also write metrics and intervals to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw ROC and histograms to this .svg or .png file.")] = None,
    gallery_table: Annotated[
        Path | None, typer.Option(help="The gallery: also print how many queries are identified in it.")
    ] = None,
    far: Annotated[float, typer.Option(help="With --gallery-table: the share of outliers that may be matched.")] = 0.01,
    trust: Annotated[bool, typer.Option("--trust", help="Import a scorer named as package.module:Name.")] = False,
) -> None:
    """Print AUROC, FPR95, AUPR and accuracy for each set and their mean, in percent, and how many images are refused."""
    from sightline.evaluation.detection import DetectionResult, identification_rates
    from sightline.ood.rejector import Rejector

    if plot is not None and plot.suffix not in PICTURES:
        raise InputError(f"--plot {plot}: a file that ends in {' or '.join(PICTURES)} is needed")
    loaded = Rejector.load(rejector, trust=trust)
    belonging = read_table(inside, split)
    tables = {name: read_table(Path(file)) for name, file in named_values("--out-sets", out_sets).items()}
    gallery = None if gallery_table is None else read_table(gallery_table)
    for name, table in {str(inside): belonging, **tables, str(gallery_table): gallery}.items():
        if table is not None:
            loaded.check_encoder(table.fingerprint, name)
            table.check_finite()
    energies = {name: loaded.scorer.score(table.vectors) for name, table in tables.items()}
    result = DetectionResult(loaded.scorer.score(belonging.vectors), energies)
    rates = {} if gallery is None else identification_rates(belonging, gallery, tables, far)
    echo(result.as_text(interval))
    threshold = loaded.scorer.threshold or 0.0
    refused = {"those that belong": result.inside, **energies}
    echo("refused: " + ", ".join(f"{100 * float((e > threshold).mean()):.1f} % of {n}" for n, e in refused.items()))
    if gallery is not None:
        shares = ", ".join(f"{100 * rate:.1f} % against {name}" for name, rate in rates.items())
        echo(f"identified where {100 * far:g} % of a set may be matched: {shares}")
    if json is not None:
        result.write_json(json, interval or 0.95)
    if plot is not None:
        from sightline.report.figures import draw_detection

        draw_detection(result, plot, threshold)


def _gallery(address: str, out: Path | None) -> "tuple[EmbeddingTable, EmbeddingTable | None, int | None, Path]":
    """The items of a gallery, once more if some share a label and can match; its generation if it is to keep its rejector;
    and where that goes.
    """
    from sightline.gallery.gallery import REJECTOR_FOLDER, Gallery
    from sightline.gallery.ingest import gallery_table

    with Gallery.open(address, read_only=True) as opened:
        if out is None and not opened.capabilities.keeps_models:
            raise InputError(f"{opened.address}: this kind of gallery keeps no rejector: give --out")
        generation = opened.generation if out is None else None  # before the items: they may be newer
        table = gallery_table(opened)
        folder = out or Path(opened.address) / REJECTOR_FOLDER
        if out is None and folder.is_symlink():
            raise InputError(f"{folder}: a link, which is not followed; say by --out where the rejector goes")
    can_match = table.manifest.n_levels > 0 and bool(table.manifest.table["label_0"].is_duplicated().any())
    return table, table if can_match else None, generation, folder


def _value(text: str) -> object:
    """What is written in JSON; what is not JSON is a word."""
    try:
        return loads(text)
    except JSONDecodeError:
        return text
