"""``sightline train``."""

from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.printing import echo


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe file (.toml), or the name of a shipped recipe.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Values to change, such as loss.name=sup_ap.")] = None,
    out: Annotated[Path, typer.Option(help="Run folder: encoder, checkpoint and logs.")] = Path("run"),
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the last checkpoint in the run folder.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan; train and write nothing.")] = False,
    max_minutes: Annotated[float | None, typer.Option(min=0, help="End after so long, ready to resume.")] = None,
    trust: Annotated[bool, typer.Option("--trust", help="Import and run package.module:Name in the recipe.")] = False,
) -> None:
    """Train an encoder as a recipe says."""
    from sightline.training.distributed import process_number
    from sightline.training.large_batch import keep_freed_memory
    from sightline.training.prepare import plan_run
    from sightline.training.recipe import read_recipe
    from sightline.training.run import train as train_run

    keep_freed_memory()
    read = read_recipe(recipe, overrides)
    done = plan_run(read, trust) if dry_run else train_run(read, out, resume, True, max_minutes, trust)
    if process_number() == 0 and (isinstance(done, str) or done.is_dir()):  # no encoder: stopped before it was validated
        echo(done)
