"""One thread that does alike jobs together: what waits while it works is done in its next turn."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

Job = TypeVar("Job")
Done = TypeVar("Done")


class Batcher(Generic[Job, Done]):
    """Takes jobs from any thread and does them in batches, in the order they came.

    Example:
        >>> batcher = Batcher(lambda numbers: [2 * number for number in numbers], "double")
        >>> batcher.submit(21).result()
        42
        >>> batcher.close()
    """

    def __init__(
        self,
        run: Callable[[list[Job]], Sequence[Done | Exception]],
        name: str,
        largest: int = 32,
        wait: float = 0.0,
        watch: Callable[[int], object] = lambda n_jobs: None,
        begin: Callable[[], object] = lambda: None,
    ) -> None:
        """Start the thread.

        Args:
            run: does a batch; gives an answer, or an exception, for each job.
            name: of the thread.
            largest: jobs in a batch.
            wait: seconds that a batch waits for more jobs after its first.
            watch: is told how many jobs each batch has.
            begin: is called first in the thread.
        """
        self._run = run
        self._largest = largest
        self._wait = wait
        self._watch = watch
        self._begin = begin
        self._jobs: queue.SimpleQueue[tuple[Job, Future[Done]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._is_closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> "Future[Done]":
        """The answer to come."""
        future: Future[Done] = Future()
        with self._lock:  # nothing may come after the end
            if self._is_closed:
                raise RuntimeError("the worker was closed")
            self._jobs.put((job, future))
        return future

    def n_waiting(self) -> int:
        """Jobs that no batch has taken yet."""
        return self._jobs.qsize()

    def is_alive(self) -> bool:
        """Whether jobs will be done."""
        return self._thread.is_alive()

    def close(self) -> None:
        """Do what was submitted, then end the thread; may be called twice."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._jobs.put(None)
        self._thread.join()

    def _work(self) -> None:
        self._begin()
        is_open = True
        while is_open:
            batch, is_open = self._collected()
            batch = [(job, future) for job, future in batch if future.set_running_or_notify_cancel()]
            if batch:
                self._watch(len(batch))
                self._do(batch)

    def _collected(self) -> "tuple[list[tuple[Job, Future[Done]]], bool]":
        """The next batch, and whether more may come."""
        batch: list[tuple[Job, Future[Done]]] = []
        deadline = float("inf")
        while len(batch) < self._largest:
            try:
                if not batch:
                    taken = self._jobs.get()
                    deadline = time.monotonic() + self._wait
                elif (left := deadline - time.monotonic()) > 0:
                    taken = self._jobs.get(timeout=left)
                else:
                    taken = self._jobs.get_nowait()
            except queue.Empty:
                break
            if taken is None:
                return batch, False
            batch.append(taken)
        return batch, True

    def _do(self, batch: "list[tuple[Job, Future[Done]]]") -> None:
        try:
            answers = self._run([job for job, _ in batch])
        except Exception as error:  # each caller hears of it; the thread goes on
            answers = [error] * len(batch)
        for (_, future), answer in zip(batch, answers, strict=True):
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)
