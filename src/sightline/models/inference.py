"""The forward pass of an encoder by torch, ONNX Runtime or OpenVINO: the same vectors, several times as fast on a CPU.

A backend other than torch is made once for each encoder: exported to ONNX, compared with torch, and kept in the cache
folder under the encoder's fingerprint.
"""

import copy
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
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
PACKAGES = {"onnx": ("onnxruntime", "onnx", "onnxscript"), "openvino": ("openvino", "onnx", "onnxscript")}
LARGEST_DIFFERENCE = 1e-4  # of a coordinate of a unit vector, to what torch computes
WORTH_EXPORTING = 256  # images: torch encodes about as many in the time that an export takes
OPSET = 18
INPUT, OUTPUT = "images", "embeddings"
N_COMPARED = 4  # of each kind; more than an export is traced with, so that one of fixed length is found out
Copied = TypeVar("Copied")
AT_ONCE = 4  # images in one pass of a core: what more leave behind between layers no longer fits in its cache


@dataclass(frozen=True)
class Backend:
    """What computes vectors.

    Attributes:
        run: (B, D) unit vectors of the (B, H, W, 3) bytes of images.
        by_thread: whether ``run`` uses the core of its caller alone, so that each thread is to call it with a few images;
            otherwise it uses all cores by itself, and is best given a whole batch.
    """

    run: Callable[[Tensor], NDArray[np.float32]]
    by_thread: bool = False


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


def open_backend(
    encoder: Embedder, name: str = "auto", n_images: int = WORTH_EXPORTING, by_thread: bool = False
) -> Backend:
    """What computes the encoder's vectors; it keeps the weights the encoder has now.

    ``auto`` is torch on a GPU. On a CPU it is ONNX Runtime if that is installed and the encoder can be exported, unless
    there are few images and the export is still to be made.

    Args:
        encoder: in evaluation mode.
        name: ``auto``, ``torch``, ``onnx`` or ``openvino``.
        n_images: to encode, as far as known.
        by_thread: the caller has a thread for each core; see :class:`Backend`. Only ONNX Runtime then leaves them to it.
    """
    check_backend(name)
    if name == "auto" and (encoder.device.type != "cpu" or _missing_packages("onnx")):
        name = "torch"
    if name == "torch":
        return torch_backend(encoder)
    file = onnx_file(encoder)
    if name == "auto" and not _is_exported(encoder, file, n_images):
        return torch_backend(encoder)
    if not file.is_file():
        _make(encoder, file)
    prepare = partial(encoder.settings.preprocessing.normalised, planes=True)
    return openvino_backend(file, prepare) if name == "openvino" else onnx_backend(file, prepare, by_thread)


def check_backend(name: str) -> None:
    """Refuse a name that is no backend, and a backend whose packages are not installed."""
    if name not in get_args(BackendName):
        raise InputError(f"unknown backend {name!r}: {nearest(name, get_args(BackendName))}")
    if missing := _missing_packages(name):
        raise InputError(f"backend {name!r} needs {' and '.join(missing)}: pip install 'sightline[{name}]'")


def _missing_packages(name: str) -> list[str]:
    return [package for package in PACKAGES.get(name, ()) if find_spec(package) is None]


def _is_exported(encoder: Embedder, file: Path, n_images: int) -> bool:
    """Whether the encoder's export is there; it is made now if that is worth it."""
    failure = file.with_suffix(".failed")
    if file.is_file() or n_images < WORTH_EXPORTING or failure.is_file():
        return file.is_file()
    try:
        _make(encoder, file)
    except InputError as error:
        say(f"ONNX Runtime cannot run this encoder, so torch does: {error}")
        write_text(failure, f"{error}\n")
    return file.is_file()


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
    seen = encoder.settings.preprocessing
    noise = torch.randn(N_COMPARED, seen.crop, seen.crop, 3, generator=torch.Generator().manual_seed(0))
    smooth = noise.cumsum(1).cumsum(2) / seen.crop
    pixels = (128 + 50 * torch.cat([noise, smooth])).clamp(0, 255).byte()
    exported = onnx_backend(file, partial(seen.normalised, planes=True))
    return float(np.abs(torch_backend(encoder).run(pixels) - exported.run(pixels)).max())


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
    prepare = encoder.settings.preprocessing.normalised

    def run(pixels: Tensor) -> NDArray[np.float32]:
        with torch.inference_mode():
            return function(prepare(pixels.to(device))).float().cpu().numpy()

    return Backend(run)


Prepare = Callable[[Tensor], Tensor]  # (B, H, W, 3) bytes to (B, 3, H, W) normalised images


def onnx_backend(file: Path, prepare: Prepare, by_thread: bool = False) -> Backend:
    """ONNX Runtime on the CPU, with as many threads as torch has or, with ``by_thread``, in those that call it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1 if by_thread else torch.get_num_threads()
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def run(pixels: Tensor) -> NDArray[np.float32]:
        parts = pixels.split(AT_ONCE)
        return np.concatenate([session.run(None, {INPUT: prepare(part).numpy()})[0] for part in parts])

    return Backend(run, by_thread)


def openvino_backend(file: Path, prepare: Prepare) -> Backend:
    """OpenVINO on the CPU."""
    settings = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    model = _openvino_core().compile_model(str(file), "CPU", settings)

    def run(pixels: Tensor) -> NDArray[np.float32]:
        return np.concatenate([model(prepare(part).numpy())[0] for part in pixels.split(AT_ONCE)])

    return Backend(run)


@cache
def _openvino_core() -> Any:
    """One for the process.

    Each sets the stack that signals are handled on, and takes it away when it ends. With several, the next signal, such
    as the end of a loader's worker, would crash the process.
    """
    import openvino

    return openvino.Core()
