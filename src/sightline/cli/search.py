"""``sightline search``."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli.printing import echo
from sightline.cli.settings import RefineOptions, expand_settings

if TYPE_CHECKING:
    from sightline.gallery.gallery import Gallery
    from sightline.gallery.query import Hit
    from sightline.ood.rejector import Rejector


@dataclass(frozen=True)
class RejectOptions:
    """What is done about queries that are out-of-distribution."""

    reject: Annotated[
        bool, typer.Option("--reject", help="Say which queries do not belong here, and which have no match.")
    ] = False
    policy: Annotated[
        str | None,
        typer.Option(help="With --reject: reject gives such queries no results, flag marks them, ignore shows nothing."),
    ] = None
    rejector: Annotated[
        Path | None, typer.Option(help="With --reject: folder by `sightline ood fit`, if not the gallery's own.")
    ] = None


@expand_settings
def search(
    queries: Annotated[list[str], typer.Argument(help="Images, folders of images, or ids of the gallery.")],
    refine: RefineOptions,
    rejection: RejectOptions,
    gallery: Annotated[str | None, typer.Option(help="Where to search: a gallery's folder, or milvus+http://...")] = None,
    table: Annotated[Path | None, typer.Option(help="Or an embedding table, written by `sightline embed`.")] = None,
    encoder: Annotated[Path | None, typer.Option(help="Encoder folder; a gallery has its own.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Results for each query.")] = 10,
    where: Annotated[str | None, typer.Option(help='Only items such as: label_1 == "Flags" and year >= 2020')] = None,
    root: Annotated[
        Path | None, typer.Option(help="Where images are that lay beside the gallery, if it is elsewhere now.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, with all metadata.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a page with pictures instead.")] = None,
) -> None:
    """Print the nearest images of a gallery or a table: place, similarity, path, labels."""
    from sightline.errors import InputError
    from sightline.gallery.gallery import open_gallery
    from sightline.gallery.query import QueryOptions, ask
    from sightline.models.encoder import Encoder
    from sightline.report.contact_sheet import write_contact_sheet

    if (gallery is None) == (table is None):
        raise InputError("either --gallery or --table is needed")
    if table is not None:
        if encoder is None or any((where, json, html, root)) or (refine, rejection) != (RefineOptions(), RejectOptions()):
            raise InputError("--table needs --encoder, and takes none of the options that a gallery has, but for -k")
        _search_table(queries, table, encoder, k)
        return
    if not rejection.reject and rejection != RejectOptions():
        raise InputError("--policy and --rejector say how to --reject, which is not there")
    options = QueryOptions(k, where, refine.refinement(), rejection.policy, explain=True)
    with open_gallery(str(gallery), read_only=True) as opened:
        model = None if encoder is None else Encoder.from_pretrained(encoder)
        judge = _rejector(opened, rejection.rejector, rejection.policy) if rejection.reject else None
        found = ask(opened, queries, options, encoder=model, rejector=judge, root=root)
    for repair in opened.repairs:
        echo(f"sightline: {opened.address}: {repair}", err=True)
    if html is not None:
        echo(write_contact_sheet(html, found, f"Found in {opened.address}"))
    elif json:
        echo(dumps([asdict(answer) for answer in found], ensure_ascii=False, indent=2))
    else:
        for answer in found:
            echo("\n".join([answer.query, *(f"      {remark}" for remark in answer.remarks())]))
            _print_hits(answer.results)


def _print_hits(hits: "Sequence[Hit]") -> None:
    """A line for each result: place, similarity, path or id, labels."""
    for place, hit in enumerate(hits, start=1):
        echo(f"{place:>4}  {hit.score:.4f}  {hit.path or hit.id}  {' < '.join(hit.labels)}".rstrip())


def _rejector(gallery: "Gallery", folder: Path | None, policy: str | None) -> "Rejector":
    """The rejector that was given or lies in the gallery; a policy that there is not is refused."""
    from sightline.errors import InputError, choose
    from sightline.ood.rejector import POLICIES, Rejector

    if policy is not None:
        choose(POLICIES, policy, "policy")
    found = gallery.rejector() if folder is None else Rejector.load(folder)
    if found is None:
        raise InputError(
            f"{gallery.address}: no rejector is saved in this gallery: give one by --rejector, or make it with "
            f"`sightline ood fit --gallery {gallery.address}`"
        )
    found.check_encoder(gallery.identity.fingerprint, f"{folder}, for {gallery.address} of {gallery.identity.name!r}")
    return found


def _search_table(images: list[str], table: Path, encoder: Path, k: int) -> None:
    from sightline.data.embedding_table import EmbeddingTable
    from sightline.gallery.query import search_images
    from sightline.models.encoder import Encoder

    found = search_images(Encoder.from_pretrained(encoder), EmbeddingTable.read(table), images, k)
    for image, hits in zip(images, found, strict=True):
        echo(image)
        _print_hits(hits)
