"""The galleries, encoders and threads behind the routes; nothing here knows of HTTP but the problems it raises."""

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.data.transforms import eval_transform
from sightline.errors import InputError, names
from sightline.gallery.query import Answer
from sightline.models.encoder import Encoder
from sightline.serve.collection import Collection, Fields, SearchJob
from sightline.serve.guard import Gate
from sightline.serve.pictures import Pictures, decoded
from sightline.serve.schemas import Crop, FieldBody, Problem, TooBusy
from sightline.serve.settings import ServeSettings

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


T = TypeVar("T")


@dataclass(frozen=True)
class Served:
    """A gallery, the fields of its items, and the thread that searches it."""

    collection: Collection
    fields: Fields
    searcher: Batcher[SearchJob, Answer]

    def known_fields(self) -> list[FieldBody]:
        """The fields; reads all items where they changed, so not for the event loop."""
        with self.collection.gallery() as gallery:
            return self.fields.of(gallery)


class Encoding:
    """An encoder in a thread of its own: images that wait are encoded in one pass."""

    def __init__(self, encoder: Encoder, settings: ServeSettings, watch: Callable[[int], object]) -> None:
        self.encoder = encoder.eval()
        self.transform = eval_transform(encoder.settings.preprocessing)
        self._n_threads = torch.get_num_threads()
        self.batcher: Batcher[Tensor, NDArray[np.float32]] = Batcher(
            self._encoded, "encode", settings.batch, settings.batch_wait, watch, self._begin
        )

    def _begin(self) -> None:
        """Set the thread up, and run once: the first pass takes several times as long as the others."""
        torch.set_num_threads(self._n_threads)
        side = self.encoder.settings.preprocessing.crop
        self._encoded([torch.zeros(3, side, side)])

    def _encoded(self, images: list[Tensor]) -> list[NDArray[np.float32]]:
        device = next(self.encoder.parameters()).device
        with torch.inference_mode():
            vectors: NDArray[np.float32] = self.encoder(torch.stack(images).to(device)).float().cpu().numpy()
        return list(vectors)


class Service(Gate):
    """Everything that is open while the service runs."""

    def __init__(self, settings: ServeSettings) -> None:
        super().__init__(settings)
        self.pictures = Pictures(settings.image_roots, settings.pixels, settings.cache_bytes)
        # Decoding threads compute on one core each; the encoder's own thread uses all.
        n_threads = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(settings.threads, "decode", initializer=lambda: torch.set_num_threads(1))
        self._writer = ThreadPoolExecutor(1, "write")
        self._encodings: dict[str, Encoding] = {}
        self._lock = threading.Lock()
        self._n_accepted = 0
        self.galleries: dict[str, Served] = {}
        for folder in settings.galleries:
            collection = Collection(folder, settings.read_only)
            searcher: Batcher[SearchJob, Answer] = Batcher(
                collection.search, "search", settings.batch, begin=lambda: torch.set_num_threads(n_threads)
            )
            self.galleries[collection.name] = Served(collection, Fields(), searcher)
            self.encoding(collection)
            collection.warm()
            self._pool.submit(self.galleries[collection.name].known_fields)

    def served(self, name: str | None) -> Served:
        """A gallery by name; the first where none is given."""
        if name is None:
            return next(iter(self.galleries.values()))
        if name not in self.galleries:
            raise Problem(404, f"no gallery is named {name!r}; there are {names(self.galleries)}")
        return self.galleries[name]

    def encoding(self, collection: Collection) -> Encoding:
        """The encoder of a gallery; galleries of the same encoder share it."""
        with collection.gallery() as gallery, self._lock:
            fingerprint = gallery.identity.fingerprint
            if fingerprint not in self._encodings:
                self._encodings[fingerprint] = Encoding(gallery.encoder(), self.settings, self.measures.batches.observe)
            return self._encodings[fingerprint]

    def is_ready(self, served: Served) -> bool:
        """Whether its threads run and its files can be read."""
        try:
            encoding = self.encoding(served.collection)
        except (InputError, OSError):
            return False
        return served.collection.is_there() and served.searcher.is_alive() and encoding.batcher.is_alive()

    def check_waiting(self) -> None:
        """429 where as many requests wait as may; worth asking before a long request is read."""
        if self._n_accepted >= self.settings.waiting:
            self.measures.refused.labels("queue").inc()
            raise TooBusy(f"{self._n_accepted} requests are waiting; ask again later", 1)

    @contextmanager
    def accepted(self) -> Iterator[None]:
        """A place among the requests that are taken at once, or 429; for those that have arrived.

        Called in the event loop's thread alone.
        """
        self.check_waiting()
        self._n_accepted += 1
        self.measures.accepted.inc()
        try:
            yield
        finally:
            self._n_accepted -= 1
            self.measures.accepted.dec()

    async def aside(self, function: Callable[[], T]) -> T:
        """Do something that takes a while in another thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    async def written(self, function: Callable[[], T]) -> T:
        """Write in the one thread that does; finished even if the caller goes away."""
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._writer, function))

    async def encoded(self, served: Served, data: bytes, crop: Crop | None = None) -> NDArray[np.float32]:
        """(D,) the vector of an uploaded image, or of a part of it."""

        def prepared() -> tuple[Encoding, Tensor]:
            encoding = self.encoding(served.collection)
            image = decoded(data, self.settings, crop)
            return encoding, encoding.transform(image)

        encoding, image = await self.aside(prepared)
        return await asyncio.wrap_future(encoding.batcher.submit(image))

    async def searched(self, served: Served, job: SearchJob) -> Answer:
        """What is found for a query."""
        return await asyncio.wrap_future(served.searcher.submit(job))

    def metrics(self) -> bytes:
        """The text for Prometheus; reads the galleries, so not for the event loop."""
        for name, served in self.galleries.items():
            with served.collection.gallery() as gallery:
                self.measures.items.labels(name).set(len(gallery))
                self.measures.generation.labels(name).set(gallery.generation)
        self.measures.queued.set(sum(encoding.batcher.n_waiting() for encoding in self._encodings.values()))
        return self.measures.text()

    def close(self) -> None:
        """Finish what was accepted, then let go of everything; may be called twice."""
        self._writer.shutdown()
        self._pool.shutdown()
        for encoding in self._encodings.values():
            encoding.batcher.close()
        for served in self.galleries.values():
            served.searcher.close()
            served.collection.close()


@asynccontextmanager
async def timed(spans: dict[str, float], name: str) -> AsyncIterator[None]:
    """Note how many milliseconds a block takes."""
    since = time.perf_counter()
    yield
    spans[name] = round(1000 * (time.perf_counter() - since), 2)
