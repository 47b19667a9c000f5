"""Run the service: one process, or several that share the address and the galleries' files."""

import logging.config
import os
import shlex
import socket
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from uvicorn.supervisors import Multiprocess

from sightline.errors import InputError
from sightline.gallery.gallery import open_gallery
from sightline.serve.connections import HEAD_SECONDS, BoundedProtocol, Limits, most_connections
from sightline.serve.guard import LOGGING, MULTIPROCESS
from sightline.serve.pictures import hidden_folders
from sightline.serve.settings import ServeSettings

HANDED_ON = "SIGHTLINE_SERVE__SETTINGS"
BACKLOG = 128


def serve(settings: ServeSettings, tell: Callable[[str], object]) -> None:
    """Serve until a signal ends it; what was accepted by then is finished.

    Args:
        settings: what to serve, and how.
        tell: is given the address once it is listened to, then a line for each gallery whose images are not shown.
    """

    def begin(address: str) -> None:
        tell(address)
        _tell_hidden(settings, tell)

    if settings.workers == 1:
        from sightline.serve.app import create_app

        run_app(lambda: create_app(settings), settings, begin)
    else:
        _serve_by_workers(settings, begin)


def run_app(
    create: Callable[[], FastAPI], settings: ServeSettings, begin: Callable[[str], None], log_level: str = "INFO"
) -> None:
    """Run an application in this process until a signal ends it.

    Args:
        create: makes it, once the address is ours.
        settings: the address and the limits of connections.
        begin: is given the address once it is listened to.
        log_level: of the service's own lines.
    """
    with _bound(settings) as listening:
        server = uvicorn.Server(configured(settings, create()))
        logging.config.dictConfig(LOGGING)
        for name in ("uvicorn", "sightline.serve"):
            logging.getLogger(name).setLevel(log_level)
        listening.listen(BACKLOG)
        begin(_address(listening))
        server.run(sockets=[listening])


def _serve_by_workers(settings: ServeSettings, begin: Callable[[str], None]) -> None:
    with _bound(settings) as listening, tempfile.TemporaryDirectory(prefix="sightline-metrics-") as folder:
        for gallery in settings.galleries:  # one message of a fault here, not one from every worker again and again
            with open_gallery(gallery, read_only=True) as opened:
                opened.encoder()
        logging.config.dictConfig(LOGGING)
        os.environ.update({HANDED_ON: settings.model_dump_json(), MULTIPROCESS: folder})
        config = configured(settings, "sightline.serve.run:handed_on")
        listening.listen(BACKLOG)
        begin(_address(listening))
        Multiprocess(config, sockets=[listening]).run()


def _tell_hidden(settings: ServeSettings, tell: Callable[[str], object]) -> None:
    """Say which images are not shown, and which option shows them."""
    for folder in settings.galleries:
        with open_gallery(folder, read_only=True) as gallery:
            hidden = hidden_folders(gallery, settings.image_roots)
        if hidden:
            options = " ".join(f"--images {shlex.quote(_from_here(one))}" for one in hidden)
            tell(f"{folder}: its images lie outside of it and are not shown; to show them add: {options}")


def _from_here(folder: Path) -> str:
    """A path as people write it: from the working folder on, if it lies below."""
    here = Path.cwd().resolve()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


def handed_on() -> FastAPI:
    """The application of a worker process, which its parent handed the settings."""
    from sightline.serve.app import create_app

    logging.config.dictConfig(LOGGING)
    return create_app(ServeSettings.model_validate_json(os.environ[HANDED_ON]))


def configured(settings: ServeSettings, app: FastAPI | str) -> uvicorn.Config:
    """How uvicorn runs an application: its limits, and nothing said of itself."""
    seconds = settings.upload_seconds
    limits = Limits(most_connections(settings.connections), min(HEAD_SECONDS, seconds), seconds)
    return uvicorn.Config(
        app,
        factory=isinstance(app, str),
        workers=settings.workers,
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=bool(settings.trusted_proxies),
        forwarded_allow_ips=list(settings.trusted_proxies),
        timeout_graceful_shutdown=settings.shutdown_seconds,
        h11_max_incomplete_event_size=65_536,
        http=partial(BoundedProtocol, limits=limits),  # type: ignore[arg-type]
        ws="none",
        # uvicorn accepts up to so many connections at once, each of which has a file before another is closed.
        backlog=min(BACKLOG, max(1, limits.connections // 2)),
    )


def _bound(settings: ServeSettings) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((settings.host, settings.port))
    except OSError as error:
        made.close()
        where = f"{settings.host}:{settings.port}"
        raise InputError(f"{where}: cannot be listened on: {error.strerror or error}; --port 0 takes a free one") from error
    made.set_inheritable(True)
    return made


def _address(listening: socket.socket) -> str:
    host, port = listening.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
