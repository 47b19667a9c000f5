"""``sightline serve`` and ``sightline token``."""

from pathlib import Path
from typing import Annotated

import typer

from sightline.cli.printing import echo


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
) -> None:
    """Serve galleries over HTTP: a page to search by image, and an API."""
    from sightline.errors import InputError

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
