"""One offline page about a model, alone or against another: everything a report shows, put together."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sightline import __version__
from sightline.evaluation.result import Result
from sightline.evaluation.tables import has_role
from sightline.files import replaced
from sightline.report.classes import MOST_ROWS, class_rows
from sightline.report.curves import (
    Panel,
    gap_panel,
    h_precision_panel,
    precision_panel,
    recall_panel,
    score_panel,
    severity_panel,
    training_panels,
)
from sightline.report.gallery import N_QUERIES, Gallery, Thumbnails, galleries, gallery_figure
from sightline.report.maps import N_NEAR, SHAPES, SIZE, class_map, map_panel, marks
from sightline.report.measures import gaps_by_batch_size, label_recalls, measured, metric_rows, recall_places, told_metrics
from sightline.report.outliers import Outliers, outlier_panel
from sightline.report.published import places_of, published_tables_of
from sightline.report.rankings import first_results, sampled_curves
from sightline.report.style import as_svg, level_colours, level_names, write_figure
from sightline.report.subject import Subject, matched


@dataclass(frozen=True)
class Report:
    """What was written.

    Attributes:
        file: the page.
        results: the metrics by model.
        galleries: the queries it shows.
        n_missing: images that could not be read and have a placeholder.
        figures: files written beside it.
    """

    file: Path
    results: dict[str, Result]
    galleries: list[Gallery]
    n_missing: int
    figures: list[Path]


def write_report(
    file: Path,
    subject: Subject,
    against: Subject | None = None,
    *,
    title: str | None = None,
    summary: Sequence[str] = (),
    figures: Path | None = None,
    published: str | None = None,
    outliers: Outliers | None = None,
    k: int = 10,
    n_queries: int = N_QUERIES,
    seed: int = 0,
) -> Report:
    """Write one HTML file that needs nothing but itself.

    Args:
        file: where to.
        subject: the model to show.
        against: one to compare it with, of the same images and labels.
        title: of the page; None for the names of the models.
        summary: sentences that say what was done, and how to repeat it.
        figures: folder for every figure as PNG and SVG; None for none.
        published: the name of a paper's table to show beside; None for those of a data set that is known by its folder.
        outliers: what a rejector says of the first model's images, if there is one.
        k: results of a query that galleries show.
        n_queries: in each gallery.
        seed: of what is drawn by lot, and of t-SNE.
    """
    if against is not None:
        against = matched(subject, against)
        if against.name == subject.name:
            against = replace(against, name=f"{against.name} (other)")
    subjects = [subject] if against is None else [subject, against]
    table, n_levels = subject.table, subject.table.manifest.n_levels
    results = {one.name: measured(one, k) for one in subjects}
    rows, by = metric_rows(results, told_metrics(n_levels, k))
    found = {one.name: first_results(one, k) for one in subjects}
    curves = {one.name: sampled_curves(one, seed) for one in subjects}
    ks = recall_places(len(subject.items))
    metric = next((one.recipe.validation.metric for one in subjects if one.recipe is not None), "map@r")
    shares = {
        place: {name: one.height_shares(place, n_levels) for name, one in found.items()} for place in dict.fromkeys((1, k))
    }
    gaps = {one.name: gaps for one in subjects if (gaps := gaps_by_batch_size(one, seed))}
    thresholds = {one.name: one.thresholds for one in subjects}
    if outliers is not None and outliers.match is not None:
        thresholds[subject.name] = {**thresholds[subject.name], "match": outliers.match}
    panels = {
        "training": training_panels({one.name: one.log for one in subjects}, metric),
        "curves": [
            recall_panel(ks, {name: label_recalls(one, n_levels, ks) for name, one in results.items()}),
            precision_panel(curves),
            *([h_precision_panel(curves)] if n_levels > 1 else []),
        ],
        "severity": [severity_panel(share, place) for place, share in shares.items()],
        "scores": [score_panel(one.name, curves[one.name].histogram, thresholds[one.name]) for one in subjects],
        "outliers": [] if outliers is None else [outlier_panel(outliers)],
        "gap": [gap_panel(gaps)] if gaps else [],
    }
    plane = class_map(subjects, seed)
    precision = {name: one.per_query["map"] for name, one in results.items()}
    shown = galleries(table, found, precision, n_queries, seed)
    thumbnails = Thumbnails(table)
    comparable = list(dict.fromkeys([*told_metrics(n_levels, k), *(f"recall@{place}" for place in ks)]))
    tables = published_tables_of(places_of(table.manifest), published, comparable)
    mine, other = results[subject.name], None if against is None else results[against.name]
    page = (
        _environment()
        .get_template("page.html")
        .render(
            title=title or " against ".join(one.name for one in subjects),
            summary=summary,
            names=list(results),
            rows=rows,
            by=by,
            n_images=len(table),
            n_gallery=int(has_role(table.manifest, "is_gallery").sum()),
            n_classes=[int(column.max()) + 1 for column in table.manifest.labels().T],
            result=mine,
            published=tables,
            results=results,
            panels={
                part: [Markup(as_svg(one.figure, one.name, one.description)) for one in some]
                for part, some in panels.items()
            },
            n_sampled=next(iter(curves.values())).n_queries,
            galleries=shown,
            thumbnails=thumbnails,
            levels=list(zip(level_names(n_levels), level_colours(n_levels), strict=True)),
            plane=plane,
            marks={name: marks(plane, name) for name in plane.points},
            map_size=SIZE,
            n_near=min(N_NEAR, len(plane.names) - 1),
            shapes=SHAPES,
            k=k,
            has_thresholds=any("alpha" in some for some in thresholds.values()),
            has_match="match" in thresholds[subject.name],
            outliers=outliers,
            classes=class_rows(table, mine, found[subject.name], other),
            most_rows=MOST_ROWS,
            fingerprints={one.name: one.table.fingerprint for one in subjects},
            version=__version__,
            css=Markup(_asset("page.css")),
            js=Markup(_asset("page.js")),
        )
    )
    with replaced(Path(file)) as scratch:
        scratch.write_text(page, encoding="utf-8")
    written = []
    if figures is not None:
        drawn = [*(panel for some in panels.values() for panel in some), *(map_panel(plane, name) for name in plane.points)]
        drawn += [Panel(f"gallery-{one.name}", one.title, gallery_figure(one, thumbnails, n_levels)) for one in shown]
        written = [path for panel in drawn for path in write_figure(panel.figure, Path(figures), panel.name)]
    return Report(Path(file), results, shown, len(thumbnails.missing), written)


def command_line(words: Sequence[object]) -> str:
    """The words as one would type them again.

    Example:
        >>> command_line(["sightline", "report", "my run"])
        "sightline report 'my run'"
    """
    return shlex.join(map(str, words))


def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("sightline.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _asset(name: str) -> str:
    return (resources.files("sightline.report") / "templates" / name).read_text(encoding="utf-8")
