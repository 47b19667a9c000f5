"""The galleries, encoders and threads behind the routes; independent of HTTP except for the problems it raises."""

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.data.transforms import eval_transform
from sightline.errors import InputError, names
from sightline.gallery.query import Answer
from sightline.models.encoder import Encoder
from sightline.models.inference import Backend, open_backend
from sightline.models.scorer_inputs import ScorerInputs, split_rows
from sightline.ood.drift import EVENT, Drift
from sightline.ood.rejector import Verdict
from sightline.serve.collection import Collection, SearchJob
from sightline.serve.guard import LOG, Gate, metrics_text
from sightline.serve.pictures import Pictures, decode_upload
from sightline.serve.schemas import RETRY, Crop, Problem
from sightline.serve.settings import ServeSettings

ByKind = dict[str, NDArray[np.float32]]  # what an encoder gives of one image, by the names of Encoder.scorer_inputs
Job = TypeVar("Job")
Done = TypeVar("Done")


class Batcher(Generic[Job, Done]):
    """Runs jobs from any thread in batches, in order of submission.

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
            run: runs a batch; returns a result or an exception for each job.
            name: of the thread.
            largest: maximum number of jobs in a batch.
            wait: seconds that a batch waits for more jobs after its first.
            watch: called with the size of each batch.
            begin: called first in the thread.
        """
        self._run = run
        self._largest = largest
        self._wait = wait
        self._watch = watch
        self._jobs: deque[tuple[Job, Future[Done]]] = deque()
        self._thread = ThreadPoolExecutor(1, name)
        self._begun = self._thread.submit(begin)

    def submit(self, job: Job) -> "Future[Done]":
        """A future for the job's result."""
        future: Future[Done] = Future()
        self._jobs.append((job, future))
        self._thread.submit(self._run_batch)  # does nothing if an earlier batch has taken the job
        return future

    def n_waiting(self) -> int:
        """Number of jobs waiting for a batch."""
        return len(self._jobs)

    def is_alive(self) -> bool:
        """Whether jobs will run: False if the thread could not be set up."""
        return not self._begun.done() or self._begun.exception() is None

    def close(self) -> None:
        """Finish submitted jobs, then end the thread; may be called twice."""
        self._thread.shutdown()

    def _run_batch(self) -> None:
        if 0 < len(self._jobs) < self._largest:
            time.sleep(self._wait)
        taken = [self._jobs.popleft() for _ in range(min(len(self._jobs), self._largest))]
        batch = [(job, future) for job, future in taken if future.set_running_or_notify_cancel()]
        if not batch:
            return
        self._watch(len(batch))
        try:
            answers = self._run([job for job, _ in batch])
        except Exception as error:  # every caller gets it; the thread goes on
            answers = [error] * len(batch)
        for (_, future), answer in zip(batch, answers, strict=True):
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)


class Encoding:
    """An encoder in its own thread: waiting images are encoded in one pass.

    A batch is encoded with the inputs of scorers where one of its images is to be judged by them.
    """

    def __init__(self, encoder: Encoder, settings: ServeSettings, watch: Callable[[int], object]) -> None:
        self.encoder = encoder.eval()
        self._name = settings.backend
        self._networks: dict[bool, tuple[Backend, tuple[int, ...]]] = {}  # by whether with inputs of scorers
        self.open(False)
        self.transform = eval_transform(encoder.settings.preprocessing)
        self._n_threads = torch.get_num_threads()
        self.batcher: Batcher[tuple[Tensor, bool], ByKind] = Batcher(
            self._encode, "encode", settings.batch, settings.batch_wait, watch, self._begin
        )

    def open(self, with_inputs: bool) -> tuple[Backend, tuple[int, ...]]:
        """What computes vectors, or also the inputs of scorers, and the widths of its parts; an export takes some time."""
        if with_inputs not in self._networks:
            network = ScorerInputs(self.encoder).eval() if with_inputs else self.encoder
            self._networks[with_inputs] = open_backend(network, self._name), network.widths
        return self._networks[with_inputs]

    def _begin(self) -> None:
        """Set up the thread and run once: the first pass is several times slower."""
        torch.set_num_threads(self._n_threads)
        side = self.encoder.settings.preprocessing.crop
        self._encode([(torch.zeros(side, side, 3, dtype=torch.uint8), False)])

    def _encode(self, images: list[tuple[Tensor, bool]]) -> list[ByKind]:
        backend, widths = self.open(any(with_inputs for _, with_inputs in images))
        found = split_rows(backend.run(torch.stack([pixels for pixels, _ in images])), widths)
        return [{kind: rows[place] for kind, rows in found.items()} for place in range(len(images))]


class Service(Gate):
    """The state of a running service: galleries, encoders, threads."""

    def __init__(self, settings: ServeSettings) -> None:
        super().__init__(settings)
        self.pictures = Pictures(settings.image_roots, settings.pixels, settings.cache_bytes)
        # Decoding threads use one core each; the encoder and searches use all.
        use_all_cores = partial(torch.set_num_threads, torch.get_num_threads())
        self._pool = ThreadPoolExecutor(settings.threads, "decode", initializer=partial(torch.set_num_threads, 1))
        self._writer = ThreadPoolExecutor(1, "write")
        self._encodings: dict[str, Encoding] = {}
        self._lock = threading.Lock()
        self._places = asyncio.Semaphore(settings.waiting)
        self.galleries: dict[str, Collection] = {}
        self._searchers: dict[str, Batcher[SearchJob, Answer]] = {}
        self._drifts: dict[tuple[str, float | None], Drift] = {}  # by gallery and threshold: again after a recalibration
        for folder in settings.galleries:
            collection = Collection(folder, settings.read_only)
            self.galleries[collection.name] = collection
            self._searchers[collection.name] = Batcher(collection.search, "search", settings.batch, begin=use_all_cores)
            encoding = self.encoding(collection)
            collection.warm()
            encoding.open(collection.needs_images())
            self._pool.submit(collection.fields)

    def gallery(self, name: str | None) -> Collection:
        """A gallery by name; None for the first."""
        if name is None:
            return next(iter(self.galleries.values()))
        if name not in self.galleries:
            raise Problem(404, f"no gallery named {name!r}; choose from {names(self.galleries)}")
        return self.galleries[name]

    def encoding(self, collection: Collection) -> Encoding:
        """The encoder of a gallery, shared by galleries with the same encoder."""
        with collection.gallery() as gallery, self._lock:
            fingerprint = gallery.identity.fingerprint
            if fingerprint not in self._encodings:
                self._encodings[fingerprint] = Encoding(
                    gallery.encoder(self.settings.trust), self.settings, self.metrics["batch_images"].observe
                )
            return self._encodings[fingerprint]

    def is_ready(self, collection: Collection) -> bool:
        """Whether the gallery's threads run and its files can be read."""
        try:
            batchers = self._searchers[collection.name], self.encoding(collection).batcher
        except (InputError, OSError):
            return False
        return collection.inode() is not None and all(batcher.is_alive() for batcher in batchers)

    def check_waiting(self) -> None:
        """Raise 429 if the queue is full; worth calling before a long request is read."""
        if self._places.locked():
            self.metrics["refused"].labels("queue").inc()
            raise Problem(429, f"{self.settings.waiting} requests are waiting; try again later", RETRY)

    @asynccontextmanager
    async def accept(self) -> AsyncIterator[None]:
        """Hold a place in the queue, or raise 429; for requests that have arrived."""
        self.check_waiting()
        async with self._places:
            with self.metrics["accepted_requests"].track_inprogress():
                yield

    async def run(self, function: Callable[[], Done]) -> Done:
        """Run a blocking function in another thread."""
        return await asyncio.get_running_loop().run_in_executor(self._pool, function)

    async def write(self, function: Callable[[], Done]) -> Done:
        """Run a write in the writer thread; it finishes even if the caller disconnects."""
        return await asyncio.shield(asyncio.get_running_loop().run_in_executor(self._writer, function))

    async def encode(self, collection: Collection, data: bytes, crop: Crop | None = None, is_query: bool = False) -> ByKind:
        """The (D,) ``vectors`` of an uploaded image, or of a part of it; of a query, also what the rejector needs."""

        def prepare() -> tuple[Encoding, tuple[Tensor, bool]]:
            encoding = self.encoding(collection)
            transform = encoding.transform
            pixels = transform.pixels(decode_upload(data, self.settings, crop, transform.at_least))
            return encoding, (pixels, is_query and collection.needs_images())

        encoding, image = await self.run(prepare)
        return await asyncio.wrap_future(encoding.batcher.submit(image))

    async def search(self, collection: Collection, job: SearchJob) -> Answer:
        """The answer to a query."""
        answer = await asyncio.wrap_future(self._searchers[collection.name].submit(job))
        if answer.verdict is not None and job.own is None:
            self._count(collection, answer.verdict)
        return answer

    def _count(self, collection: Collection, verdict: Verdict) -> None:
        """Count and log a verdict; warn when the share of refused queries is not what calibration promised."""
        name, refused = collection.name, not verdict.belongs
        self.metrics["verdicts"].labels(name, "refused" if refused else "accepted").inc()
        if verdict.matched is False and not refused:
            self.metrics["unmatched"].labels(name).inc()
        if verdict.quantile is not None:
            self.metrics["energy_quantile"].labels(name).observe(verdict.quantile)
        fields = {"gallery": name, "energy": verdict.energy, "threshold": verdict.threshold, "refused": refused}
        LOG.info(EVENT, extra={"fields": fields})
        drift = self._drifts.setdefault((name, collection.threshold), Drift())
        change = drift.add(refused, collection.acceptance)
        self.metrics["refused_share_alarm"].labels(name).set(drift.alarmed)
        if change is not None:
            LOG.warning("refused share: %s", change, extra={"fields": {"gallery": name}})

    def metrics_text(self) -> bytes:
        """Metrics as Prometheus text; reads the galleries, so call it outside the event loop."""
        for name, collection in self.galleries.items():
            with collection.gallery() as gallery:
                self.metrics["items"].labels(name).set(len(gallery))
                self.metrics["generation"].labels(name).set(gallery.generation)
        self.metrics["queued_images"].set(sum(encoding.batcher.n_waiting() for encoding in self._encodings.values()))
        return metrics_text(self.registry)

    def close(self) -> None:
        """Finish accepted requests, then release everything; may be called twice."""
        self._writer.shutdown()
        self._pool.shutdown()
        for encoding in self._encodings.values():
            encoding.batcher.close()
        for name, collection in self.galleries.items():
            self._searchers[name].close()
            collection.close()
