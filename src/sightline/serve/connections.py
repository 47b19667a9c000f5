"""Connections: how many are open, and how long one may take to ask and to listen."""

import asyncio
import resource
from dataclasses import dataclass
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 10.0


@dataclass(frozen=True)
class Limits:
    """What connections may do.

    Attributes:
        connections: that are open at once; for one more, the one that has been idle the longest has to go.
        head_seconds: for the head of a request to arrive.
        answer_seconds: that a client may listen to nothing while an answer waits for it.
    """

    connections: int
    head_seconds: float
    answer_seconds: float


def most_connections(wanted: int) -> int:
    """So many, or a quarter of the files that the process may open: some are accepted before others are closed."""
    n_files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return wanted if n_files == resource.RLIM_INFINITY else max(1, min(wanted, n_files // 4))


class BoundedProtocol(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it, whose connections end by :class:`Limits`.

    uvicorn itself limits the time between requests alone, and the number of requests, not of connections.
    """

    def __init__(self, *args: Any, limits: Limits, **options: Any) -> None:
        super().__init__(*args, **options)
        self.limits = limits
        self.idle_since = self.loop.time()
        self._head_timer: asyncio.TimerHandle | None = None
        self._answer_timer: asyncio.TimerHandle | None = None

    def is_busy(self) -> bool:
        """Whether a request is being answered to somebody who listens."""
        return self.cycle is not None and not self.cycle.response_complete and not self.flow.write_paused

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin; close the one that has been idle the longest if there are too many, which may be this one."""
        super().connection_made(transport)
        self._time_head()
        if len(self.connections) > self.limits.connections:
            idle = [one for one in self.connections if isinstance(one, BoundedProtocol) and not one.is_busy()]
            longest = min(idle, key=lambda one: one.idle_since)
            self.connections.discard(longest)  # at once: its end is heard of later
            longest.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take a part of a request."""
        super().data_received(data)
        self._time_head()

    def on_response_complete(self) -> None:
        """Wait for the next request."""
        self.idle_since = self.loop.time()
        super().on_response_complete()
        self._time_head()

    def pause_writing(self) -> None:
        """Wait for a client that does not listen, for a while."""
        super().pause_writing()
        if self._answer_timer is None:
            self.idle_since = self.loop.time()
            self._answer_timer = self.loop.call_later(self.limits.answer_seconds, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on: the client listens."""
        super().resume_writing()
        _cancel(self._answer_timer)
        self._answer_timer = None

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        _cancel(self._head_timer)
        self._head_timer = None
        super().connection_lost(exc)
        _cancel(self._answer_timer)
        self._answer_timer = None

    def shutdown(self) -> None:
        """End after the answer that is being made; a request that is still arriving has a moment left."""
        super().shutdown()
        if end_arrivals := self.app_state.get("end_arrivals"):
            end_arrivals()

    def _time_head(self) -> None:
        """Have a deadline while no request is being answered: for its head, or for the rest of what was answered early."""
        if self.is_busy():
            _cancel(self._head_timer)
            self._head_timer = None
        elif self._head_timer is None:
            self._head_timer = self.loop.call_later(self.limits.head_seconds, self.transport.abort)


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
