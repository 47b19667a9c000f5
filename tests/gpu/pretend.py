"""A device that is not there: tensors that say they are on it, hold numbers on the CPU, and refuse to mix with the CPU's.

What fails on it fails on CUDA as well; and what the host would have to wait for, copies among them, is counted.
"""

import traceback
from collections import Counter

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _DummyPrivateUse1Hook,
    _setup_privateuseone_for_python_backend,
)

NAME = "pretend"
# Operators whose result, or the shape of it, the host has to wait for.
WAITS = {
    "_local_scalar_dense", "nonzero", "equal", "masked_select", "bincount",
    "_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive",
}  # fmt: skip
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}


class _Module(_DummyBackendModule):
    """Nothing of torch should come to look for the device by itself: it stays registered when the context is left."""

    def is_available(self):
        return False

    def device_count(self):
        return 0

    def get_amp_supported_dtype(self):
        return [torch.bfloat16, torch.float16]


class _Hook(_DummyPrivateUse1Hook):
    def is_available(self):
        return False


class Far(Tensor):
    """A tensor of the device; ``held`` has its numbers."""

    @staticmethod
    def __new__(cls, held):
        made = Tensor._make_wrapper_subclass(
            cls, held.shape, held.stride(), held.storage_offset(), dtype=held.dtype, device=f"{NAME}:0"
        )
        made.held = held
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl

    def __repr__(self):
        return f"Far({self.held})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise RuntimeError(f"{func} outside of the device's mode")


class _PythonNumbers(TorchFunctionMode):
    """Numbers of Python and arrays go to and from the device by way of the CPU: torch itself would call no operator."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in (Tensor.tolist, Tensor.numpy) and isinstance(args[0], Far):
            if func is Tensor.numpy:
                raise TypeError(f"can't convert {NAME} device type tensor to numpy")
            return args[0].cpu().tolist()
        if func is Tensor.new_tensor and isinstance(args[0], Far):
            return torch.tensor(args[1], dtype=args[0].dtype).to(NAME)
        if func in (torch.tensor, torch.as_tensor) and kwargs.get("device") is not None and not isinstance(args[0], Tensor):
            device = kwargs.pop("device")
            return func(*args, **kwargs).to(device)
        return func(*args, **kwargs)


class _Operators(TorchDispatchMode):
    """Runs operators on what the tensors hold, and tells ``note`` what they would wait for."""

    def __init__(self, note):
        super().__init__()
        self.note = note

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), func.overloadpacket.__name__
        far = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Far)]
        stays = bool(far)
        if (device := kwargs.get("device")) is not None:
            stays, kwargs["device"] = torch.device(device).type == NAME, torch.device("cpu")
        if name in ("_to_copy", "copy_"):
            source = args[1] if name == "copy_" else args[0]
            stays = isinstance(args[0], Far) if name == "copy_" else stays
            if stays != isinstance(source, Far):
                self.note("copy to the device" if stays else "copy to the host")
        elif far:
            self._check(func, name, args, kwargs)
        found = func(*tree_map_only(Far, lambda tensor: tensor.held, args), **_held(kwargs))
        if not stays:
            return found
        known = {id(tensor.held): tensor for tensor in far}  # in-place operators return what they were given
        return tree_map_only(Tensor, lambda tensor: known.get(id(tensor)) if id(tensor) in known else Far(tensor), found)

    def _check(self, func, name, args, kwargs):
        """As CUDA has it: numbers of no dimension may stay on the CPU, and so may indices, which are copied."""
        near = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor) and not isinstance(leaf, Far)]
        if name in WAITS:
            self.note(name)
        if name in INDEXING:
            indices = [index for index in args[1] if index is not None]
            near = [tensor for tensor in near if not any(tensor is index for index in indices)]
            for index in indices:
                if not isinstance(index, Far):
                    self.note("copy to the device")
                if index.dtype == torch.bool:
                    self.note("index by bool")
        if any(tensor.ndim for tensor in near):
            raise RuntimeError(f"{func}: tensors of the CPU and of the device in one operator")


def _held(kwargs):
    return tree_map_only(Far, lambda tensor: tensor.held, kwargs)


class Pretend:
    """A context in which tensors can be moved to a device, pretended unless one is given.

    Attributes:
        device: by which tensors are moved.
        waits: how often the host waited, by operator and line of ours; always empty on a device that is there.
    """

    def __init__(self, device=None):
        if device is None and not hasattr(torch, NAME):
            _setup_privateuseone_for_python_backend(NAME, _Module(), _Hook())
        self.modes = [_PythonNumbers(), _Operators(self._note)] if device is None else []
        self.device = torch.device(NAME, 0) if device is None else device
        self.waits = Counter()

    def __enter__(self):
        for mode in self.modes:
            mode.__enter__()
        return self

    def __exit__(self, *error):
        for mode in reversed(self.modes):
            mode.__exit__(*error)

    def _note(self, what):
        ours = [frame for frame in traceback.extract_stack() if "/src/sightline/" in frame.filename]
        line = f"{ours[-1].filename.rpartition('/sightline/')[2]}:{ours[-1].lineno}" if ours else "elsewhere"
        self.waits[f"{what}, {line}"] += 1

    def move(self, thing):
        """A tensor on the device; or a module whose parameters and buffers are, changed in place."""
        if isinstance(thing, Tensor):
            return thing.to(self.device)
        for part in thing.modules():
            for name, weight in part._parameters.items():
                if weight is not None:
                    part._parameters[name] = nn.Parameter(weight.detach().to(self.device), weight.requires_grad)
            for name, buffer in part._buffers.items():
                part._buffers[name] = None if buffer is None else buffer.to(self.device)
        return thing
