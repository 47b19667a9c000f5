"""Connections and the bodies that arrive by them: how many, how long, how many bytes."""

import asyncio
import resource
from dataclasses import dataclass, field
from typing import Any

from starlette.types import Message, Receive
from uvicorn.protocols.http.h11_impl import H11Protocol

from sightline.serve.schemas import Problem, TooBusy

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


LAST_SECONDS = 1.0  # that a body still has once the service shuts down


@dataclass(eq=False)
class Arrival:
    """The body of one request: its bytes so far, and until when it may arrive, by the event loop's clock."""

    n_bytes: int = 0
    until: float = 0.0
    is_complete: bool = False
    is_crowded_out: bool = False
    is_waiting: bool = False  # for others' bytes to be released
    timeout: asyncio.Timeout | None = None
    room: asyncio.Event = field(default_factory=asyncio.Event)


class Arrivals:
    """The bodies that arrive, and the bytes of requests that are not answered yet.

    While more than ``budget_bytes`` are held, nothing more is read; then the oldest body alone arrives, so that there is
    always one that comes to its end. So at most ``budget_bytes`` and one request are held.
    """

    def __init__(self, budget_bytes: int, most: int, seconds: float) -> None:
        """Start with none.

        Args:
            budget_bytes: of all requests that are not answered yet.
            most: bodies that arrive at once; for one more, the oldest has to go.
            seconds: that a body may take.
        """
        self._budget_bytes = budget_bytes
        self._most = most
        self._seconds = seconds
        self._arriving: dict[Arrival, None] = {}  # oldest first
        self._n_arriving_bytes = 0
        self._n_complete_bytes = 0
        self._is_ending = False

    async def message(self, arrival: Arrival, receive: Receive) -> Message:
        """The next part of a body, or a problem: 408 too slow, 429 no room, 503 shutting down."""
        if arrival.is_complete:
            return await receive()
        if arrival not in self._arriving:
            self._begin(arrival)
        try:
            async with asyncio.timeout_at(arrival.until) as arrival.timeout:
                await self._has_room(arrival)
                message = await receive()
        except TimeoutError as error:
            raise self._problem(arrival) from error
        finally:
            arrival.timeout = None
        n_bytes = len(message.get("body", b""))
        arrival.n_bytes += n_bytes
        self._n_arriving_bytes += n_bytes
        if not message.get("more_body", False):
            del self._arriving[arrival]
            arrival.is_complete = True
            self._n_arriving_bytes -= arrival.n_bytes
            self._n_complete_bytes += arrival.n_bytes
            self._wake()  # another is the oldest now
        return message

    def release(self, arrival: Arrival) -> None:
        """Let go of a request's bytes, once it is answered; may be called twice."""
        if arrival.is_complete:
            self._n_complete_bytes -= arrival.n_bytes
        elif arrival in self._arriving:
            del self._arriving[arrival]
            self._n_arriving_bytes -= arrival.n_bytes
        arrival.n_bytes = 0
        self._wake()

    def end(self) -> None:
        """Give what has not arrived one more second: the service shuts down."""
        self._is_ending = True
        for arrival in self._arriving:
            self._hasten(arrival, LAST_SECONDS)

    def _begin(self, arrival: Arrival) -> None:
        arrival.until = asyncio.get_running_loop().time() + (LAST_SECONDS if self._is_ending else self._seconds)
        if len(self._arriving) >= self._most:
            oldest = next((one for one in self._arriving if not one.is_crowded_out), None)
            if oldest is not None:
                oldest.is_crowded_out = True
                self._hasten(oldest, 0)
        self._arriving[arrival] = None

    def _hasten(self, arrival: Arrival, seconds: float) -> None:
        arrival.until = min(arrival.until, asyncio.get_running_loop().time() + seconds)
        if arrival.timeout is not None and not arrival.timeout.expired():
            arrival.timeout.reschedule(arrival.until)

    async def _has_room(self, arrival: Arrival) -> None:
        while self._n_arriving_bytes + self._n_complete_bytes >= self._budget_bytes and not self._may_exceed(arrival):
            arrival.room.clear()
            arrival.is_waiting = True
            await arrival.room.wait()
        arrival.is_waiting = False

    def _may_exceed(self, arrival: Arrival) -> bool:
        """Whether all would wait for each other if this one waited."""
        return self._n_complete_bytes == 0 and next(iter(self._arriving)) is arrival

    def _wake(self) -> None:
        for arrival in self._arriving:
            arrival.room.set()

    def _problem(self, arrival: Arrival) -> Problem:
        closing = {"Connection": "close"}
        if self._is_ending:
            return Problem(
                503, "the service shuts down; the request did not arrive in time", {**closing, "Retry-After": "1"}
            )
        if arrival.is_crowded_out or arrival.is_waiting:
            problem = TooBusy("too many requests arrive at once; ask again later", 1)
            problem.headers = {**(problem.headers or {}), **closing}
            return problem
        return Problem(408, f"the request did not arrive within {self._seconds:g} s", closing)
