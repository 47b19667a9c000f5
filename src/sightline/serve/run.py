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
from sightline.gallery.gallery import Gallery
from sightline.serve.connections import HEAD_SECONDS, BoundedProtocol, Limits, most_connections
from sightline.serve.measures import LOGGING, MULTIPROCESS
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
    with _bound(settings.host, settings.port) as listening:
        host, port = listening.getsockname()[:2]
        address = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        if settings.workers == 1:
            from sightline.serve.app import create_app

            server = uvicorn.Server(_configured(settings, create_app(settings)))
            logging.config.dictConfig(LOGGING)
            listening.listen(BACKLOG)
            tell(address)
            _tell_hidden(settings, tell)
            server.run(sockets=[listening])
        else:
            _serve_by_workers(settings, listening, address, tell)


def _serve_by_workers(
    settings: ServeSettings, listening: socket.socket, address: str, tell: Callable[[str], object]
) -> None:
    for gallery in settings.galleries:  # a fault is told once, here, and not by every worker again and again
        with Gallery.open(gallery, read_only=True) as opened:
            opened.encoder()
    logging.config.dictConfig(LOGGING)
    os.environ[HANDED_ON] = settings.model_dump_json()
    with tempfile.TemporaryDirectory(prefix="sightline-metrics-") as folder:
        os.environ[MULTIPROCESS] = folder
        config = _configured(settings, "sightline.serve.run:handed_on")
        listening.listen(BACKLOG)
        tell(address)
        _tell_hidden(settings, tell)
        Multiprocess(config, sockets=[listening]).run()


def _tell_hidden(settings: ServeSettings, tell: Callable[[str], object]) -> None:
    """Say which images are not shown, and which option shows them."""
    for folder in settings.galleries:
        with Gallery.open(folder, read_only=True) as gallery:
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


def _configured(settings: ServeSettings, app: FastAPI | str) -> uvicorn.Config:
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


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((host, port))
    except OSError as error:
        made.close()
        raise InputError(f"{host}:{port}: cannot be listened on: {error.strerror or error}") from error
    made.set_inheritable(True)
    return made
