# %% [markdown]
# # Train on your folder
#
# A folder of images, a sub-folder for each class, becomes an encoder, a number to trust, a gallery to search and a file
# for production. Run it as a script, or cell by cell in an editor that knows `# %%`:
#
#     python examples/train_on_your_folder.py photos/ out/ schedule.epochs=20
#
# The deepest folder is the finest label: of `photos/birds/robin/1.jpg` it is `robin`, and `birds` the coarser one.

# %%
import sys
from pathlib import Path

import polars as pl

import sightline as sl
from sightline.data.manifest import hold_out_classes, label_columns, manifest_statistics
from sightline.gallery.ingest import index_images

# %% [markdown]
# ## 1. From a folder to a table with a test split
# A fifth of the classes is put aside: search is measured on classes that training never saw, as it will be used.


# %%
def describe(folder: Path, file: Path) -> sl.Manifest:
    """Write the table of the folder's images; where the folder has no test split, some classes become one."""
    manifest = sl.read_manifest(folder)
    table = manifest.table.with_columns(path=pl.Series([str(path.resolve()) for path in manifest.paths()]))
    if "test" not in table["split"]:
        _, test = hold_out_classes(manifest, fraction=0.2, seed=0)
        is_test = pl.col("id").is_in(test.table["id"].to_list())
        table = table.with_columns(split=pl.when(is_test).then(pl.lit("test")).otherwise("split"))
    file.parent.mkdir(parents=True, exist_ok=True)
    table.select("id", "path", "split", *label_columns(manifest.n_levels)).write_csv(file)
    written = sl.read_manifest(file)
    print(manifest_statistics(written))  # noqa: T201
    return written


# %% [markdown]
# ## 2. Train
# The recipe `images` is a start for any set, and each of its values has a dotted name to change it by. The best encoder by
# validation is kept, with its model card; a run that was stopped goes on where it was.


# %%
def train(file: Path, out: Path, overrides: list[str]) -> sl.Encoder:
    """The encoder that did best on training classes held out for validation."""
    recipe = sl.read_recipe("images", [f"data.manifest={file}", *overrides])
    return sl.Encoder.from_pretrained(sl.train(recipe, out, resume=True, show_progress=True))


# %% [markdown]
# ## 3. Measure
# Each test image searches among the others; the interval says how far other queries could move the number.


# %%
def measure(encoder: sl.Encoder, test: sl.Manifest, out: Path) -> sl.Result:
    """The test result, also written for `sightline export card --result`."""
    result = sl.evaluate_table(sl.embed_manifest(encoder, test, show_progress=True))
    print(result.as_text(level=0.95))  # noqa: T201
    result.write_json(out)
    return result


# %% [markdown]
# ## 4. Search
# The gallery keeps vectors, labels and the encoder in one folder; run again, it embeds only what is new or has changed.


# %%
def search(encoder: sl.Encoder, images: sl.Manifest, query: Path, folder: Path, k: int = 5) -> list[str]:
    """The ids of the k images most like the query."""
    gallery = sl.Gallery.open(folder) if sl.Gallery.is_at(folder) else sl.Gallery.create(folder, encoder)
    with gallery:
        print(index_images(gallery, encoder, images))  # noqa: T201
        scores, ids = gallery.search(encoder.encode([query]), k=k)
    for score, name in zip(scores[0], ids[0], strict=True):
        print(f"{score:.3f}  {name}")  # noqa: T201
    return list(ids[0])


# %% [markdown]
# ## 5. All of it


# %%
def main(folder: Path, out: Path, overrides: list[str]) -> tuple[sl.Result, list[str]]:
    """Train on a folder; returns the test result and what is most like its first test image."""
    images = describe(folder, out / "images.csv")
    test = images.split("test")
    encoder = train(out / "images.csv", out / "run", overrides)
    result = measure(encoder, test, out / "result.json")
    found = search(encoder, images, test.paths()[0], out / "gallery")
    print(sl.read_card(out / "run/encoder").as_markdown())  # noqa: T201
    return result, found


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:])
