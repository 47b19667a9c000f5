"""``sightline search``, ``sightline serve`` and ``sightline token``."""

from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli.console import (
    BACKENDS,
    Backend,
    RefineOptions,
    Trust,
    echo,
    encoder_for,
    expand_settings,
    read_encoder,
    read_table,
)
from sightline.errors import InputError, choose, needs_extra

if TYPE_CHECKING:
    from sightline.gallery.gallery import Gallery
    from sightline.gallery.query import Hit
    from sightline.ood.rejector import Rejector


@dataclass(frozen=True)
class RejectOptions:
    """How to treat out-of-distribution queries."""

    reject: Annotated[
        bool, typer.Option("--reject", help="Detect out-of-distribution queries, and queries without a match.")
    ] = False
    policy: Annotated[
        str | None,
        typer.Option(help="For out-of-distribution queries: reject (no results), flag or ignore; default: the rejector's."),
    ] = None
    rejector: Annotated[
        Path | None, typer.Option(help="Folder from `sightline ood fit`; default: the gallery's own rejector.")
    ] = None


@expand_settings
def search(
    queries: Annotated[list[str], typer.Argument(help="Images, folders of images, or ids of the gallery.")],
    refine: RefineOptions,
    rejection: RejectOptions,
    gallery: Annotated[str | None, typer.Option(help="Gallery to search: a folder, or milvus+http://...")] = None,
    table: Annotated[Path | None, typer.Option(help="Embedding table to search, from `sightline embed`.")] = None,
    encoder: Annotated[Path | None, typer.Option(help="Encoder folder; default: the gallery's own.")] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Results for each query.")] = 10,
    where: Annotated[
        str | None, typer.Option(help='Only items that meet a condition: label_1 == "Flags" and year >= 2020')
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="Folder with the images that were beside the gallery before it was moved.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON with all metadata.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write an HTML page with the images to this file.")] = None,
    backend: Backend = "auto",
    trust: Trust = False,
) -> None:
    """Find the nearest images in a gallery or a table; print rank, similarity, path and labels."""
    from sightline.gallery.gallery import Gallery
    from sightline.gallery.query import Answer, QueryOptions, ask, search_images

    if (gallery is None) == (table is None):
        raise InputError(
            "name what to search: --gallery FOLDER or --table FILE, as in `sightline search query.jpg --gallery gallery`"
        )
    if table is not None:
        if encoder is None or any((where, json, html, root)) or (refine, rejection) != (RefineOptions(), RejectOptions()):
            raise InputError("--table requires --encoder and allows no other option than -k")
        hits = search_images(read_encoder(encoder, trust, backend), read_table(table), queries, k)
        found = [Answer(image, image, nearest) for image, nearest in zip(queries, hits, strict=True)]
    else:
        if not rejection.reject and rejection != RejectOptions():
            raise InputError("--policy and --rejector require --reject")
        options = QueryOptions(k, where, refine.refinement(), rejection.policy, explain=True)
        with Gallery.open(str(gallery), read_only=True) as opened:
            model = encoder_for(opened, encoder, trust, backend)
            judge = _rejector(opened, rejection.rejector, rejection.policy) if rejection.reject else None
            found = ask(opened, queries, options, encoder=model, rejector=judge, root=root)
        for repair in opened.repairs:
            echo(f"sightline: {opened.address}: {repair}", err=True)
    if html is not None:
        with needs_extra("--html", "report"):
            from sightline.report.galleries import write_contact_sheet
        echo(write_contact_sheet(html, found, f"Found in {gallery}"))
    elif json:
        echo(dumps([asdict(answer) for answer in found], ensure_ascii=False, indent=2))
    else:
        for answer in found:
            echo("\n".join([answer.query, *(f"      {remark}" for remark in answer.remarks())]))
            for place, hit in enumerate(answer.results, start=1):
                echo(f"{place:>4}  {_hit_line(hit)}")


def _hit_line(hit: "Hit") -> str:
    """Similarity, path, labels and lists of a result."""
    lists = [f"{name} {'; '.join(values)}" for name, values in hit.lists.items()]
    return "  ".join(filter(None, [f"{hit.score:.4f}", str(hit.path or hit.id), " < ".join(hit.labels), *lists]))


def _rejector(gallery: "Gallery", folder: Path | None, policy: str | None) -> "Rejector":
    """The rejector in a folder, or the gallery's own; raises InputError for an unknown policy."""
    from sightline.ood.rejector import POLICIES, Rejector

    if policy is not None:
        choose(POLICIES, policy, "policy")
    found = gallery.rejector() if folder is None else Rejector.load(folder)
    if found is None:
        raise InputError(
            f"{gallery.address}: no rejector is saved in this gallery; fit one with "
            f"`sightline ood fit --gallery {gallery.address}`, or give one with --rejector"
        )
    found.check_encoder(gallery.identity.fingerprint, f"{folder}, for {gallery.address} of {gallery.identity.name!r}")
    return found


def serve(
    galleries: Annotated[
        list[Path] | None,
        typer.Argument(help="Gallery folders, each served under its folder's name; the first is the default."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML settings; SIGHTLINE_SERVE_... variables and options override them.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on, 0 for any free one; default: 8000.")] = None,
    images: Annotated[
        list[Path] | None, typer.Option(help="Folder whose images may be shown, besides uploads; repeatable.")
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="File of tokens from `sightline token`.")] = None,
    public_read: Annotated[bool | None, typer.Option("--public-read", help="Allow reading without a token.")] = None,
    read_only: Annotated[bool | None, typer.Option("--read-only", help="Allow no writes.")] = None,
    workers: Annotated[int | None, typer.Option(help="Number of processes; default: 1.")] = None,
    backend: Annotated[str | None, typer.Option(help=f"What runs encoders: {BACKENDS}.")] = None,
    trust: Trust = False,
) -> None:
    """Serve galleries over HTTP: a page to search by image, and an API."""
    with needs_extra("serving", "serve"):
        from sightline.serve.run import serve as run
        from sightline.serve.settings import read_settings
    given = {
        "galleries": galleries or None,
        "host": host,
        "port": port,
        "image_roots": images or None,
        "token_file": token_file,
        "public_read": public_read,
        "read_only": read_only,
        "workers": workers,
        "backend": backend,
        "trust": trust or None,
    }
    run(read_settings(config, given), echo)


def token(
    name: Annotated[str, typer.Argument(help="Name of the client, for the logs.")],
    file: Annotated[Path, typer.Option(help="File to add the token's hash to; pass it to `sightline serve --token-file`.")],
    scope: Annotated[str, typer.Option(help="read, or write (which includes read).")] = "read",
) -> None:
    """Create a token for the service and print it once; the file holds only its hash."""
    from sightline.serve.settings import add_token

    echo(add_token(file, name, scope))
