"""Bodies of requests while they arrive: for how long, how many at once, and how many bytes of them are held."""

import asyncio
from dataclasses import dataclass, field

from starlette.types import Message, Receive

from sightline.serve.problems import Problem, TooBusy

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
