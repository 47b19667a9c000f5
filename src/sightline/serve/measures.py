"""What Prometheus is told, and the log: one JSON object a line, without content of images."""

import json
import logging
import os
import time

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

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
    "formatters": {"json": {"()": "sightline.serve.measures.JsonLines"}},
    "filters": {"sparse": {"()": "sightline.serve.measures.Sparse"}},
    "handlers": {"stderr": STDERR, "others": {**STDERR, "filters": ["sparse"]}},
    "root": {"handlers": ["others"], "level": "WARNING"},  # libraries
    "loggers": {
        "uvicorn": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
        "uvicorn.error": {"filters": ["sparse"]},
        "uvicorn.access": {"handlers": [], "propagate": False},  # would log ids and searches
        "sightline.serve": {"handlers": ["stderr"], "level": "INFO", "propagate": False},
    },
}
