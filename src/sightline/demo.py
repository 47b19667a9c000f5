"""The whole of Sightline in a few minutes: the embedded characters, trained, measured, searched and shown."""

from dataclasses import dataclass
from pathlib import Path

from sightline.config import read_recipe
from sightline.data.glyphs import write_glyphs
from sightline.data.manifest import read_manifest
from sightline.embedding.extract import embed_manifest
from sightline.evaluation.protocol import evaluate_table
from sightline.evaluation.result import Result
from sightline.models.encoder import Encoder
from sightline.pipeline import train
from sightline.report.gallery import draw_queries, nearest_pictures, picture_of
from sightline.report.page import Comparison, write_page
from sightline.training.logs import read_log

N_QUERIES, N_SHOWN = 12, 7  # each character has seven other images


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

    untrained = Encoder.create(
        recipe.model.backbone,
        None,
        "avg",
        recipe.model.weights,
        recipe.data.image_size,
        recipe.data.resize,
        seed=recipe.seed,
    )
    before = embed_manifest(untrained, test, show_progress=show_progress)
    encoder_folder = train(recipe, folder / "run", resume=True, show_progress=show_progress)
    after = embed_manifest(Encoder.from_pretrained(encoder_folder), test, show_progress=show_progress)
    table_file = after.write(folder / "test.parquet")

    results = evaluate_table(before), evaluate_table(after)
    queries = draw_queries(after, N_QUERIES, recipe.seed)
    found = zip(queries, nearest_pictures(before, queries, N_SHOWN), nearest_pictures(after, queries, N_SHOWN), strict=True)
    report = write_page(
        folder / "report.html",
        "Sightline on characters it has never seen",
        [
            f"An ImageNet {recipe.model.backbone} was trained with the loss {recipe.loss.name!r} for "
            f"{recipe.schedule.epochs} epochs on characters drawn in several typefaces, then asked to find the same "
            "character in other typefaces. "
            "No character of this page was seen in training.",
            "Before: the pretrained features without training. Repeat with: sightline demo",
        ],
        *results,
        read_log(folder / "run" / "log.csv"),
        recipe.validation.metric,
        [Comparison(picture_of(after, int(query)), old, new) for query, old, new in found],
    )
    return DemoOutcome(*results, encoder_folder, table_file, report, [test.paths()[query] for query in queries])
