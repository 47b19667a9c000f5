"""One offline page that shows what training changed."""

from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sightline.evaluation.result import IN_LEVELS, Result, shown
from sightline.files import replaced
from sightline.report.curves import LogRow, training_curves
from sightline.report.gallery import Picture


@dataclass(frozen=True)
class Comparison:
    """One query and what two encoders find for it."""

    query: Picture
    before: list[Picture]
    after: list[Picture]


def write_page(
    file: Path,
    title: str,
    summary: list[str],
    before: Result,
    after: Result,
    log: list[LogRow],
    metric: str,
    comparisons: list[Comparison],
) -> Path:
    """Write one HTML file that needs nothing but itself.

    Args:
        file: where to.
        title: of the page.
        summary: sentences that say what was done, and how to repeat it.
        before: metrics before training.
        after: metrics after training.
        log: the rows of the run's ``log.csv``.
        metric: the validation metric to draw.
        comparisons: the rows of images.
    """
    environment = Environment(
        loader=PackageLoader("sightline.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    rows = []
    for name in after.per_query:
        if name in before.per_query:
            old, new = before[name], after[name]
            values = shown(name, old), shown(name, new), shown(name, new - old, sign="+")
            rows.append((name, *values, "gain" if (new > old) != name.startswith(IN_LEVELS) else "loss"))
    page = environment.get_template("page.html").render(
        title=title,
        summary=summary,
        rows=rows,
        n_queries=after.n_queries,
        n_skipped=after.n_skipped,
        curves=Markup(training_curves(log, metric)),
        comparisons=comparisons,
    )
    with replaced(Path(file)) as scratch:
        scratch.write_text(page, encoding="utf-8")
    return Path(file)
