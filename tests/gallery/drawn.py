"""Items whose vectors are drawn from a seed, and a limit on the size of files, as a full disk has one."""

import resource
from contextlib import contextmanager

import numpy as np

from sightline.gallery.gallery import EncoderIdentity

DIM = 8
IDENTITY = EncoderIdentity("f" * 32, DIM, "by hand")


def draw(n_rows, seed=0, dim=DIM):
    return np.random.default_rng(seed).standard_normal((n_rows, dim)).astype(np.float32)


@contextmanager
def files_of_at_most(n_bytes):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
