"""Features of the frozen part of a network, computed once per image and cached on disk in float16.

There is one small file per image, named by a hash of the network, the transform and the image's path, size, date and box: a
resumed run finds its files, a new image costs one image, and runs that differ in loss, learning rate or random seed share
the files.
"""

import hashlib
import os
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.data.dataset import ImageDataset, consecutive, load_batches
from sightline.data.manifest import Manifest
from sightline.data.transforms import Preprocessing, Transform, eval_transform
from sightline.errors import InputError
from sightline.files import CACHE_VARIABLE, cache_root, named_failures
from sightline.models.stages import UpperEncoder
from sightline.progress import say, tracked
from sightline.training.distributed import n_processes, process_number

VIEW_SEED = 0  # of the augmented views; the seed of a run selects among them
AT_ONCE = 64  # views in one forward pass


def cache_folder() -> Path:
    """The folder of cached features."""
    return cache_root() / "features"


@dataclass(frozen=True)
class CachedFeatures:
    """Features of some images, several views of each, read from disk on demand.

    Attributes:
        files: one per image, with all its views.
        n_views: views of each image.
        shape: of the features of one view.
    """

    files: Sequence[Path]
    n_views: int
    shape: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.files)

    @property
    def n_bytes(self) -> int:
        """Size of one file."""
        return 2 * self.n_views * prod(self.shape)

    def read(self, places: Sequence[int], views: Iterable[int]) -> Tensor:
        """(B, ...) float32 features of the given view of the image at each place; view numbers wrap around."""
        size = prod(self.shape)
        rows = [
            np.fromfile(self.files[place], np.float16, size, offset=2 * size * (view % self.n_views))
            for place, view in zip(places, views, strict=True)
        ]
        return torch.from_numpy(np.stack(rows)).float().reshape(-1, *self.shape)


def cache_features(
    learner: UpperEncoder,
    manifest: Manifest,
    transform: Transform | Preprocessing,
    n_views: int = 1,
    n_workers: int = 0,
    show_progress: bool = False,
) -> CachedFeatures:
    """Compute the features of the frozen part of an encoder that are not cached yet.

    Each of several processes computes a part; read the features after all have returned.

    Args:
        learner: its frozen part computes the features, on its device.
        manifest: the images.
        transform: random data augmentation for training, or the preprocessing of the encoder.
        n_views: views of each image; 1 unless the transform is random.
        n_workers: processes that read images.
        show_progress: print the number of images and the size on disk, and draw a progress bar.
    """
    if isinstance(transform, Preprocessing):
        images = ImageDataset.of(manifest, eval_transform(transform))
    else:
        images = ImageDataset.of(manifest, transform, VIEW_SEED)
    folder = cache_folder() / hashlib.sha256(f"{learner.network} {transform!r} {n_views}".encode()).hexdigest()[:20]
    names = [_name(path, box) for path, box in zip(manifest.paths(), manifest.boxes(), strict=True)]
    images.keys = [_view_key(path) for path in manifest.paths()]
    device, side = next(learner.parameters()).device, learner.encoder.settings.preprocessing.crop
    shape = tuple(learner.resting(torch.zeros(1, 3, side, side, device=device)).shape[1:])
    features = CachedFeatures([folder / name[:2] / name for name in names], n_views, shape)
    missing = [place for place, file in enumerate(features.files) if not _is_whole(file, features.n_bytes)]
    if show_progress:
        say(
            f"features: {len(names)} images x {n_views} view(s), {len(names) * features.n_bytes / 1e6:,.0f} MB in "
            f"{cache_folder()}; {len(missing)} images to compute"
        )
    if missing:
        _check_room(folder, len(missing) * features.n_bytes)
    own = [
        place for place in missing if place % n_processes() == process_number()
    ]  # by place: other processes write meanwhile
    _compute(learner, images, features, own, n_workers, show_progress)
    return features


@torch.inference_mode()
def embed_features(learner: UpperEncoder, features: CachedFeatures) -> NDArray[np.float32]:
    """(N, D) the embeddings of the first view of each image."""
    learner.eval()
    device = next(learner.parameters()).device
    blocks = consecutive(len(features), AT_ONCE)
    return np.concatenate([learner(features.read(block, [0] * len(block)).to(device)).cpu().numpy() for block in blocks])


def _compute(
    learner: UpperEncoder,
    images: ImageDataset,
    features: CachedFeatures,
    places: Sequence[int],
    n_workers: int,
    show_progress: bool,
) -> None:
    """Write the features of the images at these places."""
    n_views = features.n_views
    groups = [[places[one] for one in block] for block in consecutive(len(places), max(1, AT_ONCE // n_views))]
    batches = [[place for place in group for _ in range(n_views)] for group in groups]
    views = [list(range(n_views)) * len(group) for group in groups]
    loaded = load_batches(images, batches, n_workers, next(learner.parameters()).device, views=views)
    for group, batch in zip(groups, tracked(loaded, "Features", len(groups), show_progress), strict=True):
        made = learner.resting(batch.images).half().cpu().numpy().reshape(len(group), -1)
        for place, rows in zip(group, made, strict=True):
            if not np.isfinite(rows).all():
                image = images.images[place]
                raise InputError(f"{image}: a feature exceeds the range of float16; train with model.adaptation=full")
            _write(features.files[place], rows)


def _check_room(folder: Path, n_bytes: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if (free := shutil.disk_usage(folder).free) < n_bytes:
        raise InputError(
            f"{folder}: cached features need {n_bytes / 1e9:.2f} GB, {free / 1e9:.2f} GB are free; set {CACHE_VARIABLE} to "
            "a folder with more room, or lower model.n_views"
        )


def _view_key(image: Path) -> int:
    """What the random views of an image depend on: its name and size, so that they are the same in any folder."""
    return int(hashlib.sha256(f"{image.name} {image.stat().st_size}".encode()).hexdigest()[:32], 16)


def _name(image: Path, box: object) -> str:
    """A hash that identifies an image."""
    found = image.stat()
    return hashlib.sha256(f"{image.resolve()} {found.st_size} {found.st_mtime_ns} {box}".encode()).hexdigest()[:32]


def _is_whole(file: Path, n_bytes: int) -> bool:
    try:
        return file.stat().st_size == n_bytes
    except FileNotFoundError:
        return False


def _write(file: Path, rows: NDArray[np.float16]) -> None:
    """Write a file atomically; not synced: after a power failure it is computed again."""
    file.parent.mkdir(exist_ok=True)
    scratch = file.with_name(f".{file.name}.{os.getpid()}")
    with named_failures(file):
        rows.tofile(scratch)
        scratch.replace(file)
