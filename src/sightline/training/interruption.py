"""SIGTERM as a wish that the loop can heed."""

import signal
import threading
from types import FrameType, TracebackType


class Interruption:
    """While entered, SIGTERM does not end the process but is remembered in ``asked``.

    Only the main thread can be told by a signal; elsewhere nothing changes.
    """

    def __init__(self) -> None:
        self.asked = False

    def __enter__(self) -> "Interruption":
        if threading.current_thread() is threading.main_thread():
            self.before = signal.signal(signal.SIGTERM, self._remember)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, self.before)

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.asked = True
