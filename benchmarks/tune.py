"""Is ``--tune 30m`` worth its time? Against three fixed recipes with the same time, on classes that training never saw.

python benchmarks/tune.py run cub data/cub.parquet                        # 80 minutes of one core; finished runs are kept
python benchmarks/tune.py run logos data/logos/manifest.csv sampler.per_class=2
python benchmarks/tune.py page                                            # the section of docs/benchmarks.md
"""

import json
import os
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated

import numpy as np
import polars as pl
import torch
import typer
from measure import table, write_section

from sightline.data.manifest import read_manifest
from sightline.evaluation.tables import evaluate_table
from sightline.files import write_text
from sightline.models.embed import embed_manifest
from sightline.models.encoder import Encoder
from sightline.training import tune as search
from sightline.training.recipe import Recipe, read_recipe
from sightline.training.run import train

HERE = Path(__file__).parent
RESULTS, PAGE = HERE / "evidence/tune", HERE.parent / "docs/benchmarks.md"
MINUTES, N_IMAGES = 30.0, 5000
FIXED = {"upper stages": "upper:3", "whole network": "full", "head": "frozen"}
SEARCHED = "`--tune 30m`"

INTRODUCTION = """
`--tune 30m` against the recipe `images` with the upper stages, the whole network or the head learning, for as many epochs
as fit into 30 minutes (at most 40, as in the search). Sets are cut to about 5,000 training images, whole classes, at 96 px;
one seed. Time is processor time of one thread, and each side makes its own cache of features. One set is
`python benchmarks/tune.py run cub data/cub.parquet`.
"""

app = typer.Typer(add_completion=False)


def cut(file: Path, out: Path) -> Path:
    """A manifest with random training classes, up to ``N_IMAGES`` images of them, and all test images."""
    whole = read_manifest(file)
    images = whole.table.with_columns(path=pl.Series([str(path.resolve()) for path in whole.paths()]))
    sizes = images.filter(split="train").group_by("label_0").len().sort("label_0")
    sizes = sizes[np.random.default_rng(0).permutation(len(sizes))]
    kept = sizes.filter(pl.col("len").cum_sum() <= N_IMAGES)["label_0"]
    images.filter((pl.col("split") == "test") | pl.col("label_0").is_in(kept.implode())).write_parquet(out)
    return out


def trained_for_the_time(recipe: Recipe, folder: Path) -> Path:
    """Train for as many epochs as fit: one short run fills the cache, the next shows what an epoch takes."""
    since = time.process_time()
    for pilot in ("cache", "pace"):
        started = time.process_time()
        train(recipe.model_copy(update={"schedule": recipe.schedule.model_copy(update={"epochs": 1})}), folder / pilot)
    pace = time.process_time() - started
    left = 60 * MINUTES - (time.process_time() - since)
    epochs = max(1, min(int(left / pace), search.LONGEST * recipe.schedule.epochs))
    return train(
        recipe.model_copy(update={"schedule": recipe.schedule.model_copy(update={"epochs": epochs})}), folder / "run"
    )


@app.command()
def run(name: str, manifest: Path, overrides: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Run what is missing of one set."""
    torch.set_num_threads(1)
    search.time = SimpleNamespace(monotonic=time.process_time)  # type: ignore[assignment]
    for method in (SEARCHED, *FIXED):
        file = RESULTS / f"{name}-{method.strip('`-').replace(' ', '-')}.json"
        if file.is_file():
            continue
        with tempfile.TemporaryDirectory() as folder:
            os.environ["SIGHTLINE_CACHE"] = str(Path(folder) / "cache")
            images = cut(manifest, Path(folder) / "images.parquet")
            given = [f"data.manifest={images}", "data.image_size=96", "data.resize=96", "data.n_workers=0", "loggers=[]"]
            given += overrides or []
            since = time.process_time()
            if method == SEARCHED:
                best = search.tune(read_recipe("images", given), Path(folder) / "out", MINUTES, say=typer.echo)
                encoder = best / "encoder"
            else:
                recipe = read_recipe("images", [*given, f"model.adaptation={FIXED[method]}"])
                encoder = trained_for_the_time(recipe, Path(folder))
            seconds = time.process_time() - since
            vectors = embed_manifest(Encoder.from_pretrained(encoder), read_manifest(images).split("test"), n_workers=0)
            found = evaluate_table(vectors, metrics=["map@r", "recall@1"])
            trials = Path(folder) / "out/trials.csv"
            about = {"set": name, "method": method, "seconds": round(seconds), "metrics": dict(found.means)}
            about |= {"trials": trials.read_text().splitlines()} if trials.is_file() else {}
            write_text(file, json.dumps(about, indent=1) + "\n")
            typer.echo(f"{file.name}: {about['seconds']} s, {about['metrics']}")


@app.command()
def page() -> None:
    """Write the section of the page from the finished runs."""
    runs = [json.loads(file.read_text()) for file in sorted(RESULTS.glob("*.json"))]
    value = {(one["set"], one["method"]): 100 * one["metrics"]["map@r"] for one in runs}
    minutes = {(one["set"], one["method"]): one["seconds"] / 60 for one in runs}
    lines = []
    for name in dict.fromkeys(one["set"] for one in runs):
        cells = [
            f"{value[name, method]:.1f} ({minutes[name, method]:.0f} min)" if (name, method) in value else ""
            for method in (*FIXED, SEARCHED)
        ]
        fixed = [value[name, method] for method in FIXED if (name, method) in value]
        is_whole = len(fixed) == len(FIXED) and (name, SEARCHED) in value
        lines.append([name, *cells, f"{value[name, SEARCHED] - max(fixed):+.1f}" if is_whole else "not finished"])
    header = ["mAP@R on test classes", *FIXED, SEARCHED, "against the best"]
    write_section(PAGE, "What the search for settings gains", INTRODUCTION.strip() + "\n\n" + table(header, lines))


if __name__ == "__main__":
    app()
