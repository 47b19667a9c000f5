"""``sightline search``, ``sightline serve`` and ``sightline token``."""

from dataclasses import asdict, dataclass
from json import dumps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sightline.cli.console import RefineOptions, Trust, echo, encoder_for, expand_settings, read_encoder, read_table
from sightline.errors import InputError, choose

if TYPE_CHECKING:
    from sightline.gallery.gallery import Gallery
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
    trust: Trust = False,
) -> None:
    """Print the nearest images of a gallery or a table: place, similarity, path, labels."""
    from sightline.gallery.gallery import Gallery
    from sightline.gallery.query import Answer, QueryOptions, ask, search_images
    from sightline.report.galleries import write_contact_sheet

    if (gallery is None) == (table is None):
        raise InputError("either --gallery or --table is needed")
    if table is not None:
        if encoder is None or any((where, json, html, root)) or (refine, rejection) != (RefineOptions(), RejectOptions()):
            raise InputError("--table needs --encoder, and takes none of the options that a gallery has, but for -k")
        hits = search_images(read_encoder(encoder, trust), read_table(table), queries, k)
        found = [Answer(image, image, nearest) for image, nearest in zip(queries, hits, strict=True)]
    else:
        if not rejection.reject and rejection != RejectOptions():
            raise InputError("--policy and --rejector say how to --reject, which is not there")
        options = QueryOptions(k, where, refine.refinement(), rejection.policy, explain=True)
        with Gallery.open(str(gallery), read_only=True) as opened:
            model = encoder_for(opened, encoder, trust)
            judge = _rejector(opened, rejection.rejector, rejection.policy) if rejection.reject else None
            found = ask(opened, queries, options, encoder=model, rejector=judge, root=root)
        for repair in opened.repairs:
            echo(f"sightline: {opened.address}: {repair}", err=True)
    if html is not None:
        echo(write_contact_sheet(html, found, f"Found in {gallery}"))
    elif json:
        echo(dumps([asdict(answer) for answer in found], ensure_ascii=False, indent=2))
    else:
        for answer in found:
            echo("\n".join([answer.query, *(f"      {remark}" for remark in answer.remarks())]))
            for place, hit in enumerate(answer.results, start=1):
                echo(f"{place:>4}  {hit.score:.4f}  {hit.path or hit.id}  {' < '.join(hit.labels)}".rstrip())


def _rejector(gallery: "Gallery", folder: Path | None, policy: str | None) -> "Rejector":
    """The rejector that was given or lies in the gallery; a policy that there is not is refused."""
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


def serve(
    galleries: Annotated[
        list[Path] | None,
        typer.Argument(help="Gallery folders; each is served under its folder's name, the first by default."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="TOML file of settings; SIGHTLINE_SERVE_... and options go over it.")
    ] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; default: 127.0.0.1.")] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one; default: 8000.")] = None,
    images: Annotated[
        list[Path] | None, typer.Option(help="Folder whose images may be shown, besides the gallery's own; repeatable.")
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="Tokens, made by `sightline token`.")] = None,
    public_read: Annotated[bool | None, typer.Option("--public-read", help="Who has no token may read.")] = None,
    read_only: Annotated[bool | None, typer.Option("--read-only", help="Nobody may write.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; default: 1.")] = None,
    trust: Trust = False,
) -> None:
    """Serve galleries over HTTP: a page to search by image, and an API."""
    try:
        from sightline.serve.run import serve as run
        from sightline.serve.settings import read_settings
    except ModuleNotFoundError as error:
        raise InputError(f"serving needs {error.name}: pip install 'sightline[serve]'") from error
    given = {
        "galleries": galleries or None,
        "host": host,
        "port": port,
        "image_roots": images or None,
        "token_file": token_file,
        "public_read": public_read,
        "read_only": read_only,
        "workers": workers,
        "trust": trust or None,
    }
    run(read_settings(config, given), echo)


def token(
    name: Annotated[str, typer.Argument(help="Who gets it; stands in the logs.")],
    file: Annotated[Path, typer.Option(help="Where its hash is added; given to `sightline serve` as --token-file.")],
    scope: Annotated[str, typer.Option(help="read, or write, which may read too.")] = "read",
) -> None:
    """Make a token for the service, and print it: this once, as the file holds only its hash."""
    from sightline.serve.settings import add_token

    echo(add_token(file, name, scope))
