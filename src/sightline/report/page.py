"""One offline page about a model, or about two for comparison: a list of sections.

A section is one function of the :class:`Material`, one row of :data:`SECTIONS` and one template of that name.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from markupsafe import Markup

from sightline import __version__
from sightline.evaluation.result import Result
from sightline.evaluation.tables import has_role
from sightline.files import write_text
from sightline.report.figures import (
    N_NEAR,
    SHAPES,
    SIZE,
    Panel,
    class_map,
    gap_panel,
    h_precision_panel,
    map_panel,
    marks,
    outlier_panel,
    precision_panel,
    recall_panel,
    score_panel,
    severity_panel,
    training_panels,
)
from sightline.report.galleries import N_QUERIES, QueryGallery, Thumbnails, deepest_code, galleries, gallery_figure
from sightline.report.numbers import (
    MOST_ROWS,
    Curves,
    FirstResults,
    class_rows,
    first_results,
    gaps_by_batch_size,
    label_recalls,
    measure,
    metric_rows,
    places_of,
    published_tables_of,
    recall_places,
    sampled_curves,
    subject_metrics,
)
from sightline.report.style import ON_DARK, as_svg, code_level_names, level_colours, level_names, template, write_figure
from sightline.report.subject import Outliers, Subject, matched, read_codes


@dataclass(frozen=True, eq=False)
class ReportOptions:
    """Options of a report.

    Attributes:
        title: of the page; None for the names of the models.
        summary: sentences on what was done and how to repeat it.
        figures: folder for every figure as PNG and SVG; None to write none.
        published: name of a paper's table to show; None for the tables of the data set, if its folder names a known one.
        outliers: out-of-distribution scores of the first model's images, if there is a rejector.
        k: results per query in the galleries.
        n_queries: queries per gallery.
        seed: random seed of samples and of t-SNE.
        codes: column of the codes by which results are coloured; None for the first column of lists, if there is one.
    """

    title: str | None = None
    summary: Sequence[str] = ()
    figures: Path | None = None
    published: str | None = None
    outliers: Outliers | None = None
    k: int = 10
    n_queries: int = N_QUERIES
    seed: int = 0
    codes: str | None = None


DEFAULTS = ReportOptions()


@dataclass(frozen=True)
class Report:
    """A report that was written.

    Attributes:
        file: the page.
        results: the metrics by model.
        galleries: the queries shown.
        n_missing: images that could not be read and were replaced by a placeholder.
        figures: figure files.
    """

    file: Path
    results: dict[str, Result]
    galleries: list[QueryGallery]
    n_missing: int
    figures: list[Path]


@dataclass(frozen=True, eq=False)
class Material:
    """The input of sections: one or two models, the options, and shared measurements, each made once."""

    subjects: list[Subject]
    options: ReportOptions

    @property
    def subject(self) -> Subject:
        """The model the page is about."""
        return self.subjects[0]

    @property
    def n_levels(self) -> int:
        """Number of label levels."""
        return self.subject.table.manifest.n_levels

    @cached_property
    def results(self) -> dict[str, Result]:
        """The metrics by model."""
        return {one.name: measure(one, self.options.k) for one in self.subjects}

    @cached_property
    def found(self) -> dict[str, FirstResults]:
        """The first results by model."""
        return {one.name: first_results(one, self.options.k) for one in self.subjects}

    @cached_property
    def curves(self) -> dict[str, Curves]:
        """Curves and histograms by model."""
        return {one.name: sampled_curves(one, self.options.seed) for one in self.subjects}

    @cached_property
    def galleries(self) -> list[QueryGallery]:
        """The queries shown."""
        precision = {name: one.per_query["map"] for name, one in self.results.items()}
        options = self.options
        return galleries(self.subject.table, self.found, precision, options.n_queries, options.seed, self.codes)

    @cached_property
    def codes(self) -> list[list[str]] | None:
        """The codes of each image, if the table has any."""
        return read_codes(self.subject.table.manifest, self.options.codes or self.subject.codes)

    @cached_property
    def thumbnails(self) -> Thumbnails:
        """The images shown."""
        return Thumbnails(self.subject.table)


@dataclass(frozen=True, eq=False)
class ReportSection:
    """The content of a section.

    Attributes:
        values: template variables by name.
        panels: figures of the section.
        files: figures drawn only for ``--figures``.
    """

    values: dict[str, object]
    panels: Sequence[Panel] = ()
    files: Iterable[Panel] = ()


def metrics_section(material: Material) -> ReportSection:
    """Every metric with its interval, and published results if the data set is known."""
    names = subject_metrics(material.subject, material.options.k)
    rows, by = metric_rows(material.results, names)
    ks = recall_places(len(material.subject.items))
    comparable = list(dict.fromkeys([*names, *(f"recall@{place}" for place in ks)]))
    places = places_of(material.subject.table.manifest)
    published = published_tables_of(places, material.options.published, comparable)
    return ReportSection({"rows": rows, "by": by, "published": published})


def training_section(material: Material) -> ReportSection | None:
    """The loss and the validation metric, from the runs' logs."""
    recipes = [one.recipe for one in material.subjects if one.recipe is not None]
    metric = recipes[0].validation.metric if recipes else "map@r"
    panels = training_panels({one.name: one.log for one in material.subjects}, metric)
    return ReportSection({}, panels) if panels else None


def curves_section(material: Material) -> ReportSection:
    """Recall at each place, and precision at each recall."""
    ks = recall_places(len(material.subject.items))
    recalls = {name: label_recalls(one, material.n_levels, ks) for name, one in material.results.items()}
    graded = [h_precision_panel(material.curves)] if material.n_levels > 1 else []
    return ReportSection({}, [recall_panel(ks, recalls), precision_panel(material.curves), *graded])


def galleries_section(material: Material) -> ReportSection:
    """Queries with their results."""
    thumbnails, shown, codes = material.thumbnails, material.galleries, material.codes
    n_levels = material.n_levels if codes is None else deepest_code(codes)
    names = level_names(n_levels) if codes is None else code_level_names(n_levels)
    levels = list(zip(names, level_colours(n_levels), strict=True))
    values = {"galleries": shown, "thumbnails": thumbnails, "levels": levels, "has_codes": codes is not None}
    files = (Panel(f"gallery-{one.name}", one.title, gallery_figure(one, thumbnails, n_levels)) for one in shown)
    return ReportSection(values, files=files)


def map_section(material: Material) -> ReportSection:
    """A map of the class means."""
    plane = class_map(material.subjects, material.options.seed)
    values = {
        "plane": plane,
        "marks": {name: marks(plane, name) for name in plane.points},
        "map_size": SIZE,
        "n_near": min(N_NEAR, len(plane.names) - 1),
        "shapes": SHAPES,
        "on_dark": ON_DARK,
    }
    return ReportSection(values, files=(map_panel(plane, name) for name in plane.points))


def severity_section(material: Material) -> ReportSection:
    """How far up the label tree mistakes are."""
    shares = {
        place: {name: one.height_shares(place, material.n_levels) for name, one in material.found.items()}
        for place in dict.fromkeys((1, material.options.k))
    }
    return ReportSection({}, [severity_panel(share, place) for place, share in shares.items()])


def scores_section(material: Material) -> ReportSection:
    """Cosines of pairs by shared labels, and thresholds."""
    thresholds = {one.name: one.thresholds for one in material.subjects}
    outliers = material.options.outliers
    match = {} if outliers is None or outliers.match is None else {"match": outliers.match}
    lines = thresholds | {material.subject.name: thresholds[material.subject.name] | match}
    panels = [score_panel(name, one.histogram, lines[name]) for name, one in material.curves.items()]
    return ReportSection({"has_thresholds": any(thresholds.values()), "has_match": bool(match)}, panels)


def outliers_section(material: Material) -> ReportSection | None:
    """Out-of-distribution scores of the images."""
    outliers = material.options.outliers
    return None if outliers is None else ReportSection({"outliers": outliers}, [outlier_panel(outliers)])


def gap_section(material: Material) -> ReportSection | None:
    """The decomposability gap: how much higher average precision is inside batches."""
    seed = material.options.seed
    gaps = {one.name: gaps for one in material.subjects if (gaps := gaps_by_batch_size(one, seed))}
    return ReportSection({}, [gap_panel(gaps)]) if gaps else None


def classes_section(material: Material) -> ReportSection:
    """Every class, the worst first."""
    results, mine = list(material.results.values()), material.found[material.subject.name]
    rows = class_rows(material.subject.table, results[0], mine, results[1] if len(results) > 1 else None)
    return ReportSection({"classes": rows, "most_rows": MOST_ROWS})


# In page order: id and template of each section, its title in the navigation, and its function, which returns None if there
# is nothing to show.
SECTIONS: list[tuple[str, str, Callable[[Material], ReportSection | None]]] = [
    ("metrics", "Metrics", metrics_section),
    ("training", "Training", training_section),
    ("curves", "Curves", curves_section),
    ("galleries", "Galleries", galleries_section),
    ("map", "Map", map_section),
    ("severity", "Severity", severity_section),
    ("scores", "Scores", scores_section),
    ("outliers", "Outliers", outliers_section),
    ("gap", "Batches", gap_section),
    ("classes", "Classes", classes_section),
]


def write_report(file: Path, subject: Subject, against: Subject | None = None, options: ReportOptions = DEFAULTS) -> Report:
    """Write a self-contained HTML file.

    Args:
        file: to write.
        subject: the model to show.
        against: a model to compare with, on the same images and labels.
        options: of the report.
    """
    subjects = [subject]
    if against is not None:
        other = matched(subject, against)
        subjects.append(replace(other, name=f"{other.name} (other)") if other.name == subject.name else other)
    material = Material(subjects, options)
    sections = [(name, title, made) for name, title, make in SECTIONS if (made := make(material)) is not None]
    write_text(Path(file), _rendered(material, sections))
    written = []
    if options.figures is not None:
        drawn = [panel for _, _, section in sections for panel in (*section.panels, *section.files)]
        written = [path for panel in drawn for path in write_figure(panel.figure, Path(options.figures), panel.name)]
    return Report(Path(file), material.results, material.galleries, len(material.thumbnails.missing), written)


def _rendered(material: Material, sections: Sequence[tuple[str, str, ReportSection]]) -> str:
    table = material.subject.table
    shared = {  # available in every template
        "names": list(material.results),
        "results": material.results,
        "result": material.results[material.subject.name],
        "n_classes": [int(column.max()) + 1 for column in table.manifest.labels().T],
        "n_sampled": material.curves[material.subject.name].n_queries,
    }
    parts = []
    for name, title, section in sections:
        panels = [Markup(as_svg(one.figure, one.name, one.description)) for one in section.panels]
        html = template(f"{name}.html").render(**shared, **section.values, panels=panels)
        parts.append({"name": name, "title": title, "html": Markup(html)})
    return template("page.html").render(
        **shared,
        sections=parts,
        title=material.options.title or " against ".join(material.results),
        summary=material.options.summary,
        n_images=len(table),
        n_gallery=int(has_role(table.manifest, "is_gallery").sum()),
        selections=[said for one in material.subjects for said in (one.selection, one.by_codes) if said is not None],
        fingerprints={one.name: one.table.fingerprint for one in material.subjects},
        version=__version__,
    )
