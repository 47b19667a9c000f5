"""What stands before every route: who asks, by which name, how often, how much; headers, counters and the log."""

import asyncio
import ipaddress
import json
import logging
import os
import time
import uuid
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from itertools import chain
from typing import Any
from urllib.parse import urlsplit

from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sightline.serve.connections import Arrival, Arrivals, most_connections
from sightline.serve.schemas import Problem, TooBusy, problem_response
from sightline.serve.settings import ServeSettings, Token, Tokens

MULTIPROCESS = "PROMETHEUS_MULTIPROC_DIR"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
MOST_MESSAGES = 100  # that are told apart
LOG = logging.getLogger("sightline.serve")


class Measures:
    """The counters of one service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        said = {"registry": self.registry, "namespace": "sightline"}
        self.requests = Counter("requests", "Requests answered.", ["method", "route", "status"], **said)  # type: ignore[arg-type]
        self.seconds = Histogram("request_seconds", "Time to answer.", ["method", "route"], buckets=SECONDS, **said)  # type: ignore[arg-type]
        self.batches = Histogram("batch_images", "Images in one pass through the encoder.", buckets=SIZES, **said)  # type: ignore[arg-type]
        self.refused = Counter("refused", "Requests that got 429.", ["reason"], **said)  # type: ignore[arg-type]
        live = {**said, "multiprocess_mode": "livesum"}
        self.accepted = Gauge("accepted_requests", "Searches and writes taken and not yet answered.", **live)  # type: ignore[arg-type]
        self.queued = Gauge("queued_images", "Images that wait for the encoder.", **live)  # type: ignore[arg-type]
        shared = {**said, "multiprocess_mode": "mostrecent"}
        self.items = Gauge("items", "Items of a gallery.", ["gallery"], **shared)  # type: ignore[arg-type]
        self.generation = Gauge("generation", "Generation of a gallery.", ["gallery"], **shared)  # type: ignore[arg-type]

    def text(self) -> bytes:
        """All values, of all workers if there are several."""
        if MULTIPROCESS in os.environ:
            together = CollectorRegistry()
            MultiProcessCollector(together)  # type: ignore[no-untyped-call]
            return generate_latest(together)
        return generate_latest(self.registry)


class JsonLines(logging.Formatter):
    """A log record as one line of JSON; what ``extra={"told": {...}}`` holds becomes keys of their own."""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        said = {
            "time": f"{moment}.{int(record.msecs):03}Z",
            "level": record.levelname.lower(),
            "event": record.getMessage(),
        }
        said |= getattr(record, "told", {})
        if record.exc_info:
            said["error"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=True, default=str)


class Sparse(logging.Filter):
    """Lets each message pass a few times a minute; the next one to pass says how many did not.

    Without it, whoever exhausts the process's files or sends what is no HTTP also fills the disk with logs.
    """

    def __init__(self, most: int = 5, seconds: float = 60.0) -> None:
        super().__init__()
        self._most = most
        self._seconds = seconds
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it passes."""
        key, now = str(record.msg).partition("\n")[0], time.monotonic()
        since, n_seen = self._seen.get(key, (now, 0))
        if now - since >= self._seconds:
            if n_seen > self._most:
                record.told = {"left_out": n_seen - self._most}
            since, n_seen = now, 0
        if len(self._seen) >= MOST_MESSAGES:
            self._seen.clear()
        self._seen[key] = since, n_seen + 1
        return n_seen < self._most


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
CLIENT_LEFT = 499  # in logs and metrics alone, as nginx has it
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
    """Who asks: a token's name or an address, and what that may do."""

    name: str
    scopes: frozenset[str]
    is_known: bool


def needed_scope(method: str, path: str) -> str | None:
    """What a request needs; whatever is not known to only read needs to write.

    Example:
        >>> needed_scope("POST", "/v1/search/id"), needed_scope("DELETE", "/v1/items/a"), needed_scope("GET", "/v1/health")
        ('read', 'write', None)
    """
    if path in OPEN or path.startswith("/static/"):
        return None
    if method in ("GET", "HEAD", "OPTIONS") or (method == "POST" and path.startswith("/v1/search")):
        return "read"
    return "write"


class RateLimit:
    """A bucket for each caller that fills at a rate and holds a burst."""

    def __init__(self, rate: float | None, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def seconds_to_wait(self, caller: str, cost: float, now: float) -> float:
        """0, the cost being taken, or the time until it could be."""
        if self._rate is None:
            return 0.0
        level, since = self._buckets.pop(caller, (self._burst, now))
        level = min(self._burst, level + self._rate * (now - since))
        is_taken = level >= cost
        self._buckets[caller] = (level - cost if is_taken else level, now)
        while len(self._buckets) > MOST_CALLERS:
            self._buckets.popitem(last=False)
        return 0.0 if is_taken else (cost - level) / self._rate


class Gate:
    """What the guard of an application keeps: its settings, tokens, counters and the requests that arrive."""

    def __init__(self, settings: ServeSettings) -> None:
        self.settings = settings
        self.measures = Measures()
        self.tokens = Tokens(settings.token_file, settings.session_key, settings.session_seconds)
        most_arrivals = max(1, most_connections(settings.connections) // 2)
        self.arrivals = Arrivals(settings.upload_budget_bytes, most_arrivals, settings.upload_seconds)

    def close(self) -> None:
        """Let go of everything when the application shuts down."""


class Guard:
    """The outermost layer of the application."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self.app = app
        self.gate = gate
        self.settings = gate.settings
        self.limit = RateLimit(self.settings.rate, self.settings.burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        since, status, has_begun = time.perf_counter(), 500, False
        request_id = uuid.uuid4().hex
        arrival = Arrival()

        async def sent(message: Message) -> None:
            nonlocal status, has_begun
            if message["type"] == "http.response.start":
                status, has_begun = message["status"], True
                self.gate.arrivals.release(arrival)  # a client that does not listen holds no bytes of its request
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
                headers.setdefault("Cache-Control", "no-store")
                headers["X-Request-Id"] = request_id
            await send(message)

        # Ids of items stay encoded until the route has been found: %2F belongs to the id, / does not.
        if (raw := scope.get("raw_path", b"")).startswith(b"/v1/items/"):
            scope["path"] = raw.decode("latin-1")
        scope.setdefault("state", {})
        try:
            self._check(scope)
            await self.app(scope, self._bounded(scope, receive, arrival), sent)
        except Problem as problem:
            await problem_response(problem.status_code, problem.detail, problem.headers)(scope, receive, sent)
        except ClientDisconnect:
            status = CLIENT_LEFT
        except asyncio.CancelledError:  # by the server, which has waited for as long as it may
            status = 503
            if not has_begun:
                await problem_response(503, "the service shuts down", {"Connection": "close"})(scope, receive, sent)
        except Exception:
            LOG.exception("failed", extra={"told": {"request": request_id}})
            if not has_begun:
                await problem_response(500, f"an error of the service, noted as {request_id}")(scope, receive, sent)
        finally:
            self.gate.arrivals.release(arrival)
            self._note(scope, status, time.perf_counter() - since, request_id)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        # What asks whether it runs asks by whatever address it has.
        check_origin(headers, None if scope["path"] in PROBES else self.settings.known_hosts())
        caller = caller_of(headers, scope, self.gate.tokens, self.settings)
        scope["state"]["caller"] = caller
        path, method = scope["path"], scope["method"]
        if path not in PROBES:
            cost = READ_COST if method in ("GET", "HEAD") else 1.0
            if wait := self.limit.seconds_to_wait(caller.name, cost, time.monotonic()):
                self.gate.measures.refused.labels("rate").inc()
                raise TooBusy("too many requests of one caller; ask again later", wait)
        scope_needed = needed_scope(method, path)
        if scope_needed is not None and scope_needed not in caller.scopes:
            challenge = f'Bearer realm="sightline", scope="{scope_needed}"'
            if caller.is_known:
                raise Problem(
                    403,
                    f"this token may not {scope_needed}",
                    {"WWW-Authenticate": f'{challenge}, error="insufficient_scope"'},
                )
            raise Problem(401, f"a token that may {scope_needed} is needed", {"WWW-Authenticate": challenge})

    def _bounded(self, scope: Scope, receive: Receive, arrival: Arrival) -> Receive:
        """Receive that ends a request as soon as it has grown too long or takes too long."""
        headers = Headers(scope=scope)
        is_form = headers.get("content-type", "").lower().startswith("multipart/")
        limit = self.settings.upload_bytes if is_form else JSON_BYTES
        too_long = Problem(413, f"the request is longer than {limit} bytes", {"Connection": "close"})
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            raise Problem(400, "Content-Length is not a number")
        if "transfer-encoding" in headers and "content-length" in headers:  # a proxy may take the other for the body's end
            raise Problem(400, "Content-Length and Transfer-Encoding contradict each other", {"Connection": "close"})
        n_bytes = 0
        # A client that sends everything before it listens hears of the limit only if the rest is taken, up to a point.
        most = 2 * limit

        async def received() -> Message:
            nonlocal n_bytes
            while True:
                if int(length) > most or n_bytes > most:
                    raise too_long
                message = await self.gate.arrivals.message(arrival, receive)
                n_bytes += len(message.get("body", b""))
                if max(n_bytes, int(length)) <= limit:
                    return message
                if not message.get("more_body", False):
                    raise too_long

        return received

    def _note(self, scope: Scope, status: int, seconds: float, request_id: str) -> None:
        """Count and log; a route by its template, so that neither ids nor searches are kept."""
        route = getattr(scope.get("route"), "path", "none")
        method = scope["method"] if scope["method"] in ("GET", "POST", "PUT", "DELETE", "HEAD") else "other"
        self.gate.measures.requests.labels(method, route, str(status)).inc()
        self.gate.measures.seconds.labels(method, route).observe(seconds)
        caller = scope["state"].get("caller")
        told = {
            "request": request_id,
            "method": method,
            "route": route,
            "status": status,
            "ms": round(1000 * seconds, 1),
            "caller": caller.name if caller else _address(scope),
        }
        LOG.info("request", extra={"told": told})


def check_origin(headers: Headers, known: frozenset[str] | None) -> None:
    """Refuse requests that a page of another site makes: by another name for this host than those known, or from
    another origin.
    """
    host = headers.get("host", "").lower()
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    if known is not None and name not in known:
        raise Problem(421, "the service is not known by this name; see allowed_hosts")
    origin = headers.get("origin")
    if origin is not None and _netloc(origin) != host:
        raise Problem(403, "pages of other origins may not use the service")
    if headers.get("sec-fetch-site") == "cross-site" and headers.get("sec-fetch-mode") != "navigate":
        raise Problem(403, "pages of other sites may not use the service")


def _netloc(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def caller_of(headers: Headers, scope: Scope, tokens: Tokens, settings: ServeSettings) -> Caller:
    """Who asks: by bearer token, or for reading by the cookie that stands for one."""
    address = _address(scope)
    given = headers.get("authorization")
    if given is not None:
        kind, _, secret = given.partition(" ")
        token = tokens.find(secret.strip()) if kind.lower() == "bearer" else None
        if token is None and settings.token_file is not None:
            return Caller(address, frozenset(), False)  # a wrong token opens nothing, not even what is public
        if token is not None:
            return Caller(f"token:{token.name}", token.scopes, True)
    if scope["method"] == "GET" and (token := _of_cookie(headers.getlist("cookie"), tokens)) is not None:
        return Caller(f"token:{token.name}", frozenset({"read"}), True)
    scopes = settings.open_scopes()
    if "write" in scopes and (headers.get("x-forwarded-for") or headers.get("forwarded")):
        # On loopback without tokens, and yet it comes through a proxy, from anywhere.
        scopes = frozenset({"read"}) if settings.public_read else frozenset()
    return Caller(address, scopes, False)


def _of_cookie(lines: Iterable[str], tokens: Tokens) -> Token | None:
    for line in lines:
        try:
            morsel = SimpleCookie(line).get(COOKIE)
        except CookieError:
            continue
        if morsel is not None and (token := tokens.find_session(morsel.value)) is not None:
            return token
    return None


def _address(scope: Scope) -> str:
    """Where the request comes from; of an IPv6 address the network, of which one customer has all addresses."""
    host = (scope.get("client") or ("unknown", 0))[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return str(host)
    if address.version == 6:
        return str(ipaddress.ip_network((address, 64), strict=False))
    return str(address)


def guarded_app(gate: Gate, routers: Sequence[APIRouter], **described: Any) -> FastAPI:
    """An application of some routes behind a :class:`Guard`, whose errors are problem documents.

    Args:
        gate: closed when the application shuts down.
        routers: its routes.
        described: what FastAPI says of it in its OpenAPI document.
    """

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[dict[str, Any]]:
        yield {"end_arrivals": gate.arrivals.end}
        gate.close()

    # The pages of documentation would load scripts from elsewhere.
    app = FastAPI(docs_url=None, redoc_url=None, lifespan=lifespan, redirect_slashes=False, **described)
    app.state.routes = [route for router in routers for route in router.routes]
    for router in routers:
        app.include_router(router)
    app.add_middleware(Guard, gate=gate)
    app.add_exception_handler(HTTPException, _refused)
    app.add_exception_handler(RequestValidationError, _unfit)
    return app


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    if error.status_code == 405:  # a path has a route for each method, and each knows of its own alone
        routes = [route for route in request.app.state.routes if isinstance(route, Route)]
        matched = [route.methods or () for route in routes if route.matches(request.scope)[0] is not Match.NONE]
        headers["Allow"] = ", ".join(sorted({*chain(*matched)}))
    return problem_response(error.status_code, str(error.detail), headers)


async def _unfit(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [{"where": ".".join(map(str, fault["loc"]))[:200], "what": fault["msg"]} for fault in error.errors()[:20]]
    return problem_response(422, "; ".join(f"{fault['where']}: {fault['what']}" for fault in faults), errors=faults)
