"""Run the service: one process, or several that share the address and the gallery files."""

import asyncio
import logging.config
import os
import shlex
import socket
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.supervisors import Multiprocess

from sightline.errors import InputError
from sightline.gallery.gallery import Gallery
from sightline.serve.guard import LOGGING, MULTIPROCESS
from sightline.serve.pictures import hidden_folders
from sightline.serve.settings import ServeSettings

WORKER_SETTINGS = "SIGHTLINE_SERVE__SETTINGS"
BACKLOG = 128
HEAD_SECONDS = 10.0  # for the headers of a request to arrive


def serve(settings: ServeSettings, tell: Callable[[str], object]) -> None:
    """Serve until a signal; accepted requests are finished first.

    Args:
        settings: of the service.
        tell: called with the address once the service listens, then with a line for each gallery whose images are hidden.
    """

    def begin(address: str) -> None:
        tell(address)
        for folder in settings.galleries:
            with Gallery.open(folder, read_only=True) as gallery:
                hidden = hidden_folders(gallery, settings.image_roots)
            if hidden:
                options = " ".join(f"--images {shlex.quote(_from_here(one))}" for one in hidden)
                tell(f"{folder}: its images are in other folders and are not shown; to show them, add {options}")

    if settings.workers > 1:
        _serve_by_workers(settings, begin)
    else:
        from sightline.serve.app import create_app

        run_app(lambda: create_app(settings), settings, begin)


def run_app(
    create: Callable[[], FastAPI], settings: ServeSettings, begin: Callable[[str], None], log_level: str = "INFO"
) -> None:
    """Run an application in this process until a signal.

    Args:
        create: creates it, once the address is bound.
        settings: the address and the connection limits.
        begin: called with the address once the service listens.
        log_level: of the service's own messages.
    """
    with _bind(settings) as listening:
        server = uvicorn.Server(uvicorn_config(settings, create()))
        logging.config.dictConfig(LOGGING)
        for name in ("uvicorn", "sightline.serve"):
            logging.getLogger(name).setLevel(log_level)
        begin(_listen(listening))
        server.run(sockets=[listening])


def _serve_by_workers(settings: ServeSettings, begin: Callable[[str], None]) -> None:
    with _bind(settings) as listening, tempfile.TemporaryDirectory(prefix="sightline-metrics-") as folder:
        for gallery in settings.galleries:  # report a fault once, not from every worker
            with Gallery.open(gallery, read_only=True) as opened:
                opened.encoder(settings.trust)
        logging.config.dictConfig(LOGGING)
        os.environ.update({WORKER_SETTINGS: settings.model_dump_json(), MULTIPROCESS: folder})
        config = uvicorn_config(settings, "sightline.serve.run:create_worker_app")
        begin(_listen(listening))
        Multiprocess(config, sockets=[listening]).run()


def create_worker_app() -> FastAPI:
    """The application of a worker process, with the settings its parent put in the environment."""
    from sightline.serve.app import create_app

    logging.config.dictConfig(LOGGING)
    return create_app(ServeSettings.model_validate_json(os.environ[WORKER_SETTINGS]))


def _from_here(folder: Path) -> str:
    """The path, relative if it is below the working directory."""
    here = Path.cwd().resolve()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)


class BoundedProtocol(H11Protocol):
    """uvicorn's HTTP/1.1 with a limit on connections and deadlines for clients.

    uvicorn only limits the time between requests and the number of requests, not of connections.
    """

    def __init__(self, *args: Any, settings: ServeSettings, **options: Any) -> None:
        super().__init__(*args, **options)
        self.most_connections = settings.most_connections()
        self.answer_seconds = settings.upload_seconds
        self.idle_since = self.loop.time()
        self._deadline: asyncio.TimerHandle | None = None

    def is_busy(self) -> bool:
        """Whether a request is being answered, to a client that reads the answer."""
        return self.cycle is not None and not self.cycle.response_complete and not self.flow.write_paused

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start; if there are too many connections, close the longest idle one, which may be this one."""
        super().connection_made(transport)
        self._set_deadline()
        if len(self.connections) > self.most_connections:
            idle = [one for one in self.connections if isinstance(one, BoundedProtocol) and not one.is_busy()]
            longest = min(idle, key=lambda one: one.idle_since)
            self.connections.discard(longest)  # now: connection_lost is called later
            longest.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Receive a part of a request; a slow sender gets no more time."""
        super().data_received(data)
        if self.is_busy():
            self._cancel_deadline()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        super().on_response_complete()
        self._set_deadline()

    def pause_writing(self) -> None:
        """Give a client that does not read its answer a deadline."""
        super().pause_writing()
        self._set_deadline()

    def resume_writing(self) -> None:
        """The client reads again."""
        super().resume_writing()
        self._set_deadline()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up."""
        super().connection_lost(exc)
        self._cancel_deadline()

    def shutdown(self) -> None:
        """Finish the current answer; give an incomplete request one more second."""
        super().shutdown()
        if end_arrivals := self.app_state.get("end_arrivals"):
            end_arrivals()

    def _cancel_deadline(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    def _set_deadline(self) -> None:
        """Close the connection after a timeout unless a request is being answered."""
        self._cancel_deadline()
        if not self.is_busy():
            seconds = self.answer_seconds if self.flow.write_paused else min(HEAD_SECONDS, self.answer_seconds)
            self.idle_since = self.loop.time()
            self._deadline = self.loop.call_later(seconds, self.transport.abort)


def uvicorn_config(settings: ServeSettings, app: FastAPI | str) -> uvicorn.Config:
    """uvicorn's configuration: limits, and no headers or logs of its own."""
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
        timeout_worker_healthcheck=60,  # importing torch takes a while
        h11_max_incomplete_event_size=65_536,
        http=partial(BoundedProtocol, settings=settings),  # type: ignore[arg-type]
        ws="none",
        # uvicorn accepts this many connections at once; each uses a file before another one is closed.
        backlog=min(BACKLOG, max(1, settings.most_connections() // 2)),
    )


def _bind(settings: ServeSettings) -> socket.socket:
    made = socket.socket(socket.AF_INET6 if ":" in settings.host else socket.AF_INET)
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind((settings.host, settings.port))
    except OSError as error:
        made.close()
        where = f"{settings.host}:{settings.port}"
        raise InputError(f"{where}: cannot listen: {error.strerror or error}; pick a free port with --port 0") from error
    made.set_inheritable(True)
    return made


def _listen(bound: socket.socket) -> str:
    """Start listening; the address."""
    bound.listen(BACKLOG)
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
