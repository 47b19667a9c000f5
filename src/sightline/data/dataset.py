"""Images to tensors, one by one and in batches."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

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
Item = TypeVar("Item")
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


def _collate(items: list[tuple[int, Tensor | str]]) -> tuple[Batch | None, dict[int, str]]:
    """The images of a batch that can be read, if any, and why the others cannot."""
    sound = [(index, image) for index, image in items if not isinstance(image, str)]
    faults = {index: image for index, image in items if isinstance(image, str)}
    # Copied once, to memory that processes share, in the layout the images have already.
    images = default_collate([image for _, image in sound]) if sound else None
    return None if images is None else Batch(images, torch.tensor([index for index, _ in sound])), faults


def load_batches(
    images: ImageDataset,
    batches: Sequence[Sequence[int]],
    n_workers: int = 0,
    device: torch.device | None = None,
    n_ahead: int = PREFETCHED,
    views: Sequence[Sequence[int]] | None = None,
    finish: bool = True,
    broken: dict[int, str] | None = None,
) -> Iterator[Batch]:
    """The images of each batch, in order, read by worker processes ahead of their use.

    Once an image turns out to be broken no further batch comes: the rest is read through, and one error names every broken
    image. With ``broken`` they are left out instead.

    Args:
        images: the data set.
        batches: the places in it that each batch holds.
        n_workers: processes that read images; 0 reads them here.
        device: where the images are wanted; training images travel there as bytes. None leaves them on the CPU.
        n_ahead: batches that each worker reads ahead.
        views: which view of each image, for a data set with a seed; None: the first of all.
        finish: False leaves images as workers send them, for :meth:`ImageDataset.finished` of a part at a time.
        broken: receives the places of broken images, and why; None to raise them.
    """
    views = [[0] * len(places) for places in batches] if views is None else views
    items = [list(zip(*both, strict=True)) for both in zip(batches, views, strict=True)]
    n_workers = min(n_workers, len(batches))
    loader: DataLoader[Any] = DataLoader(  # of what _collate returns
        _Loadable(images),
        batch_sampler=items,
        num_workers=n_workers,
        prefetch_factor=n_ahead if n_workers else None,
        collate_fn=_collate,
        # Its own generator: a loader would otherwise draw from the global one, and shift what the model draws.
        generator=torch.Generator().manual_seed(0),
    )
    faults = {} if broken is None else broken
    for batch, unread in loader:
        faults.update(unread)
        if batch is not None and (broken is not None or not faults):
            here = batch.images.to(device)
            yield Batch(images.finished(here) if finish else here, batch.places)
    if broken is None:
        raise_faults("images", list(faults.values()))


def read_ahead(
    images: ImageDataset,
    batches: Sequence[Sequence[int]],
    then: Callable[[Tensor], Result],
    broken: dict[int, str] | None = None,
) -> Iterator[tuple[Sequence[int], Result]]:
    """The places of each batch and what ``then`` makes of its (B, H, W, C) bytes, in order.

    Threads each read a batch and hand it on, ahead of its use. They cost less than processes where nothing random is drawn:
    decoding and resizing release the interpreter lock. Broken images are raised or left out as by :func:`load_batches`.

    Args:
        images: a data set without a seed.
        batches: the places in it that each batch holds.
        then: called by the threads, several at a time.
        broken: as for :func:`load_batches`.
    """
    source, faults = _Loadable(images), {} if broken is None else broken

    def work(places: Sequence[int]) -> tuple[list[int], Result | None]:
        loaded = [source[place, 0] for place in places]
        faults.update((place, image) for place, image in loaded if isinstance(image, str))
        sound = [(place, image.numpy()) for place, image in loaded if not isinstance(image, str)]
        if not sound or (faults and broken is None):
            return [], None
        # By NumPy: torch would start threads of its own for each of these.
        return [place for place, _ in sound], then(torch.from_numpy(np.stack([image for _, image in sound])))

    # One batch is read sooner than a thread starts.
    for places, result in map(work, batches) if len(batches) == 1 else _in_threads(work, batches):
        if result is not None and (broken is not None or not faults):
            yield places, result
    if broken is None:
        raise_faults("images", [faults[place] for place in sorted(faults)])


def _in_threads(work: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """What ``work`` makes of each item, in order, by as many threads as torch has and up to two items a thread ahead."""
    n_threads = torch.get_num_threads()
    waiting: deque[Future[Result]] = deque()
    coming, pool = iter(items), ThreadPoolExecutor(n_threads)
    try:
        waiting.extend(pool.submit(work, one) for one in islice(coming, 2 * n_threads))
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(work, one) for one in islice(coming, 1))
    finally:
        pool.shutdown(cancel_futures=True)


def consecutive(n_items: int, batch_size: int) -> list[range]:
    """Batches that go through all items once, in order.

    Example:
        >>> consecutive(5, 2)
        [range(0, 2), range(2, 4), range(4, 5)]
    """
    return [range(start, min(start + batch_size, n_items)) for start in range(0, n_items, batch_size)]
