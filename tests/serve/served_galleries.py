"""What the tests of the service share: a small gallery and images."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

from sightline.data.manifest import read_manifest
from sightline.gallery.gallery import Gallery
from sightline.gallery.ingest import index_images
from sightline.models.encoder import Encoder

BASE = "http://127.0.0.1:8000"


def make_gallery(folder: Path, image_tree: Path, seed: int = 0) -> Path:
    """The images of the tree, embedded by a tiny encoder."""
    encoder = Encoder.create("tiny", embedding_dim=16, image_size=32, seed=seed)
    with Gallery.create(folder, encoder) as gallery:
        index_images(gallery, encoder, read_manifest(image_tree))
    return folder


def png(seed: int = 0, size: tuple[int, int] = (40, 36)) -> bytes:
    """An image of noise as a PNG file."""
    return encoded(Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), np.uint8)))


def encoded(image: Image.Image, kind: str = "PNG", **options) -> bytes:
    """The file of an image."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
