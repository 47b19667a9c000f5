"""The device that a test runs on: CUDA where there is one, and everywhere one that is pretended."""

import pytest
import torch
from pretend import Pretend

Pretend()  # while tests are collected: a device that comes after the first backward pass is not known to autograd
CUDA = [pytest.param("cuda", marks=pytest.mark.gpu)] if torch.cuda.is_available() else []


@pytest.fixture(params=["pretend", *CUDA])
def place(request):
    """A device other than the CPU; ``waits`` counts what the host waited for where the device is pretended."""
    with Pretend(None if request.param == "pretend" else torch.device("cuda", 0)) as device:
        yield device


@pytest.fixture(params=["cpu", *CUDA])
def device(request):
    """A device that is there, for what writes files."""
    return request.param
