"""The forward pass of an encoder by torch, ONNX Runtime or OpenVINO: the same vectors, several times as fast on a CPU.

A backend other than torch is made once for each encoder: exported to ONNX, compared with torch, and kept in the cache
folder under the encoder's fingerprint.
"""

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.errors import InputError, nearest
from sightline.files import cache_root, replaced, write_text
from sightline.progress import say

if TYPE_CHECKING:
    from sightline.models.encoder import Encoder

BackendName = Literal["auto", "torch", "onnx", "openvino"]
Backend = Callable[[Tensor], NDArray[np.float32]]  # (B, 3, H, W) normalised images to (B, D) unit vectors
PACKAGES = {"onnx": ("onnxruntime", "onnx", "onnxscript"), "openvino": ("openvino", "onnx", "onnxscript")}
LARGEST_DIFFERENCE = 1e-4  # of a coordinate of a unit vector, to what torch computes
WORTH_EXPORTING = 256  # images: torch encodes about as many in the time that an export takes
N_COMPARED = 4
AT_ONCE = 16  # images in one pass of ONNX Runtime: what 64 leave behind between layers no longer fits in a core's cache


def open_backend(encoder: "Encoder", name: str = "auto", n_images: int = WORTH_EXPORTING) -> Backend:
    """A function from normalised images to the encoder's vectors; it keeps the weights the encoder has now.

    ``auto`` is torch on a GPU. On a CPU it is ONNX Runtime if that is installed and the encoder can be exported, unless
    there are few images and the export is still to be made.

    Args:
        encoder: in evaluation mode.
        name: ``auto``, ``torch``, ``onnx`` or ``openvino``.
        n_images: to encode, as far as known.
    """
    check_backend(name)
    if name == "auto":
        return _automatic(encoder, n_images)
    if name == "torch":
        return torch_backend(encoder)
    file = onnx_file(encoder)
    if not file.is_file():
        _make(encoder, file)
    return OPENERS[name](file)


def check_backend(name: str) -> None:
    """Refuse a name that is no backend, and a backend whose packages are not installed."""
    if name not in get_args(BackendName):
        raise InputError(f"unknown backend {name!r}: {nearest(name, get_args(BackendName))}")
    if missing := _missing_packages(name):
        raise InputError(f"backend {name!r} needs {' and '.join(missing)}: pip install 'sightline[{name}]'")


def _missing_packages(name: str) -> list[str]:
    return [package for package in PACKAGES.get(name, ()) if find_spec(package) is None]


def _automatic(encoder: "Encoder", n_images: int) -> Backend:
    if encoder.device.type != "cpu" or _missing_packages("onnx"):
        return torch_backend(encoder)
    file = onnx_file(encoder)
    if file.is_file():
        return onnx_backend(file)
    failure = file.with_suffix(".failed")
    if n_images < WORTH_EXPORTING or failure.is_file():
        return torch_backend(encoder)
    try:
        _make(encoder, file)
    except InputError as error:
        say(f"ONNX Runtime cannot run this encoder, so torch does: {error}")
        write_text(failure, f"{error}\n")
        return torch_backend(encoder)
    return onnx_backend(file)


def onnx_file(encoder: "Encoder") -> Path:
    """Where the export of an encoder is kept: below ``$SIGHTLINE_CACHE``, under its fingerprint."""
    return cache_root() / "onnx" / f"{encoder.fingerprint()}.onnx"


def _make(encoder: "Encoder", file: Path) -> None:
    """Export the encoder to the cache, if ONNX Runtime then computes what torch does."""
    from sightline.models.onnx_export import export_onnx  # which imports the encoder, and that this module

    say(f"exporting the encoder to ONNX (once, kept in {file.parent})")
    with replaced(file) as scratch:
        export = export_onnx(encoder, scratch.with_suffix(".onnx"))
        difference = _difference(encoder, export)
        if not difference <= LARGEST_DIFFERENCE:
            raise InputError(f"its vectors differ from torch's by {difference:.1e}, more than {LARGEST_DIFFERENCE:g}")
        export.replace(scratch)
    say(f"largest difference to torch: {difference:.1e}")


def _difference(encoder: "Encoder", file: Path) -> float:
    """The largest difference of a coordinate, on images of noise and of smooth colour."""
    side = encoder.settings.preprocessing.crop
    noise = torch.randn(N_COMPARED, 3, side, side, generator=torch.Generator().manual_seed(0))
    smooth = noise.cumsum(2).cumsum(3) / side
    images = torch.cat([noise, smooth]).to(encoder.device)
    return float(np.abs(torch_backend(encoder)(images) - onnx_backend(file)(images.cpu())).max())


def torch_backend(encoder: "Encoder", compute: Callable[[Tensor], Tensor] | None = None) -> Backend:
    """The encoder itself, or another function of it, on its device."""
    device, function = encoder.device, compute or encoder

    def run(images: Tensor) -> NDArray[np.float32]:
        with torch.inference_mode():
            return function(images.to(device)).float().cpu().numpy()

    return run


def onnx_backend(file: Path) -> Backend:
    """ONNX Runtime on the CPU, with as many threads as torch has."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name

    def run(images: Tensor) -> NDArray[np.float32]:
        parts = [part.contiguous().numpy() for part in images.split(AT_ONCE)]
        return np.concatenate([session.run(None, {name: part})[0] for part in parts])

    return run


def openvino_backend(file: Path) -> Backend:
    """OpenVINO on the CPU."""
    import openvino

    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    model = openvino.compile_model(str(file), "CPU", settings)

    def run(images: Tensor) -> NDArray[np.float32]:
        return np.concatenate([model(part.contiguous().numpy())[0] for part in images.split(AT_ONCE)])

    return run


OPENERS: dict[str, Callable[[Path], Backend]] = {"onnx": onnx_backend, "openvino": openvino_backend}
