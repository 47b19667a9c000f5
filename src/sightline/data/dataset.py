"""Images to tensors, one by one and in batches."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from sightline.data.images import Box, load_image, load_part
from sightline.data.manifest import Manifest
from sightline.data.transforms import EvalTransform, Transform
from sightline.errors import InputError, raise_faults

PREFETCHED = 2  # batches a worker reads ahead
Result = TypeVar("Result")


class Batch(NamedTuple):
    """Some images of a data set.

    Attributes:
        images: (B, 3, H, W) float32; the channels of a pixel are beside each other in memory (channels last).
        places: (B,) int64, where they stand in the data set.
    """

    images: Tensor
    places: Tensor


class ImageDataset(Dataset[Tensor]):
    """Images, read and transformed on access.

    With a seed, the random choices of the transform depend on the seed and the image's key alone: not on the order, the
    number of workers or what was drawn before. A run gives each epoch a seed of its own.

    Attributes:
        keys: a number for each image, by default its position.
    """

    def __init__(
        self,
        images: Sequence[Path | Image.Image],
        transform: Transform,
        boxes: Sequence[Box | None] | None = None,
        seed: int | None = None,
    ) -> None:
        self.images = images
        self.transform = transform
        self.boxes = boxes if boxes is not None else [None] * len(images)
        self.seed = seed
        self.keys: Sequence[int] = range(len(images))

    @classmethod
    def of(cls, manifest: Manifest, transform: Transform, seed: int | None = None) -> "ImageDataset":
        """The images of a manifest, in its order, cut to their boxes."""
        return cls(manifest.paths(), transform, manifest.boxes(), seed)

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Tensor:
        return self.finished(self.loaded(index)[None])[0]

    def loaded(self, index: int, view: int = 0) -> Tensor:
        """(H, W, C) the bytes of an image, as workers send it: a quarter of what it becomes.

        Args:
            index: its place.
            view: with a seed, each number is another draw.
        """
        if self.seed is None:
            return self._transformed(index)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(derived_seed(self.seed, self.keys[index], *([view] if view else [])))
            return self._transformed(index)

    def finished(self, loaded: Tensor) -> Tensor:
        """(B, C, H, W) what the model gets of (B, H, W, C) loaded images."""
        return self.transform.preprocessing.normalised(loaded)

    def _transformed(self, index: int) -> Tensor:
        source, box, transform = self.images[index], self.boxes[index], self.transform
        if isinstance(transform, EvalTransform):
            return transform.pixels(load_image(source, box, transform.at_least))
        if transform.draft and transform.resize is not None:
            longest = int(np.max(transform.resize))
            return transform.pixels(load_part(source, box, lambda *size: (0, 0, *size), at_least=longest))
        if transform.draft and transform.crop_area is not None:
            return transform.pixels_of_part(load_part(source, box, transform.part, transform.preprocessing.crop))
        return transform.pixels(load_image(source, box))  # a square as it is has nothing to reduce


def derived_seed(*parts: int) -> int:
    """A seed for one purpose, from the numbers that name it; close numbers give unrelated seeds.

    Example:
        >>> derived_seed(0, 1) == derived_seed(0, 1), derived_seed(0, 1) == derived_seed(1, 0)
        (True, False)
    """
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0])


@dataclass
class _Loadable(Dataset[tuple[int, Tensor | str]]):
    """A data set whose broken images come out as a sentence, so that a loader's worker survives them."""

    images: ImageDataset

    def __getitem__(self, item: tuple[int, int]) -> tuple[int, Tensor | str]:
        index, view = item
        try:
            return index, self.images.loaded(index, view)
        except InputError as error:
            return index, str(error)


def _collate(items: list[tuple[int, Tensor | str]]) -> Batch | list[str]:
    if faults := [image for _, image in items if isinstance(image, str)]:
        return faults
    # Copied once, to memory that processes share, in the layout the images have already.
    return Batch(default_collate([image for _, image in items]), torch.tensor([index for index, _ in items]))


def load_batches(
    images: ImageDataset,
    batches: Sequence[Sequence[int]],
    n_workers: int = 0,
    device: torch.device | None = None,
    n_ahead: int = PREFETCHED,
    views: Sequence[Sequence[int]] | None = None,
    finish: bool = True,
) -> Iterator[Batch]:
    """The images of each batch, in order, read by worker processes ahead of their use.

    Once an image turns out to be broken no further batch comes: the rest is read through, and one error names every broken
    image.

    Args:
        images: the data set.
        batches: the places in it that each batch holds.
        n_workers: processes that read images; 0 reads them here.
        device: where the images are wanted; training images travel there as bytes. None leaves them on the CPU.
        n_ahead: batches that each worker reads ahead.
        views: which view of each image, for a data set with a seed; None: the first of all.
        finish: False leaves images as workers send them, for :meth:`ImageDataset.finished` of a part at a time.
    """
    views = [[0] * len(places) for places in batches] if views is None else views
    items = [list(zip(*both, strict=True)) for both in zip(batches, views, strict=True)]
    n_workers = min(n_workers, len(batches))
    loader: DataLoader[tuple[int, Tensor | str]] = DataLoader(
        _Loadable(images),
        batch_sampler=items,
        num_workers=n_workers,
        prefetch_factor=n_ahead if n_workers else None,
        collate_fn=_collate,
        # Its own generator: a loader would otherwise draw from the global one, and shift what the model draws.
        generator=torch.Generator().manual_seed(0),
    )
    faults: list[str] = []
    for batch in loader:
        if isinstance(batch, list):
            faults += batch
        elif not faults:
            here = batch.images.to(device)
            yield Batch(images.finished(here) if finish else here, batch.places)
    raise_faults("images", faults)


def read_ahead(
    images: ImageDataset, batches: Sequence[Sequence[int]], then: Callable[[Tensor], Result]
) -> Iterator[tuple[Sequence[int], Result]]:
    """The places of each batch and what ``then`` makes of its (B, H, W, C) bytes, in order.

    As many threads as torch has each read a batch and hand it on, up to two batches a thread ahead of their use. Threads
    cost less than processes where nothing random is drawn: decoding and resizing release the interpreter lock. Broken
    images are raised as by :func:`load_batches`.

    Args:
        images: a data set without a seed.
        batches: the places in it that each batch holds.
        then: called by the threads, several at a time.
    """
    source, faults = _Loadable(images), list[str]()

    def work(places: Sequence[int]) -> tuple[list[str], Result | None]:
        loaded = [source[place, 0][1] for place in places]
        broken = [image for image in loaded if isinstance(image, str)]
        if broken or faults:
            return broken, None
        # By NumPy: torch would start threads of its own for each of these.
        return [], then(torch.from_numpy(np.stack([image.numpy() for image in loaded])))  # type: ignore[union-attr]

    if len(batches) == 1:  # read sooner than a thread starts
        broken, result = work(batches[0])
        raise_faults("images", broken)
        yield batches[0], result  # type: ignore[misc]
        return
    n_threads = torch.get_num_threads()
    waiting: deque[Future[tuple[list[str], Result | None]]] = deque()
    pool = ThreadPoolExecutor(n_threads)
    try:
        coming = iter(batches)
        for places in batches:
            waiting += [pool.submit(work, ahead) for ahead in islice(coming, 2 * n_threads - len(waiting))]
            broken, result = waiting.popleft().result()
            faults += broken
            if result is not None and not faults:
                yield places, result
    finally:
        pool.shutdown(cancel_futures=True)
    raise_faults("images", faults)


def consecutive(n_items: int, batch_size: int) -> list[range]:
    """Batches that go through all items once, in order.

    Example:
        >>> consecutive(5, 2)
        [range(0, 2), range(2, 4), range(4, 5)]
    """
    return [range(start, min(start + batch_size, n_items)) for start in range(0, n_items, batch_size)]
