"""``sightline hierarchy``: build a label tree from names or images, step by step."""

from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.console import echo, read_table
from sightline.errors import InputError, needs_extra

app = typer.Typer(no_args_is_help=True, help="Build a label tree from names or images, step by step.")
Folder = Annotated[Path, typer.Argument(help="Folder of the steps' files.")]


@app.command()
def collect(
    folder: Folder,
    source: Annotated[Path, typer.Argument(help="A manifest or folder of images, or a CSV with a column label.")],
    description: Annotated[str | None, typer.Option(help="Manifest column that describes a label.")] = None,
    category: Annotated[str | None, typer.Option(help="Manifest column with the label's category.")] = None,
    wikidata: Annotated[bool, typer.Option("--wikidata", help='Look up each label\'s "instance of" at Wikidata.')] = False,
    superclasses: Annotated[
        int, typer.Option(min=0, help='"subclass of" statements to follow from there, for coarser categories.')
    ] = 0,
    contact: Annotated[str, typer.Option(help="Your mail address or web page, which Wikimedia requires.")] = "",
    site: Annotated[str, typer.Option(help="Wiki whose page titles the labels are: enwiki, commonswiki, ...")] = "enwiki",
    api: Annotated[str, typer.Option(help="Address of the Wikimedia API.")] = "https://www.wikidata.org/w/api.php",
    per_second: Annotated[float, typer.Option(min=0.01, help="Most requests per second.")] = 1.0,
) -> None:
    """List the labels with what is known about them (labels.csv)."""
    import polars as pl

    from sightline.hierarchy.collect import BETWEEN, COLUMNS, LABELS, collect_labels, write_step
    from sightline.hierarchy.wikimedia import Wikimedia

    labels = collect_labels(source, description, category)
    if superclasses and not wikidata:
        raise InputError("--superclasses follows statements of Wikidata; add --wikidata")
    if wikidata:
        client = Wikimedia(folder / "wikimedia", contact, api, site, per_second=per_second)
        found = client.instance_of(labels["label"].to_list(), superclasses, show_progress=True)
        labels = labels.with_columns(category=pl.Series([BETWEEN.join(values) for values in found], dtype=pl.String))
    file = write_step(folder, LABELS, labels.select(COLUMNS))
    known = [(labels[column] != "").sum() for column in ("category", "description")]
    echo(f"{file}: {len(labels)} labels, {known[0]} with a category, {known[1]} with a description")


@app.command()
def clean(
    folder: Folder,
    text: Annotated[str, typer.Option(help="Text that stands for a label: category, description or name.")] = "category",
    meta: Annotated[list[str] | None, typer.Option(help="Pattern of texts to drop; replaces the built-in ones.")] = None,
    ambiguous: Annotated[bool, typer.Option(help="Drop labels of several categories; otherwise take the first.")] = True,
    min_images: Annotated[int, typer.Option(min=0, help="Drop labels with fewer images.")] = 0,
) -> None:
    """Keep one text per label (clean.csv); list what is dropped and why (dropped.csv)."""
    from sightline.hierarchy.collect import META, CleanRules, clean_labels

    n_kept, reasons = clean_labels(folder, CleanRules(text, META if meta is None else meta, ambiguous, min_images))
    echo(f"{folder / 'clean.csv'}: {n_kept} labels kept, {sum(reasons.values())} dropped")
    for reason, n in reasons.items():
        echo(f"  {n:>7} {reason}")


@app.command()
def embed(
    folder: Folder,
    images: Annotated[Path | None, typer.Option(help="Embedding table, for the mean vector of each class.")] = None,
    text_weight: Annotated[float, typer.Option(min=0, help="Weight of the texts; 0: images alone.")] = 1.0,
    image_weight: Annotated[float, typer.Option(min=0, help="Weight of the images.")] = 1.0,
    model: Annotated[
        str, typer.Option(help="Sentence-transformers or CLIP model: a folder or a hub repository.")
    ] = "all-MiniLM-L6-v2",
    prompt: Annotated[str, typer.Option(help="Sentence around each text: 'a photo of a {}'.")] = "{}",
    batch_size: Annotated[int, typer.Option(min=1, help="Texts per batch.")] = 128,
) -> None:
    """Compute a vector for each distinct text (terms.csv, vectors.safetensors)."""
    from sightline.hierarchy.term_vectors import TextModel, embed_terms

    table = None if images is None else read_table(images)
    given = None if table is None else (table.manifest, table.vectors)
    n, dim = embed_terms(folder, given, text_weight, image_weight, TextModel(model, prompt, batch_size), show_progress=True)
    echo(f"{folder / 'vectors.safetensors'}: {n} vectors of {dim}")


@app.command()
def cluster(
    folder: Folder,
    k: Annotated[
        list[int] | None, typer.Option("-k", min=1, help="Groups of a level, finest first; repeat for more levels.")
    ] = None,
    levels: Annotated[int, typer.Option(min=1, help="Levels to suggest without -k.")] = 1,
    method: Annotated[str, typer.Option(help="kmeans or agglomerative.")] = "kmeans",
    seed: Annotated[int, typer.Option(min=0, help="Random seed.")] = 0,
) -> None:
    """Group the texts in one or several levels (clusters.csv)."""
    from sightline.hierarchy.cluster import ClusterOptions, cluster_terms

    sizes = cluster_terms(folder, ClusterOptions(method, tuple(k or ()), levels, seed))
    echo(f"{folder / 'clusters.csv'}: {' < '.join(map(str, sizes))} groups")
    if not k and len(sizes) < levels:
        echo(f"only {len(sizes)} of {levels} levels: the suggested groups are too few for more; set them with -k")


@app.command()
def review(
    folder: Folder,
    csv: Annotated[
        bool, typer.Option("--csv", help="Write review.csv for a spreadsheet instead of serving a page.")
    ] = False,
    host: Annotated[str, typer.Option(help="Loopback address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 for any free one.")] = 8765,
    open_page: Annotated[bool, typer.Option("--open/--no-open", help="Open the page in a browser.")] = True,
) -> None:
    """Rename, split, merge and move groups on a local page; every change is kept (journal.jsonl)."""
    from sightline.hierarchy.collect import REVIEW, write_step
    from sightline.hierarchy.journal import Review

    state = Review(folder)
    if not csv:
        with needs_extra("the page (or use --csv)", "serve"):
            from sightline.serve.review import serve_review
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
    from sightline.hierarchy.apply import apply_groups, class_sizes, report_text
    from sightline.hierarchy.journal import reviewed_state

    found, missing = apply_groups(folder, reviewed_state(folder, review or []), read_manifest(manifest), out, unplaced)
    echo(f"{out}: {len(found)} images, {found.n_levels} label levels")
    if missing:
        echo(f"{folder / 'unplaced.csv'}: {len(missing)} labels have no group")
    echo(report_text(class_sizes(found)))


@app.command()
def attach(
    manifest: Annotated[Path, typer.Argument(help="A manifest, or a folder of images, with labels.")],
    out: Annotated[Path, typer.Option(help="Manifest to write (.csv or .parquet).")],
    tree: Annotated[Path | None, typer.Option(help="Table child,parent, or columns kingdom ... species.")] = None,
    kind: Annotated[str, typer.Option(help="What the table is: edges, taxonomy, or auto.")] = "auto",
    several_parents: Annotated[
        str, typer.Option(help="A second parent in a table of edges, as in WordNet: fault, or first to keep the first.")
    ] = "fault",
    fill: Annotated[bool, typer.Option("--fill", help="Fill empty ranks of a taxonomy: <parent> (no <rank>).")] = False,
    codes: Annotated[bool, typer.Option("--codes", help="The labels themselves are dotted codes: 26.1.15.")] = False,
    column: Annotated[
        str | None, typer.Option(help="With --codes: a column of several codes an image; a rare shared one is its label.")
    ] = None,
    unplaced: Annotated[str, typer.Option(help="Labels that are not in the tree: drop, or alone.")] = "drop",
) -> None:
    """Give a manifest the levels of a tree that you have; list all faults of the tree at once."""
    from sightline.data.manifest import read_manifest
    from sightline.hierarchy.apply import attach_tree, class_sizes, report_text, write_manifest
    from sightline.labels.code_column import attach_codes, read_code_tree
    from sightline.labels.tree import read_tree

    if column is not None and not codes:
        raise InputError("--column is of codes; add --codes")
    if column is None and (tree is None) != codes:
        raise InputError("give either --tree or --codes; both are for --column")
    if codes and (kind != "auto" or several_parents != "fault" or fill):
        raise InputError("--kind, --several-parents and --fill need --tree")
    if column is not None:
        known = None if tree is None else read_code_tree(tree)
        found = attach_codes(read_manifest(manifest, labelled=False), column, known)
        echo(f"{write_manifest(found, out)}: {len(found)} images, {found.n_levels} label levels")
        echo(report_text(class_sizes(found)))
        return
    found_tree = None if tree is None else read_tree(tree, kind, several_parents, fill)
    found, missing = attach_tree(read_manifest(manifest), found_tree, unplaced)
    echo(f"{write_manifest(found, out)}: {len(found)} images, {found.n_levels} label levels")
    if missing:
        echo(f"{len(missing)} labels are not in the tree: {', '.join(missing[:10])}{', ...' * (len(missing) > 10)}")
    echo(report_text(class_sizes(found)))
