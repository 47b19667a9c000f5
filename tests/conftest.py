"""What tests share: small image sets, the console command, a recipe that trains in a second."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

TINY = """model.backbone=tiny model.weights=none model.embedding_dim=16 model.adaptation=full data.image_size=32
data.crop_area=[0.6,1.0] data.n_workers=0 loss={name='roadmap'} sampler.batch_size=16 schedule.epochs=3
schedule.warmup_epochs=1 optimizer.lr=0.01 validation.interpolate=false"""
# The same examples in every run, none from a database in this folder, which another user may not write to.
settings.register_profile("repeatable", database=None, derandomize=True, deadline=None)
settings.load_profile("repeatable")
collect_ignore_glob = ["*conftest.py"]  # they have no doctests and share one name


def write_tree(root: Path, n_classes: int = 12, per_class: int = 6, n_supers: int = 3, seed: int = 0) -> Path:
    """Blurred patches of noise: ``root/super{s}/class{c}/{i}.png``, alike inside a class."""
    rng = np.random.default_rng(seed)
    for number in range(n_classes):
        base = rng.integers(0, 256, (8, 8, 3))
        folder = root / f"super{number % n_supers}" / f"class{number:02}"
        folder.mkdir(parents=True)
        for item in range(per_class):
            pixels = np.clip(base + rng.integers(-80, 80, base.shape), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).resize((40, 36), Image.Resampling.BILINEAR).save(folder / f"{item}.png")
    return root


@pytest.fixture(scope="session", autouse=True)
def feature_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep cached features out of the user's own folder, also in commands that tests start.

    No run records the git repository around the tests either: a commit meanwhile would be a change of its environment.
    """
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("SIGHTLINE_CACHE", str(tmp_path_factory.mktemp("cache")))
        patched.setenv("GIT_DIR", os.devnull)
        yield


@pytest.fixture(scope="session")
def image_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 classes of 6 images below 3 parents; for reading only."""
    return write_tree(tmp_path_factory.mktemp("images") / "tree")


@pytest.fixture
def sightline(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Run the console command here; returns status, standard output and standard error."""
    from sightline.cli.main import run

    monkeypatch.setattr("sightline.kernels.say", lambda line: None)  # what is compiled depends on the caches of the machine

    def call(*words: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sightline", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            run()
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return call


@pytest.fixture
def check_refused(sightline):
    """Run a command that is wrong: nothing is printed but one message that names all facts; the status is 2."""

    def run(words, *facts):
        status, out, err = sightline(*words)
        assert (status, out, "Traceback" in err) == (2, "", False), (words, out, err)
        assert [fact for fact in facts if str(fact) not in err] == [], (words, err)

    return run


@pytest.fixture(scope="module")
def chromium():
    """Debian's browser, by Playwright; of a module, because no other event loop may run beside it."""
    program = Path("/usr/bin/chromium")
    if not program.exists():
        pytest.skip(f"{program} is missing: `make browser` installs it on Debian, as root")
    from playwright.sync_api import sync_playwright

    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    with sync_playwright() as playwright:
        yield playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu", *quiet])


@pytest.fixture(scope="session")
def tiny_recipe() -> list[str]:
    """Overrides that make the recipe ``images`` run in a second."""
    return TINY.split()


class LargestTensor(TorchDispatchMode):
    """Remembers the number of elements of the largest tensor any operator returned."""

    def __init__(self):
        super().__init__()
        self.n_elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.n_elements = max([self.n_elements, *sizes])
        return result


@pytest.fixture
def largest_tensor() -> LargestTensor:
    """A context that notes the largest tensor created in it."""
    return LargestTensor()
