"""The layer in front of every route: authentication, host checks, rate and size limits, headers, metrics, logs."""

import asyncio
import ipaddress
import json
import logging
import os
import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection
from starlette.responses import FileResponse, Response
from starlette.routing import Match, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sightline.serve.schemas import CLOSE, RETRY, Problem, problem_response
from sightline.serve.settings import SCOPES, ServeSettings, Token, Tokens, fault_text

WEB = Path(__file__).parent / "web"
MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SUM = {"multiprocess_mode": "livesum"}
NEWEST = {"multiprocess_mode": "mostrecent"}
WORST = {"multiprocess_mode": "livemax"}
QUANTILES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99, 1.0)
METRICS: dict[str, tuple[Any, str, tuple[str, ...], dict[str, Any]]] = {
    "requests": (Counter, "Requests answered.", ("method", "route", "status"), {}),
    "request_seconds": (Histogram, "Time to answer.", ("method", "route"), {"buckets": SECONDS}),
    "batch_images": (Histogram, "Images in one pass through the encoder.", (), {"buckets": (1, 2, 4, 8, 16, 32, 64, 128)}),
    "refused": (Counter, "Requests refused with 429.", ("reason",), {}),
    "accepted_requests": (Gauge, "Searches and writes accepted and not yet answered.", (), SUM),
    "queued_images": (Gauge, "Images waiting for the encoder.", (), SUM),
    "items": (Gauge, "Items of a gallery.", ("gallery",), NEWEST),
    "generation": (Gauge, "Generation of a gallery.", ("gallery",), NEWEST),
    "verdicts": (Counter, "Queries that a rejector accepted or refused.", ("gallery", "verdict"), {}),
    "unmatched": (Counter, "Accepted queries without a match.", ("gallery",), {}),
    "energy_quantile": (
        Histogram,
        "Share of the calibration images with a lower energy than the query; even without drift.",
        ("gallery",),
        {"buckets": QUANTILES},
    ),
    "refused_share_alarm": (Gauge, "1 if the share of refused queries left its band.", ("gallery",), WORST),
}
MOST_MESSAGES = 100  # whose repetitions are counted
LOG = logging.getLogger("sightline.serve")


def metrics_text(registry: CollectorRegistry) -> bytes:
    """All metrics as Prometheus text, summed over the workers."""
    if MULTIPROCESS in os.environ:
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
    return generate_latest(registry)


class JsonLines(logging.Formatter):
    """A log record as one line of JSON; ``extra={"fields": {...}}`` adds keys."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        moment = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line = {"time": moment.replace("+00:00", "Z"), "level": record.levelname.lower(), "event": record.getMessage()}
        line |= getattr(record, "fields", {})
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


@dataclass
class RateLimit:
    """A token bucket for each caller: it fills at ``rate`` per second (None for no limit) and holds ``burst``."""

    rate: float | None
    burst: float
    buckets: OrderedDict[str, tuple[float, float]] = field(default_factory=OrderedDict)

    def seconds_to_wait(self, caller: str, cost: float, now: float) -> float:
        """Take the cost and return 0, or return the seconds until it can be taken."""
        if self.rate is None:
            return 0.0
        level, since = self.buckets.pop(caller, (self.burst, now))
        level = min(self.burst, level + self.rate * (now - since))
        is_taken = level >= cost
        self.buckets[caller] = (level - cost if is_taken else level, now)
        while len(self.buckets) > MOST_CALLERS:
            self.buckets.popitem(last=False)
        return 0.0 if is_taken else (cost - level) / self.rate


class Sparse(logging.Filter):
    """Log each message a few times a minute; the next one logged says how many were left out.

    Otherwise a client that exhausts the file descriptors or does not speak HTTP would also fill the disk with logs.
    """

    def __init__(self, most: int = 5, seconds: float = 60.0) -> None:
        super().__init__()
        self._limit = RateLimit(most / seconds, most)
        self._n_left_out: dict[str, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log the record."""
        key = str(record.msg).partition("\n")[0]
        n_left_out = self._n_left_out.pop(key, 0)
        if self._limit.seconds_to_wait(key, 1, record.created):
            self._n_left_out = dict(list(self._n_left_out.items())[-MOST_MESSAGES:]) | {key: n_left_out + 1}
            return False
        if n_left_out:
            record.fields = {"left_out": n_left_out}
        return True


STDERR = {"class": "logging.StreamHandler", "formatter": "json", "stream": "ext://sys.stderr"}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"json": {"()": "sightline.serve.guard.JsonLines"}},
    "filters": {"sparse": {"()": "sightline.serve.guard.Sparse"}},
    "handlers": {"stderr": STDERR, "others": {**STDERR, "filters": ["sparse"]}},
    "root": {"handlers": ["others"], "level": "WARNING"},  # libraries
    "loggers": {
        "uvicorn": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
        "uvicorn.error": {"filters": ["sparse"]},
        "uvicorn.access": {"handlers": [], "propagate": False},  # would log ids and searches
        "sightline.serve": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
    },
}


COOKIE = "sightline_session"
JSON_BYTES = 1_000_000
MOST_CALLERS = 10_000
READ_COST = 0.1
LAST_SECONDS = 1.0  # for a request body to arrive once the service shuts down
CLIENT_LEFT = 499  # in logs and metrics only, as in nginx
PROBES = frozenset({"/v1/health", "/v1/ready"})
OPEN = frozenset({"/", "/favicon.ico", "/openapi.json", "/v1/session", *PROBES})
CSP = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; font-src 'self'; "
    "connect-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": CSP,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True)
class Caller:
    """Who sent a request: a token's name or an address, and its scopes."""

    name: str
    scopes: frozenset[str]
    token: Token | None = None


def needed_scope(method: str, path: str) -> str | None:
    """The scope a request requires; whatever is not known to be a read requires write.

    Example:
        >>> needed_scope("POST", "/v1/search/id"), needed_scope("DELETE", "/v1/items/a"), needed_scope("GET", "/v1/health")
        ('read', 'write', None)
    """
    if path in OPEN or path.startswith("/static/"):
        return None
    if method in ("GET", "HEAD", "OPTIONS") or (method == "POST" and path.startswith("/v1/search")):
        return "read"
    return "write"


@dataclass(eq=False)
class Arrival:
    """The body of one request: bytes received, and its deadline by the event loop's clock."""

    n_bytes: int = 0
    until: float = 0.0
    is_complete: bool = False
    is_crowded_out: bool = False
    timeout: asyncio.Timeout | None = None


@dataclass
class Arrivals:
    """The bodies of requests that are not answered yet.

    While more than ``budget_bytes`` are held, only the oldest incomplete body is read, so that one always completes. At
    most ``budget_bytes`` and one request are held.

    Attributes:
        budget_bytes: memory for the bodies of all unanswered requests.
        most: bodies that may arrive at once; for one more, the oldest is dropped.
        seconds: time limit for a body.
    """

    budget_bytes: int
    most: int
    seconds: float
    _held: dict[Arrival, None] = field(default_factory=dict)  # oldest first
    _change: asyncio.Event = field(default_factory=asyncio.Event)
    _is_ending: bool = False

    def n_bytes(self) -> int:
        """Bytes of all bodies held."""
        return sum(arrival.n_bytes for arrival in self._held)

    async def message(self, arrival: Arrival, receive: Receive) -> Message:
        """The next part of a body, or a problem: 408 too slow, 429 no room, 503 shutting down."""
        if arrival.is_complete:
            return await receive()
        if arrival not in self._held:
            self._begin(arrival)
        try:
            async with asyncio.timeout_at(arrival.until) as arrival.timeout:
                while not self._has_room(arrival):
                    await self._change.wait()
                message = await receive()
        except TimeoutError as error:
            raise self._problem(arrival) from error
        finally:
            arrival.timeout = None
        arrival.n_bytes += len(message.get("body", b""))
        if not message.get("more_body", False):
            arrival.is_complete = True
            self._wake()  # another one is the oldest now
        return message

    def release(self, arrival: Arrival) -> None:
        """Free a request's bytes once it is answered; may be called twice."""
        self._held.pop(arrival, None)
        self._wake()

    def end(self) -> None:
        """Shut down: incomplete bodies have one more second."""
        self._is_ending = True
        for arrival in self._arriving():
            self._hasten(arrival, LAST_SECONDS)

    def _arriving(self) -> list[Arrival]:
        return [arrival for arrival in self._held if not arrival.is_complete]

    def _begin(self, arrival: Arrival) -> None:
        arriving = self._arriving()
        staying = [one for one in arriving if not one.is_crowded_out]
        if len(arriving) >= self.most and staying:
            staying[0].is_crowded_out = True
            self._hasten(staying[0], 0)
        arrival.until = asyncio.get_running_loop().time() + (LAST_SECONDS if self._is_ending else self.seconds)
        self._held[arrival] = None

    def _hasten(self, arrival: Arrival, seconds: float) -> None:
        arrival.until = min(arrival.until, asyncio.get_running_loop().time() + seconds)
        if arrival.timeout is not None and not arrival.timeout.expired():
            arrival.timeout.reschedule(arrival.until)

    def _has_room(self, arrival: Arrival) -> bool:
        """Whether more may be read: below the budget, or if every body would wait for another."""
        is_whole = any(one.is_complete and one.n_bytes for one in self._held)
        return self.n_bytes() < self.budget_bytes or (not is_whole and self._arriving()[0] is arrival)

    def _wake(self) -> None:
        self._change.set()
        self._change = asyncio.Event()

    def _problem(self, arrival: Arrival) -> Problem:
        if self._is_ending:
            return Problem(503, "the service is shutting down; the request did not arrive in time", {**CLOSE, **RETRY})
        if arrival.is_crowded_out or not self._has_room(arrival):
            return Problem(429, "too many requests are arriving at once; try again later", {**CLOSE, **RETRY})
        return Problem(408, f"the request did not arrive within {self.seconds:g} s", CLOSE)


class Gate:
    """The guard's state: settings, tokens, metrics and arriving requests."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.registry = CollectorRegistry()
        options = {"registry": self.registry, "namespace": "sightline"}
        self.metrics = {
            name: kind(name, text, labels, **options, **more) for name, (kind, text, labels, more) in METRICS.items()
        }
        self.limit = RateLimit(settings.rate, settings.burst)
        self.tokens = Tokens(settings.token_file, settings.session_key, settings.session_seconds)
        most_arrivals = max(1, settings.most_connections() // 2)
        self.arrivals = Arrivals(settings.upload_budget_bytes, most_arrivals, settings.upload_seconds)

    def close(self) -> None:
        """Release resources when the application shuts down."""


@dataclass(frozen=True)
class Guard:
    """The outermost layer of the application."""

    app: ASGIApp
    gate: Gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        since, status, has_begun = time.perf_counter(), 500, False
        request_id, arrival = uuid.uuid4().hex, Arrival()

        async def send_guarded(message: Message) -> None:
            nonlocal status, has_begun
            if message["type"] == "http.response.start":
                status, has_begun = message["status"], True
                self.gate.arrivals.release(arrival)  # a client that does not read its answer occupies no memory
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-cache" if "ETag" in headers else "no-store")
                headers["X-Request-Id"] = request_id
            await send(message)

        # Item ids stay encoded until the route is found: %2F is part of the id, / is not.
        if (raw := scope.get("raw_path", b"")).startswith(b"/v1/items/"):
            scope["path"] = raw.decode("latin-1")
        scope.setdefault("state", {})
        failure: Response | None = None
        try:
            try:
                self._check(scope)
                await self.app(scope, self._bounded(scope, receive, arrival), send_guarded)
            except Problem as problem:
                failure = problem_response(problem.status_code, problem.detail, problem.headers)
            except ClientDisconnect:
                status = CLIENT_LEFT
            except asyncio.CancelledError:  # by the server, after shutdown_seconds
                status, failure = 503, problem_response(503, "the service is shutting down", CLOSE)
            except Exception:
                LOG.exception("failed", extra={"fields": {"request": request_id}})
                failure = problem_response(500, f"internal error; the log has it as {request_id}")
            if failure is not None and not has_begun:
                await failure(scope, receive, send_guarded)
        finally:
            self.gate.arrivals.release(arrival)
            self._note(scope, status, time.perf_counter() - since, request_id)

    def _check(self, scope: Scope) -> None:
        path, method, headers = scope["path"], scope["method"], Headers(scope=scope)
        # Health probes use whatever address they have.
        check_origin(headers, None if path in PROBES else self.gate.settings.known_hosts())
        caller = find_caller(HTTPConnection(scope), self.gate.tokens, self.gate.settings)
        scope["state"]["caller"] = caller
        if path not in PROBES:
            cost = READ_COST if method in ("GET", "HEAD") else 1.0
            if wait := self.gate.limit.seconds_to_wait(caller.name, cost, time.monotonic()):
                self.gate.metrics["refused"].labels("rate").inc()
                retry = {"Retry-After": str(max(1, round(wait)))}
                raise Problem(429, "too many requests from one caller; try again later", retry)
        check_scope(caller, needed_scope(method, path))

    def _bounded(self, scope: Scope, receive: Receive, arrival: Arrival) -> Receive:
        """A ``receive`` that ends a request as soon as it is too long or too slow."""
        headers = Headers(scope=scope)
        is_form = headers.get("content-type", "").lower().startswith("multipart/")
        limit = self.gate.settings.upload_bytes if is_form else JSON_BYTES
        # A client that sends everything before it reads sees the error only if the rest is received, up to a point.
        most = 2 * limit
        too_long = Problem(413, f"the request must have at most {limit} bytes", CLOSE)
        if int(headers.get("content-length", "0")) > most:
            raise too_long
        if "transfer-encoding" in headers and "content-length" in headers:  # a proxy may read the other one
            raise Problem(400, "Content-Length and Transfer-Encoding contradict each other", CLOSE)

        async def receive_bounded() -> Message:
            while True:
                message = await self.gate.arrivals.message(arrival, receive)
                if arrival.n_bytes <= limit:
                    return message
                if arrival.n_bytes > most or not message.get("more_body", False):
                    raise too_long

        return receive_bounded

    def _note(self, scope: Scope, status: int, seconds: float, request_id: str) -> None:
        """Count and log the request, its route by template, so that neither ids nor queries are kept."""
        route = getattr(scope.get("route"), "path", scope.get("root_path") or "none")
        method = scope["method"] if scope["method"] in ("GET", "POST", "PUT", "DELETE", "HEAD") else "other"
        self.gate.metrics["requests"].labels(method, route, str(status)).inc()
        self.gate.metrics["request_seconds"].labels(method, route).observe(seconds)
        caller = scope["state"].get("caller")
        fields = {
            "request": request_id,
            "method": method,
            "route": route,
            "status": status,
            "ms": round(1000 * seconds, 1),
            "caller": caller.name if caller else _address(scope),
        }
        LOG.info("request", extra={"fields": fields})


def check_origin(headers: Headers, known: frozenset[str] | None) -> None:
    """Refuse requests from pages of other sites: with an unknown host name, or from another origin."""
    host = headers.get("host", "").lower()
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    if known is not None and name not in known:
        raise Problem(421, "unknown host name; add it to allowed_hosts")
    if "origin" in headers and headers["origin"].lower().partition("://")[2] != host:
        raise Problem(403, "pages of other origins may not use the service")
    if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
        raise Problem(403, "pages of other sites may not use the service")


def check_scope(caller: Caller, needed: str | None) -> None:
    """Refuse a caller who lacks a scope; None requires none."""
    if needed is None or needed in caller.scopes:
        return
    challenge = f'Bearer realm="sightline", scope="{needed}"'
    if caller.token is not None:
        raise Problem(
            403, f"this token lacks the scope {needed!r}", {"WWW-Authenticate": f'{challenge}, error="insufficient_scope"'}
        )
    raise Problem(401, f"a token with the scope {needed!r} is required", {"WWW-Authenticate": challenge})


def find_caller(asked: HTTPConnection, tokens: Tokens, settings: ServeSettings) -> Caller:
    """The caller, by bearer token or, for reading, by session cookie."""
    address = _address(asked.scope)
    kind, _, secret = asked.headers.get("authorization", "").partition(" ")
    if token := tokens.find(secret.strip()) if kind.lower() == "bearer" else None:
        return Caller(f"token:{token.name}", SCOPES[token.scope], token)
    if "authorization" in asked.headers and settings.token_file is not None:
        return Caller(address, frozenset())  # a wrong token grants nothing, not even what is public
    if asked.scope["method"] == "GET" and (token := tokens.find_session(asked.cookies.get(COOKIE, ""))):
        return Caller(f"token:{token.name}", SCOPES["read"], token)
    scopes = settings.open_scopes()
    if "write" in scopes and (asked.headers.get("x-forwarded-for") or asked.headers.get("forwarded")):
        # Loopback without tokens, but through a proxy: the request may come from anywhere.
        scopes = SCOPES["read"] if settings.public_read else frozenset()
    return Caller(address, scopes)


def _address(scope: Scope) -> str:
    """The client's address; for IPv6 the /64 network, which usually belongs to one customer."""
    host = (scope.get("client") or ("unknown", 0))[0]
    with suppress(ValueError):
        if (address := ipaddress.ip_address(host)).version == 6:
            return str(ipaddress.ip_network((address, 64), strict=False))
    return str(host)


def guarded_app(gate: Gate, router: APIRouter, page: str, **described: Any) -> FastAPI:
    """An application with these routes and the page's files behind a :class:`Guard`; errors are problem documents.

    Args:
        gate: closed when the application shuts down.
        router: the routes.
        page: file name of the page.
        described: FastAPI's description, for the OpenAPI document.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        yield {"end_arrivals": gate.arrivals.end}
        gate.close()

    async def index() -> Response:
        return FileResponse(WEB / page)

    # FastAPI's documentation pages load scripts from other hosts.
    app = FastAPI(docs_url=None, redoc_url=None, lifespan=lifespan, redirect_slashes=False, **described)
    app.state.routes = router.routes
    app.include_router(router)
    app.add_api_route("/", index, methods=["GET", "HEAD"], include_in_schema=False)
    app.mount("/static", StaticFiles(directory=WEB))
    app.add_middleware(Guard, gate=gate)
    app.exception_handler(HTTPException)(_refuse)
    app.exception_handler(RequestValidationError)(_refuse_fields)
    return app


async def _refuse(request: Request, error: HTTPException) -> Response:
    headers = dict(error.headers or {})
    if error.status_code == 405:  # a path has one route per method, each of which knows only its own
        routes = [route for route in request.app.state.routes if isinstance(route, Route)]
        matched = [route.methods or () for route in routes if route.matches(request.scope)[0] is not Match.NONE]
        headers["Allow"] = ", ".join(sorted({*headers["Allow"].split(", "), *chain(*matched)}))
    return problem_response(error.status_code, str(error.detail), headers)


async def _refuse_fields(_: Request, error: RequestValidationError) -> Response:
    found = error.errors()
    faults = [{"where": ".".join(map(str, fault["loc"]))[:200], "what": fault["msg"]} for fault in found[:20]]
    return problem_response(422, fault_text(found), errors=faults)
