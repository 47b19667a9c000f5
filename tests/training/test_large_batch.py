"""Staged back-propagation against one pass, and two processes against one."""

import os
import platform
import socket
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.precision.amp import MixedPrecision
from PIL import Image
from torch import nn
from torch.testing import assert_close

from sightline.data.dataset import ImageDataset, derived_seed, load_batches
from sightline.data.transforms import Preprocessing, train_transform
from sightline.errors import InputError
from sightline.losses import create_loss, list_losses, loss_options
from sightline.losses.sums import takes_references
from sightline.training.batch_loss import BatchLoss, CrossBatchMemory
from sightline.training.large_batch import Examples, back_propagate, chunk_bounds, fitting_chunk_size

KNOWN = {"n_classes": 4, "embedding_dim": 5, "n_levels": 2, "class_counts": [4, 2]}
SUM = {"terms": [{"name": "sup_h_ap", "weight": 0.7}, {"name": "norm_softmax", "weight": 0.3}]}  # of weighted_sum
N_ITEMS = 16
SIDE = 8


def new_encoder():
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 6, 3, stride=2), nn.ReLU(), nn.Dropout(0.3), nn.Flatten(), nn.Linear(54, 5)
    return nn.Sequential(*layers).double()


def draw(step=0, part=slice(None)):
    """Some images of a batch, read and augmented as training does: another view at each step."""
    noise = np.random.default_rng(1).integers(0, 256, (N_ITEMS, 12, 12, 3), dtype=np.uint8)
    transform = train_transform(Preprocessing(crop=SIDE, resize=SIDE), colour_jitter=0.3, rotation=20.0)
    dataset = ImageDataset([Image.fromarray(image) for image in noise], transform, seed=derived_seed(0, step))
    places = torch.arange(N_ITEMS)[part]
    (batch,) = load_batches(dataset, [places.tolist()])
    return batch.images.double(), torch.stack([places % 4, places % 4 // 2], 1), places


def new_loss(name, memory=False):
    torch.manual_seed(0)
    name, *mining = name.split(":")
    options = {key: value for key, value in (KNOWN | SUM).items() if key in loss_options(name)}
    module = create_loss(name, **options | ({"mining": mining[0]} if mining else {})).double()
    return BatchLoss(module, CrossBatchMemory(40, 5, 2).double(), start=1) if memory else BatchLoss(module)


def gradients(*modules):
    return [weight.grad.clone() for module in modules for weight in module.parameters()]


def one_pass(encoder, loss, images, labels, ids, seed, chunk_size):
    """The same chunks, all their graphs held at once."""
    parts = []
    for number, (start, stop) in enumerate(chunk_bounds(len(images), chunk_size)):
        torch.manual_seed(derived_seed(seed, number))
        parts.append(encoder(images[start:stop]))
    value = loss(torch.cat(parts), labels, ids)
    value.backward()
    return value.detach()


ALL = list_losses()
REMEMBERING = [name for name in ALL if takes_references(new_loss(name).loss)]


@pytest.mark.parametrize("chunk_size", [4, 5])
@pytest.mark.parametrize("name", ALL)
def test_staged_equals_one_pass_for_every_loss(name, chunk_size):
    fabric = Fabric(accelerator="cpu", devices=1)
    encoder, other = new_encoder(), new_encoder()
    loss, other_loss = new_loss(name), new_loss(name)
    module = fabric.setup_module(encoder)
    for step in range(2):  # a loss may remember
        expected = one_pass(other, other_loss, *draw(step), step, chunk_size)
        found = back_propagate(fabric, module, loss, Examples(*draw(step)), step, chunk_size)
        assert_close(found, expected, rtol=1e-9, atol=1e-12)
    assert_close(gradients(encoder, loss), gradients(other, other_loss), rtol=1e-6, atol=1e-12)
    assert all(gradient.any() for gradient in gradients(encoder))


def test_another_step_sees_other_pixels_and_drops_others():
    assert not torch.equal(draw(0)[0], draw(1)[0])
    assert torch.equal(draw(1)[0], draw(1)[0])
    assert torch.equal(draw(1, slice(8, 16))[0], draw(1)[0][8:])
    fabric = Fabric(accelerator="cpu", devices=1)
    module, loss = fabric.setup_module(new_encoder()), new_loss("sup_ap")
    first, second = (back_propagate(fabric, module, loss, Examples(*draw()), seed, 4) for seed in range(2))
    assert first != second


def test_every_loss_was_staged():
    assert len(ALL) >= 29
    assert len(REMEMBERING) >= 20


@pytest.mark.parametrize("chunk_size", range(1, N_ITEMS + 1))
def test_chunks_of_any_size_equal_the_whole_batch(chunk_size):
    """Without anything drawn, chunks do not show: the gradient is that of plain back-propagation."""
    torch.manual_seed(0)
    layers = nn.Conv2d(3, 6, 3, stride=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(54, 5)
    encoder = nn.Sequential(*layers).double()
    encoder[1].eval()
    loss = new_loss("roadmap")
    images, labels, ids = draw()
    expected = loss(encoder(images), labels, ids)
    expected.backward()
    whole = gradients(encoder)
    encoder.zero_grad()
    fabric = Fabric(accelerator="cpu", devices=1)
    found = back_propagate(fabric, fabric.setup_module(encoder), loss, Examples(images, labels, ids), 0, chunk_size)
    assert_close(found, expected.detach(), rtol=1e-10, atol=0)
    assert_close(gradients(encoder), whole, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", ["roadmap", "norm_softmax"])
@pytest.mark.parametrize("precision", ["bf16-mixed", "16-mixed"])
def test_staged_equals_one_pass_in_half_precision_with_its_loss_scale(precision, name):
    """The scale is in the gradient of the weights and of the proxies once; the encoder sees half precision twice."""
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0) if precision == "16-mixed" else None
    fabric = Fabric(accelerator="cpu", devices=1, plugins=[MixedPrecision(precision, "cpu", scaler)])
    images, labels, ids = draw()
    results = []
    for staged in (True, False):
        encoder, loss = new_encoder().float(), new_loss(name).float()
        module = fabric.setup_module(encoder)
        if staged:
            value = back_propagate(fabric, module, loss, Examples(images.float(), labels, ids), 0, 4)
        else:
            parts = []
            for number in range(4):
                torch.manual_seed(derived_seed(0, number))
                parts.append(module(images[4 * number : 4 * number + 4].float()))
            value = loss(torch.cat(parts), labels, ids)
            fabric.backward(value)
        results.append((value.detach(), gradients(encoder, loss)))
    assert_close(*results, rtol=1e-5, atol=1e-7)


def test_what_a_loss_draws_does_not_depend_on_chunks():
    values = []
    for chunk_size in (None, 4, 16):
        torch.manual_seed(0)
        encoder = nn.Sequential(nn.Flatten(), nn.Linear(3 * SIDE * SIDE, 5)).double()
        fabric = Fabric(accelerator="cpu", devices=1)
        loss = new_loss("triplet:distance-weighted")
        values.append(back_propagate(fabric, fabric.setup_module(encoder), loss, Examples(*draw()), 0, chunk_size))
    assert_close(values[1:], values[:1] * 2)


@pytest.mark.parametrize("name", REMEMBERING)
def test_staged_with_memory_equals_one_pass_with_memory(name):
    fabric = Fabric(accelerator="cpu", devices=1)
    encoder, other = new_encoder(), new_encoder()
    loss, other_loss = new_loss(name, memory=True), new_loss(name, memory=True)
    module = fabric.setup_module(encoder)
    for step in range(3):
        images, labels, ids = draw(step)
        expected = one_pass(other, other_loss, images, labels, ids + 8 * step, step, 4)
        assert_close(back_propagate(fabric, module, loss, Examples(images, labels, ids + 8 * step), step, 4), expected)
    assert_close(gradients(encoder, loss), gradients(other, other_loss), rtol=1e-6, atol=1e-12)
    assert_close(loss.state_dict(), other_loss.state_dict())


def test_a_batch_norm_that_learns_from_the_batch_is_refused_by_name():
    fabric = Fabric(accelerator="cpu", devices=1)
    encoder = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 5)).double()
    module = fabric.setup_module(encoder)
    with pytest.raises(InputError, match=r"batch norm '.*1' takes its statistics from the batch.*freeze_batch_norm"):
        back_propagate(fabric, module, new_loss("sup_ap"), Examples(*draw()), 0, 4)
    encoder[1].eval()
    back_propagate(fabric, module, new_loss("sup_ap"), Examples(*draw()), 0, 4)


def test_the_chunk_that_fits_is_the_batch_or_a_power_of_two(monkeypatch):
    import sightline.training.large_batch as module

    encoder = new_encoder()
    monkeypatch.setattr(module, "_free_bytes", lambda device: 1 << 40)
    assert fitting_chunk_size(encoder, draw()[0][0], 100) == 100
    monkeypatch.setattr(module, "_free_bytes", lambda device: 1 << 17)
    small = fitting_chunk_size(encoder, draw()[0][0], 100)
    assert 1 <= small < 100
    assert small & (small - 1) == 0
    monkeypatch.setattr(module, "gathered_objects", lambda here: [here, 2])
    assert fitting_chunk_size(encoder, draw()[0][0], 100) == 2


IN_PROCESSES = [*ALL, "triplet:distance-weighted", *(f"{name} with memory" for name in REMEMBERING)]


def test_two_processes_equal_one_for_every_loss_with_memory_and_stages(tmp_path):
    """Each process has half of the batch; weights, proxies and memory come out as those of one process with all of it."""
    script = tmp_path / "rank.py"
    script.write_text(
        textwrap.dedent(
            """
            import sys
            sys.path.insert(0, sys.argv[1])
            import torch
            from lightning_fabric import Fabric
            import test_large_batch as t
            from sightline.training.large_batch import Examples, back_propagate
            torch.set_num_threads(1)
            fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp")
            fabric.launch()
            found = {}
            for name in t.IN_PROCESSES:
                encoder = t.new_encoder()
                loss = t.new_loss(name.split()[0], memory=" " in name)
                module = fabric.setup_module(encoder)
                half = slice(8 * fabric.global_rank, 8 * fabric.global_rank + 8)
                for step in range(2):
                    images, labels, ids = t.draw(step, half)
                    value = back_propagate(fabric, module, loss, Examples(images, labels, ids + 8 * step), step, 4)
                found[name] = [value, t.gradients(encoder, loss), loss.state_dict()]
            torch.save(found, sys.argv[2] + str(fabric.global_rank))
            """
        )
    )
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = os.environ | {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    common |= {"GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "test", "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, str(script), os.path.dirname(__file__), str(tmp_path / "found")],
            env=common | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=300)[1] for process in ranks]
    assert [process.returncode for process in ranks] == [0, 0], errors
    results = [torch.load(tmp_path / f"found{rank}", weights_only=True) for rank in range(2)]
    fabric = Fabric(accelerator="cpu", devices=1)
    for name in IN_PROCESSES:
        encoder, loss = new_encoder(), new_loss(name.split()[0], memory=" " in name)
        module = fabric.setup_module(encoder)
        for step in range(2):
            images, labels, ids = draw(step)
            value = back_propagate(fabric, module, loss, Examples(images, labels, ids + 8 * step), step, 4)
        expected = [value, gradients(encoder, loss), loss.state_dict()]
        for found in results:
            assert_close(found[name], expected, rtol=1e-6, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}")


PROGRAM = """
import resource
import numpy as np
from sightline.training.large_batch import keep_freed_memory

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.full(1 << 26, 1, np.uint8)  # written and freed; above what glibc keeps by itself
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

left_alone = [faults() for _ in range(3)]
assert keep_freed_memory()
print(min(left_alone), max([faults() for _ in range(4)][1:]))
"""
KEPT_AND_RELEASED = """
import re
from pathlib import Path
import numpy as np
from sightline.training.large_batch import keep_freed_memory, release_freed_memory

def kilobytes():
    return int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

keep_freed_memory()
before = kilobytes()
blocks = [np.full(1 << 24, 1, np.uint8) for _ in range(8)]
last = np.full(1 << 10, 1, np.uint8)  # stays, above them
del blocks
kept = kilobytes() - before
release_freed_memory()
print(kept, kilobytes() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="mallopt is glibc's")
def test_pages_are_not_mapped_again_for_what_was_freed_before():
    # Large pages of the system would hide what is counted: numpy asks for them.
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, env={"NUMPY_MADVISE_HUGEPAGE": "0"}
    )
    left_alone, kept = map(int, done.stdout.split())
    assert left_alone > 10_000  # 64 MB have 16,384 pages
    assert kept < 100


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="malloc_trim is glibc's")
def test_what_was_kept_is_handed_back_when_asked_for():
    done = subprocess.run([sys.executable, "-c", KEPT_AND_RELEASED], capture_output=True, text=True, check=True)
    kept, released = map(int, done.stdout.split())
    assert kept > 100_000  # kB
    assert released < 20_000


def test_another_c_library_is_left_alone(monkeypatch):
    from sightline.training import large_batch

    monkeypatch.setattr(large_batch.ctypes, "CDLL", lambda name: object())
    assert large_batch.keep_freed_memory() is False
    large_batch.release_freed_memory()
