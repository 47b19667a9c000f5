"""``sightline ood``: detect out-of-distribution images."""

from dataclasses import dataclass
from inspect import signature
from json import JSONDecodeError, loads
from pathlib import Path
from re import sub
from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli.console import echo, expand_settings, named_values, read_table
from sightline.errors import InputError, choose, needs_extra

if TYPE_CHECKING:
    from sightline.data.embedding_table import EmbeddingTable
    from sightline.gallery.gallery import Gallery
    from sightline.ood.rejector import Rejector

PICTURES = (".svg", ".png")
app = typer.Typer(no_args_is_help=True, help="Detect out-of-distribution images.")


@dataclass(frozen=True)
class ScorerOptions:
    """The scorer of a rejector, and how it is fitted."""

    scorer: Annotated[
        str,
        typer.Option(
            help="Scorer listed by `sightline ood scorers`, or package.module:Name with --trust; auto compares them."
        ),
    ] = "auto"
    level: Annotated[int, typer.Option(min=0, help="Label level to fit on; 0 is the finest.")] = 0
    seed: Annotated[int, typer.Option(min=0, help="Random seed of the held-out part and of the scorer.")] = 0
    option: Annotated[
        list[str] | None, typer.Option("--option", help="Option of the scorer: name=value, value in JSON; repeatable.")
    ] = None
    trust: Annotated[bool, typer.Option("--trust", help="Allow importing package.module:Name.")] = False

    def of_scorer(self) -> dict[str, object]:
        """The scorer's own options."""
        return {name: _value(text) for name, text in named_values("--option", self.option or []).items()}


@app.command()
@expand_settings
def fit(
    options: ScorerOptions,
    table: Annotated[Path | None, typer.Argument(help="In-distribution images, from `sightline embed`.")] = None,
    gallery: Annotated[str | None, typer.Option(help="Gallery to fit on, instead of a table.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder to write, such as encoder/rejector; default: inside the gallery.")
    ] = None,
    tpr: Annotated[float, typer.Option(help="Share of in-distribution images to accept.")] = 0.95,
    split: Annotated[str | None, typer.Option(help="Fit on this split only.")] = None,
    held_out_table: Annotated[
        Path | None, typer.Option(help="In-distribution images to calibrate on; default: a part of the table.")
    ] = None,
    gallery_table: Annotated[
        Path | None, typer.Option(help="Table of the gallery, to calibrate the similarity threshold of a match.")
    ] = None,
    hold_out: Annotated[
        str,
        typer.Option(help="Calibrate on a fifth of the classes or of the images; auto: of the classes, if there are 20."),
    ] = "auto",
    per_label: Annotated[
        int | None,
        typer.Option(min=0, help="Label level to calibrate a threshold for each label of; default: one for all."),
    ] = None,
    policy: Annotated[
        str, typer.Option(help="What search does with out-of-distribution queries: reject, flag or ignore.")
    ] = "reject",
) -> None:
    """Fit and calibrate a rejector of out-of-distribution queries; print its thresholds."""
    from sightline.ood.rejector import HOLD_OUTS, check_place, fit_rejector

    if (table is None) == (gallery is None) or (gallery is not None and gallery_table is not None):
        raise InputError("give either a table or --gallery; --gallery-table goes with a table")
    if table is not None:
        embedded, generation = read_table(table), None
        matched = None if gallery_table is None else read_table(gallery_table)
    else:
        embedded, matched, generation, out = _gallery(str(gallery), out, options)
    if out is None:
        raise InputError("give --out, the folder to write")
    check_place(out)
    scorer_options = options.of_scorer()
    if taken := scorer_options.keys() & signature(fit_rejector).parameters.keys():
        raise InputError(f"--option {min(taken)}: not an option of the scorer; use the command's own --{min(taken)}")
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
        hold_out=choose(HOLD_OUTS, hold_out, "--hold-out"),
        per_label=per_label,
        trust=options.trust,
        **scorer_options,
    )
    rejector.generation = generation
    _print_fitted(rejector, rejector.save(out), tpr, has_gallery=gallery is not None)


def _print_fitted(rejector: "Rejector", folder: Path, tpr: float, has_gallery: bool) -> None:
    """What was fitted and why, what it promises, and the thresholds."""
    scorer = rejector.scorer
    saved = f"{folder}: {scorer.name}, accepts {100 * (scorer.acceptance or 0):.3g} % of in-distribution images"
    labels = rejector.by_label and rejector.by_label.as_text()
    for line in filter(None, (rejector.advice, saved, labels, *scorer.notes)):
        echo(line)
    if rejector.similarity_threshold is not None:
        echo(f"similarity threshold {rejector.similarity_threshold:.4f} recognises {100 * tpr:g} % of matches")
    elif has_gallery:
        echo("no similarity threshold: no two items share a label")


@app.command()
def recalibrate(
    rejector: Annotated[Path, typer.Argument(help="Folder written by `sightline ood fit`.")],
    log: Annotated[Path, typer.Argument(help="What `sightline serve` wrote to standard error.")],
    gallery: Annotated[
        str | None, typer.Option(help="Only queries to this gallery; required if there are several.")
    ] = None,
    tpr: Annotated[float, typer.Option(help="Share of such queries to accept.")] = 0.95,
    trust: Annotated[bool, typer.Option("--trust", help="Allow importing package.module:Name.")] = False,
) -> None:
    """Set the threshold from the energies of queries that a service logged, all taken to be in-distribution."""
    from sightline.ood.drift import logged_energies
    from sightline.ood.rejector import Rejector

    loaded = Rejector.load(rejector, trust=trust)
    before = loaded.scorer.threshold
    if loaded.by_label is not None:
        raise InputError(f"{rejector}: has thresholds by label, which a log of energies cannot replace; fit it again")
    energies = logged_energies(log, before, gallery)
    loaded.scorer.calibrate_on(energies, tpr)
    accepted = 100 * (loaded.scorer.acceptance or 0)
    folder = rejector if (rejector / "rejector.json").is_file() else rejector / "rejector"
    echo(
        f"{loaded.save(folder)}: energy threshold {loaded.scorer.threshold:.4g}, was {before:.4g}, "
        f"accepts {accepted:.3g} % of {len(energies)} logged queries"
    )


@app.command()
def scorers() -> None:
    """List the scorers of `sightline ood fit --scorer` with their options, those of other packages included."""
    from sightline.ood import SCORERS
    from sightline.ood.rejector import GIVEN

    for name in SCORERS:
        if {*SCORERS.find(name).needs} <= {*GIVEN}:  # type: ignore[attr-defined]
            summary = sub(r":\w+:`(\w+)`", r"\1", SCORERS.summary(name)).replace("``", "`")  # without reStructuredText
            echo(f"{name} ({', '.join(SCORERS.options(name)) or 'no options'}): {summary}")


@app.command()
def evaluate(
    rejector: Annotated[Path, typer.Argument(help="Folder written by `sightline ood fit`.")],
    inside: Annotated[Path, typer.Option("--in", help="Table of in-distribution images that it was not fitted on.")],
    out_sets: Annotated[
        list[str], typer.Option("--out-sets", help="name=table of out-of-distribution images; repeatable.")
    ],
    split: Annotated[str | None, typer.Option(help="Only this split of the in-distribution images.")] = None,
    interval: Annotated[float | None, typer.Option(help="Also print confidence intervals of this level: 0.95.")] = None,
    json: Annotated[Path | None, typer.Option(help="Also write metrics and intervals to this JSON file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw ROC and histograms to this .svg or .png file.")] = None,
    gallery_table: Annotated[
        Path | None, typer.Option(help="Table of the gallery; also print the identification rate.")
    ] = None,
    far: Annotated[
        float, typer.Option(help="With --gallery-table: share of out-of-distribution images that may be matched.")
    ] = 0.01,
    trust: Annotated[bool, typer.Option("--trust", help="Allow importing package.module:Name.")] = False,
) -> None:
    """Print AUROC, FPR95, AUPR and accuracy in percent for each set and their mean, and the share rejected."""
    from sightline.evaluation.detection import DetectionResult, identification_rates
    from sightline.ood.rejector import Rejector

    if plot is not None and plot.suffix not in PICTURES:
        raise InputError(f"--plot {plot}: the file must end in {' or '.join(PICTURES)}")
    loaded = Rejector.load(rejector, trust=trust)
    belonging = read_table(inside, split)
    tables = {name: read_table(Path(file)) for name, file in named_values("--out-sets", out_sets).items()}
    gallery = None if gallery_table is None else read_table(gallery_table)
    for name, table in {str(inside): belonging, **tables, str(gallery_table): gallery}.items():
        if table is not None:
            loaded.check_encoder(table.fingerprint, name)
            table.check_finite()
    energies = {name: loaded.energies(table) for name, table in tables.items()}
    result = DetectionResult(loaded.energies(belonging), energies)
    rates = {} if gallery is None else identification_rates(belonging, gallery, tables, far)
    echo(result.as_text(interval))
    threshold = loaded.scorer.threshold or 0.0
    sets = {"in-distribution": (belonging, result.inside)} | {name: (tables[name], energies[name]) for name in tables}
    refused = {name: float((found > loaded.thresholds(one)).mean()) for name, (one, found) in sets.items()}
    echo("rejected: " + ", ".join(f"{100 * share:.1f} % of {name}" for name, share in refused.items()))
    if gallery is not None:
        shares = ", ".join(f"{100 * rate:.1f} % against {name}" for name, rate in rates.items())
        echo(f"identified at a false alarm rate of {100 * far:g} %: {shares}")
    if json is not None:
        result.write_json(json, interval or 0.95)
    if plot is not None:
        with needs_extra("--plot", "report"):
            from sightline.report.figures import draw_detection
        draw_detection(result, plot, threshold)


def _gallery(
    address: str, out: Path | None, options: ScorerOptions
) -> "tuple[EmbeddingTable, EmbeddingTable | None, int | None, Path]":
    """The gallery's items, the same again if some share a label, its generation if the rejector goes inside, and where."""
    from sightline.gallery.gallery import REJECTOR_FOLDER, Gallery
    from sightline.gallery.ingest import gallery_table
    from sightline.ood.rejector import check_place

    with Gallery.open(address, read_only=True) as opened:
        if out is None and not opened.capabilities.keeps_models:
            raise InputError(f"{opened.address}: this kind of gallery cannot store a rejector; give --out")
        generation = opened.generation if out is None else None  # read before the items, which may be newer
        folder = out or Path(opened.address) / REJECTOR_FOLDER
        if out is None and folder.is_symlink():
            raise InputError(f"{folder}: is a link, which is not followed; give --out, the folder to write")
        check_place(folder)
        table = gallery_table(opened)
        table = _embedded_again(opened, table, options)
    can_match = table.manifest.n_levels > 0 and bool(table.manifest.table["label_0"].is_duplicated().any())
    return table, table if can_match else None, generation, folder


def _embedded_again(gallery: "Gallery", table: "EmbeddingTable", options: ScorerOptions) -> "EmbeddingTable":
    """The table with inputs of scorers, if the scorer takes them: a gallery keeps vectors alone."""
    from sightline.gallery.gallery import ENCODER_FOLDER
    from sightline.gallery.ingest import with_scorer_inputs
    from sightline.ood.rejector import wants_images

    wanted = options.scorer, options.of_scorer()
    has_encoder = gallery.model_folder(ENCODER_FOLDER) is not None
    if not wants_images(*wanted, has_encoder, trust=options.trust):
        return table
    encoder = gallery.encoder(options.trust)
    if not wants_images(*wanted, encoder.has_feature_maps, trust=options.trust):
        return table
    echo(f"embedding the images of {gallery.address} again: the scorer takes more than vectors", err=True)
    try:
        return with_scorer_inputs(gallery, table, encoder)
    except InputError as error:
        raise InputError(f"{error}; --scorer heat --option 'priors=[\"gmm\"]' takes vectors alone") from error


def _value(text: str) -> object:
    """The value of a JSON text; a text that is not JSON is a string."""
    try:
        return loads(text)
    except JSONDecodeError:
        return text
