"""The forward pass of an encoder by torch, ONNX Runtime or OpenVINO: the same vectors, several times as fast on a CPU.

A backend other than torch is made once for each encoder: exported to ONNX, compared with torch, and kept in the cache
folder under the encoder's fingerprint.
"""

import copy
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline.errors import InputError, nearest
from sightline.files import cache_root, replaced, write_text
from sightline.models.backbones import adapters, merge_adapters
from sightline.progress import say

BackendName = Literal["auto", "torch", "onnx", "openvino"]
Backend = Callable[[Tensor], NDArray[np.float32]]  # (B, 3, H, W) normalised images to (B, D) unit vectors
PACKAGES = {"onnx": ("onnxruntime", "onnx", "onnxscript"), "openvino": ("openvino", "onnx", "onnxscript")}
LARGEST_DIFFERENCE = 1e-4  # of a coordinate of a unit vector, to what torch computes
WORTH_EXPORTING = 256  # images: torch encodes about as many in the time that an export takes
OPSET = 18
INPUT, OUTPUT = "images", "embeddings"
N_COMPARED = 4  # of each kind; more than an export is traced with, so that one of fixed length is found out
Copied = TypeVar("Copied")
AT_ONCE = 16  # images in one pass of ONNX Runtime: what 64 leave behind between layers no longer fits in a core's cache


class Embedder(Protocol):
    """What a backend must know of an encoder."""

    settings: Any

    @property
    def device(self) -> torch.device:
        """Where the weights are."""

    def fingerprint(self) -> str:
        """A name for what it computes."""

    def __call__(self, images: Tensor) -> Tensor:
        """(B, D) unit vectors."""


def open_backend(encoder: Embedder, name: str = "auto", n_images: int = WORTH_EXPORTING) -> Backend:
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


def _automatic(encoder: Embedder, n_images: int) -> Backend:
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


def onnx_file(encoder: Embedder) -> Path:
    """Where the export of an encoder is kept: below ``$SIGHTLINE_CACHE``, under its fingerprint."""
    return cache_root() / "onnx" / f"{encoder.fingerprint()}.onnx"


def _make(encoder: Embedder, file: Path) -> None:
    """Export the encoder to the cache, if ONNX Runtime then computes what torch does."""
    say(f"exporting the encoder to ONNX (once, kept in {file.parent})")
    with replaced(file) as scratch:
        try:
            write_onnx(plain_copy(encoder), scratch)
            difference = _difference(encoder, scratch)
        except Exception as error:  # exporters raise anything about a model that they cannot follow
            raise InputError(f"ONNX export: {str(error).strip().splitlines()[0]}") from error
        if not difference <= LARGEST_DIFFERENCE:
            raise InputError(f"its vectors differ from torch's by {difference:.1e}, more than {LARGEST_DIFFERENCE:g}")
    say(f"largest difference to torch: {difference:.1e}")


def _difference(encoder: Embedder, file: Path) -> float:
    """The largest difference of a coordinate, on images of noise and of smooth colour."""
    side = encoder.settings.preprocessing.crop
    noise = torch.randn(N_COMPARED, 3, side, side, generator=torch.Generator().manual_seed(0))
    smooth = noise.cumsum(2).cumsum(3) / side
    images = torch.cat([noise, smooth]).to(encoder.device)
    return float(np.abs(torch_backend(encoder)(images) - onnx_backend(file)(images.cpu())).max())


def plain_copy(encoder: Copied) -> Copied:
    """A copy on the CPU, in evaluation mode, with its adapters merged."""
    plain: Any = copy.deepcopy(encoder)
    if adapters(plain.backbone):
        merge_adapters(plain.backbone)
    return plain.cpu().eval()  # type: ignore[no-any-return]


def write_onnx(network: Any, file: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write an encoder's network as ONNX: normalised images in, unit vectors out, any number at a time."""
    side = network.settings.preprocessing.crop
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's, about its own insides
        program: Any = torch.onnx.export(  # None only without dynamo
            network,
            (torch.zeros(2, 3, side, side),),
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    program.model.metadata_props.update(metadata or {})
    program.save(file, external_data=False)


def torch_backend(encoder: Embedder, compute: Callable[[Tensor], Tensor] | None = None) -> Backend:
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

    def run(images: Tensor) -> NDArray[np.float32]:
        parts = [part.contiguous().numpy() for part in images.split(AT_ONCE)]
        return np.concatenate([session.run(None, {INPUT: part})[0] for part in parts])

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
