"""The whole of Sightline in a few minutes: the embedded characters, trained, measured, searched and shown."""

from dataclasses import dataclass
from pathlib import Path

from sightline.data.manifest import read_manifest
from sightline.data.readers.glyphs import write_glyphs
from sightline.evaluation.result import Result
from sightline.models.embed import embed_manifest
from sightline.models.encoder import Encoder
from sightline.report.numbers import table_metrics
from sightline.report.page import ReportOptions, write_report
from sightline.report.subject import Subject, read_untrained
from sightline.training.logs import read_log
from sightline.training.recipe import read_recipe
from sightline.training.run import train
from sightline.training.run_folder import RunFolder

N_SHOWN = 7  # results of a query: each character has seven other images


@dataclass(frozen=True)
class DemoOutcome:
    """What the demo made.

    Attributes:
        before: test metrics of the pretrained features, without training.
        after: test metrics of the trained encoder.
        encoder: its folder.
        table: the embedding table of the test images.
        report: the page.
        queries: files of the queries the page shows.
    """

    before: Result
    after: Result
    encoder: Path
    table: Path
    report: Path
    queries: list[Path]


def run_demo(folder: Path, overrides: list[str] | None = None, show_progress: bool = False) -> DemoOutcome:
    """Draw the characters, train on some, and compare search among unseen ones before and after.

    Before means the pretrained backbone's pooled features, averaged and normalised, without any projection.

    Args:
        folder: where everything goes; a finished run there is shown again, an unfinished one resumed.
        overrides: laid over the recipe ``glyphs``.
        show_progress: draw progress bars.
    """
    manifest_file = write_glyphs(folder / "glyphs", show_progress=show_progress)
    recipe = read_recipe("glyphs", [f"data.manifest={manifest_file}", *(overrides or [])])
    test = read_manifest(manifest_file).split("test")

    run = RunFolder(folder / "run")
    encoder_folder = train(recipe, run.path, resume=True, show_progress=show_progress)
    after = embed_manifest(Encoder.from_pretrained(encoder_folder), test, show_progress=show_progress)
    table_file = after.write(folder / "test.parquet")
    trained = Subject("trained", after, tuple(read_log(run.log_file)), recipe)
    untrained = read_untrained(trained, show_progress)
    report = write_report(
        folder / "report.html",
        trained,
        untrained,
        ReportOptions(
            title="Sightline on characters it has never seen",
            summary=[
                f"An ImageNet {recipe.model.backbone} was trained with the loss {recipe.loss.name!r} for "
                f"{recipe.schedule.epochs} epochs on characters drawn in several typefaces, then asked to find the same "
                "character in other typefaces. "
                "No character of this page was seen in training.",
                "Untrained: the pretrained features as they are. Repeat with: sightline demo",
            ],
            k=N_SHOWN,
            seed=recipe.seed,
        ),
    )
    told = table_metrics(test.n_levels, N_SHOWN)
    results = [
        Result({name: report.results[one.name].per_query[name] for name in told}, after.ids) for one in (untrained, trained)
    ]
    random = next(gallery for gallery in report.galleries if gallery.name == "random")
    queries = [test.paths()[asked.query.row] for asked in random.rows]
    return DemoOutcome(results[0], results[1], encoder_folder, table_file, report.file, queries)
