"""``sightline hierarchy``: make a label tree from names or images, step by step."""

from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.printing import echo

app = typer.Typer(no_args_is_help=True, help="Make a label tree from names or images, step by step, and look after it.")
Folder = Annotated[Path, typer.Argument(help="Folder of the steps' files.")]


@app.command()
def collect(
    folder: Folder,
    source: Annotated[Path, typer.Argument(help="A manifest or folder of images, or a CSV with a column label.")],
    description: Annotated[str | None, typer.Option(help="Manifest column that says what a label is.")] = None,
    category: Annotated[str | None, typer.Option(help="Manifest column with the label's category.")] = None,
    wikidata: Annotated[bool, typer.Option("--wikidata", help='Look up each label\'s "instance of" at Wikidata.')] = False,
    contact: Annotated[str, typer.Option(help="Your mail address or page, which Wikimedia asks for.")] = "",
    site: Annotated[str, typer.Option(help="Whose page titles the labels are: enwiki, commonswiki, ...")] = "enwiki",
    api: Annotated[str, typer.Option(help="Address of the Wikimedia API.")] = "https://www.wikidata.org/w/api.php",
    per_second: Annotated[float, typer.Option(min=0.01, help="Requests at most.")] = 1.0,
) -> None:
    """List the labels with what is known about them (labels.csv)."""
    import polars as pl

    from sightline.data.manifest import read_manifest
    from sightline.hierarchy.collect import labels_of_manifest, read_labels, read_words, with_categories, write_labels
    from sightline.hierarchy.wikimedia import Wikimedia

    is_manifest = source.is_dir() or source.suffix.lower() == ".parquet"
    if not is_manifest and source.is_file():
        is_manifest = "path" in read_words(source, ()).columns
    labels = labels_of_manifest(read_manifest(source), description, category) if is_manifest else read_labels(source)
    if wikidata:
        client = Wikimedia(folder / "wikimedia", contact, api, site, per_second=per_second)
        labels = with_categories(labels, client.instance_of(labels["label"].to_list(), show_progress=True))
    file = write_labels(folder, labels)
    known = labels.filter(pl.col("category") != "").height, labels.filter(pl.col("description") != "").height
    echo(f"{file}: {len(labels)} labels, {known[0]} with a category, {known[1]} with a description")


@app.command()
def clean(
    folder: Folder,
    text: Annotated[str, typer.Option(help="What stands for a label: category, description or name.")] = "category",
    meta: Annotated[list[str] | None, typer.Option(help="Pattern of texts that say nothing; instead of the usual.")] = None,
    ambiguous: Annotated[bool, typer.Option(help="Drop labels of several categories, or take the first.")] = True,
    min_images: Annotated[int, typer.Option(min=0, help="Drop labels with fewer images.")] = 0,
) -> None:
    """Keep one text a label (clean.csv); list what is dropped and why (dropped.csv)."""
    from sightline.hierarchy.clean import META, CleanRules
    from sightline.hierarchy.clean import clean as clean_folder

    rules = CleanRules(text, META if meta is None else meta, ambiguous, min_images)
    n_kept, dropped = clean_folder(folder, rules)
    echo(f"{folder / 'clean.csv'}: {n_kept} labels kept, {len(dropped)} dropped")
    for reason, n in dropped["reason"].str.split(":").list.first().value_counts(sort=True).rows():
        echo(f"  {n:>7} {reason}")


@app.command()
def embed(
    folder: Folder,
    images: Annotated[Path | None, typer.Option(help="Embedding table, for the means of the classes' images.")] = None,
    text_weight: Annotated[float, typer.Option(min=0, help="Of the texts beside the images; 0: images alone.")] = 1.0,
    image_weight: Annotated[float, typer.Option(min=0, help="Of the images beside the texts.")] = 1.0,
    batch_size: Annotated[int, typer.Option(min=1, help="Texts in one pass.")] = 128,
) -> None:
    """Make a vector for each distinct text (terms.csv, vectors.safetensors)."""
    from sightline.data.embedding_table import EmbeddingTable
    from sightline.hierarchy.embed import embed_terms

    table = None if images is None else EmbeddingTable.read(images)
    given = None if table is None else (table.manifest, table.vectors)
    n, dim = embed_terms(folder, given, text_weight, image_weight, batch_size, show_progress=True)
    echo(f"{folder / 'vectors.safetensors'}: {n} vectors of {dim}")


@app.command()
def cluster(
    folder: Folder,
    k: Annotated[
        list[int] | None, typer.Option("-k", min=1, help="Groups of a level, finest first; repeat for more.")
    ] = None,
    levels: Annotated[int, typer.Option(min=1, help="Levels to suggest where no -k is given.")] = 1,
    method: Annotated[str, typer.Option(help="kmeans or agglomerative.")] = "kmeans",
    seed: Annotated[int, typer.Option(min=0, help="Of the random starts.")] = 0,
) -> None:
    """Group the texts in one or several levels (clusters.csv)."""
    from sightline.hierarchy.cluster import ClusterOptions
    from sightline.hierarchy.cluster import cluster as cluster_folder

    sizes = cluster_folder(folder, ClusterOptions(method, tuple(k or ()), levels, seed))
    echo(f"{folder / 'clusters.csv'}: {' < '.join(map(str, sizes))} groups")
    if not k and len(sizes) < levels:
        echo(f"only {len(sizes)} of {levels} levels: too few groups are suggested for more; give them by -k")


@app.command()
def review(
    folder: Folder,
    csv: Annotated[bool, typer.Option("--csv", help="Only write review.csv, to be edited as a table.")] = False,
    host: Annotated[str, typer.Option(help="Loopback address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any that is free.")] = 8765,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open it in a browser.")] = True,
) -> None:
    """Rename, split, merge and move groups on a local page; every change is kept (journal.jsonl)."""
    from sightline.errors import InputError
    from sightline.hierarchy.collect import REVIEW, write_step
    from sightline.hierarchy.review import Review

    state = Review(folder)
    if not csv:
        try:
            from sightline.serve.review import serve_review
        except ModuleNotFoundError as error:
            raise InputError(f"the page needs {error.name}: pip install 'sightline[serve]', or take --csv") from error
        serve_review(state, host, port, open_page, echo)
    echo(write_step(folder, REVIEW, state.table()))


@app.command()
def apply(
    folder: Folder,
    manifest: Annotated[Path, typer.Argument(help="A manifest, or a folder of images, with the labels.")],
    out: Annotated[Path, typer.Option(help="Manifest to write (.csv or .parquet).")],
    review: Annotated[list[Path] | None, typer.Option(help="Edited review.csv; several must agree.")] = None,
    unplaced: Annotated[str, typer.Option(help="Labels without a group: drop, or alone.")] = "drop",
) -> None:
    """Write the manifest with the groups as coarser labels; report how large and even they are."""
    from sightline.data.manifest import read_manifest
    from sightline.errors import InputError
    from sightline.hierarchy.apply import apply_groups, level_reports, report_text
    from sightline.hierarchy.collect import AGREED, CONFLICTS, write_step
    from sightline.hierarchy.review import Review, merged_reviews, read_review

    if review and len(review) > 1:
        agreed, conflicts = merged_reviews(review)
        if len(conflicts):
            file, same = write_step(folder, CONFLICTS, conflicts), write_step(folder, AGREED, agreed)
            raise InputError(
                f"{file}: {len(conflicts)} texts on which the reviews differ; agree on them first. "
                f"{same} has the other {len(agreed)}"
            )
    state = read_review(review[0]) if review else Review(folder).state
    found, homeless = apply_groups(folder, state, read_manifest(manifest), out, unplaced)
    echo(f"{out}: {len(found)} images, {found.n_levels} label levels")
    if homeless:
        echo(f"{folder / 'unplaced.csv'}: {len(homeless)} labels have no group")
    echo(report_text(level_reports(found)))


@app.command()
def attach(
    manifest: Annotated[Path, typer.Argument(help="A manifest, or a folder of images, with labels.")],
    out: Annotated[Path, typer.Option(help="Manifest to write (.csv or .parquet).")],
    tree: Annotated[Path | None, typer.Option(help="Table child,parent, or columns kingdom ... species.")] = None,
    kind: Annotated[str, typer.Option(help="What the table is: edges, taxonomy, or auto.")] = "auto",
    several_parents: Annotated[
        str, typer.Option(help="A second parent in a table of edges, as in WordNet: fault, or first, which counts.")
    ] = "fault",
    fill: Annotated[bool, typer.Option("--fill", help="Stand in for empty ranks of a taxonomy.")] = False,
    codes: Annotated[bool, typer.Option("--codes", help="The labels themselves are dotted codes: 26.1.15.")] = False,
    unplaced: Annotated[str, typer.Option(help="Labels that are not in the tree: drop, or alone.")] = "drop",
) -> None:
    """Give a manifest the levels of a tree that you have; all faults of the tree are listed at once."""
    from sightline.data.manifest import read_manifest
    from sightline.errors import InputError
    from sightline.hierarchy.apply import (
        level_reports,
        report_text,
        tree_groups,
        with_groups,
        with_normal_codes,
        write_manifest,
    )
    from sightline.labels.codes import tree_of_codes
    from sightline.labels.tree import read_tree

    if (tree is None) != codes:
        raise InputError("give either --tree or --codes")
    if codes and (kind != "auto" or several_parents != "fault" or fill):
        raise InputError("--kind, --several-parents and --fill say how to read --tree, and there is none")
    images = read_manifest(manifest)
    if tree is None:
        images = with_normal_codes(images)
        found_tree = tree_of_codes(images.table["label_0"], manifest)
    else:
        found_tree = read_tree(tree, kind, several_parents, fill)
    groups = tree_groups(found_tree)
    found, homeless = with_groups(images, groups, unplaced)
    echo(f"{write_manifest(found, out)}: {len(found)} images, {found.n_levels} label levels")
    if homeless:
        echo(f"{len(homeless)} labels are not in the tree: {', '.join(homeless[:10])}{', ...' * (len(homeless) > 10)}")
    echo(report_text(level_reports(found)))
