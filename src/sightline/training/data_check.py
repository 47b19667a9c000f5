"""Check a set of images, and whether a recipe can train on it."""

import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sightline.data.check import DataReport, Finding, inspect_data
from sightline.data.manifest import Manifest
from sightline.data.samplers import SamplerSection, column_of, unusable_classes
from sightline.errors import InputError
from sightline.training.prepare import sampler_labels, select_images, train_and_validation, with_recipe_codes
from sightline.training.recipe import Recipe, override_recipe, read_recipe


def check_data(
    source: Path | str,
    recipe: str | Recipe | None = "images",
    overrides: Sequence[str] = (),
    labelled: bool = True,
    show_progress: bool = False,
) -> DataReport:
    """Find everything that is wrong with a set of images in one pass; if there is no fault, training accepts the set.

    Faults: rows or folders that do not fit the layout, images that cannot be decoded, classes too small or too few for the
    recipe. Warnings: exact duplicates in several classes, in several splits or in one class; images under 32 pixels or over
    50 million; classes in several splits; files whose suffix is not read. A source that cannot be read at all raises
    ``InputError``.

    Args:
        source: a ``.csv`` or ``.parquet`` manifest, or a folder of images.
        recipe: the recipe to train with, its name or its file; None to check the images alone.
        overrides: values of the recipe to change, such as ``sampler.per_class=2``.
        labelled: count images without a label as a fault.
        show_progress: draw a progress bar on standard error.

    Example:
        >>> import tempfile
        >>> from PIL import Image
        >>> folder = Path(tempfile.mkdtemp(), "cat")
        >>> folder.mkdir()
        >>> Image.new("RGB", (64, 64)).save(folder / "a.png")
        >>> report = check_data(folder.parent, overrides=["data.val_fraction=0", "sampler.skip_small_classes=true"])
        >>> [fault.title.partition(";")[0] for fault in report.faults]
        ['a batch of 64 needs 16 classes of at least 4 images, there are 0']
    """
    if recipe is None:
        return inspect_data(source, labelled, show_progress=show_progress)
    read = override_recipe(recipe, overrides) if isinstance(recipe, Recipe) else read_recipe(recipe, list(overrides))

    has_codes = read.data.codes is not None

    def find_for_recipe(manifest: Manifest) -> Iterator[Finding]:
        return training_findings(manifest, read) if manifest.n_levels or has_codes else iter(())

    return inspect_data(source, labelled and not has_codes, read.data.skip_unreadable, find_for_recipe, show_progress)


def training_findings(manifest: Manifest, recipe: Recipe) -> Iterator[Finding]:
    """Reasons why training would reject the images, and the classes that it would leave out."""
    if "train" not in manifest.table["split"]:
        yield Finding(
            "no image in split 'train': images can be searched and measured; to train, put some into split 'train'"
        )
        return
    try:
        manifest = with_recipe_codes(manifest, recipe)
        train_part = train_and_validation(manifest, recipe)[0]
        labels, called = sampler_labels(train_part, recipe)
        small = unusable_classes(recipe.sampler, labels)
        if len(small):
            yield _small_classes(called, labels, small, recipe.sampler)
        # Without those classes, other faults show.
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            select_images(manifest, override_recipe(recipe, ["sampler.skip_small_classes=true"]))
        yield from (Finding(_plain(one.message, manifest)) for one in caught if one.category is UserWarning)
    except InputError as error:
        yield Finding(_plain(error, manifest), is_fault=True)


def _plain(message: object, manifest: Manifest) -> str:
    """A message without the names of what is checked, which the report has already."""
    return str(message).removeprefix(f"{manifest.source}: ").removeprefix("sampler: ")


def _small_classes(
    called: Sequence[str], labels: NDArray[np.int64], small: NDArray[np.int64], sampler: SamplerSection
) -> Finding:
    counts = np.bincount(column_of(labels, sampler.level))
    of_all, least = f"{len(small)} of {len(counts)} training classes", f"sampler.per_class={sampler.per_class}"
    leave_out = "lower it, or leave these classes out with sampler.skip_small_classes=true"
    mend = f"add images, {'or these classes are left out' if sampler.skip_small_classes else leave_out}"
    return Finding(
        f"{of_all}: fewer than {least} images; {mend}",
        tuple(f"{called[code]}: {counts[code]}" for code in small),
        is_fault=not sampler.skip_small_classes,
    )
