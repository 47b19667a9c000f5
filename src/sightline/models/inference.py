"""The forward pass of an encoder by torch, ONNX Runtime or OpenVINO: the same vectors, several times as fast on a CPU.

ONNX Runtime and OpenVINO run an export of the encoder: made once, compared with torch, and kept in the cache folder under
the encoder's fingerprint, with a hash by which damage is found out.
"""

import copy
import json
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sightline import __version__
from sightline.errors import InputError, nearest
from sightline.files import cache_root, check_file, file_hash, locked, own_file, read_json_object, replaced, write_text
from sightline.models.backbones import adapters, merge_adapters
from sightline.progress import say

BackendName = Literal["auto", "torch", "torch-fp16", "torch-bf16", "torch-compiled", "onnx", "openvino"]
PACKAGES = {"onnx": ("onnxruntime", "onnx", "onnxscript"), "openvino": ("openvino", "onnx", "onnxscript")}
MADE_BY = ("timm", "torch", "onnx", "onnxscript")  # an export by another version of these is made again
HALF = {"torch-fp16": torch.float16, "torch-bf16": torch.bfloat16}  # the more exact one first
LARGEST_DIFFERENCE = 1e-4  # of a coordinate of a unit vector, to what torch computes
LEAST_COSINE = 0.999  # of a vector in half precision with that in float32
WORTH_EXPORTING = 256  # images: torch encodes about as many in the time that an export takes
OPSET = 18
MAX_BYTES = 1 << 31  # of a protobuf, which an ONNX file is
INPUT, OUTPUT = "images", "embeddings"
EXPORTING = threading.Lock()  # torch.export changes what all threads of a process share
N_COMPARED = 4  # of each kind; more than an export is traced with, so that one of fixed length is found out
Copied = TypeVar("Copied")
AT_ONCE = 4  # images in one pass of a core: what more leave behind between layers no longer fits in its cache


@dataclass(frozen=True)
class Backend:
    """What computes vectors.

    Attributes:
        run: (B, D) unit vectors of the (B, H, W, 3) bytes of images; of an encoder with inputs of scorers, its rows.
        by_thread: whether ``run`` uses the core of its caller alone, so that each thread is to call it with a few images;
            otherwise it uses all cores by itself, and is best given a whole batch.
    """

    run: Callable[[Tensor], NDArray[np.float32]]
    by_thread: bool = False


class Embedder(Protocol):
    """What a backend must know of an encoder."""

    @property
    def settings(self) -> Any:
        """Its preprocessing, and the name of its backbone."""

    @property
    def head(self) -> Any:
        """From what :meth:`pooled` returns to rows."""

    @property
    def device(self) -> torch.device:
        """Where the weights are."""

    @property
    def widths(self) -> tuple[int, ...]:
        """Lengths of the parts of a row of its results; the first is a unit vector."""

    def fingerprint(self) -> str:
        """A name for what it computes."""

    def pooled(self, images: Tensor) -> Tensor:
        """(B, C) what the head is given."""

    def __call__(self, images: Tensor) -> Tensor:
        """(B, D) unit vectors."""


def open_backend(
    encoder: Embedder, name: str = "auto", n_images: int = WORTH_EXPORTING, by_thread: bool = False
) -> Backend:
    """What computes the encoder's vectors; it keeps the weights the encoder has now.

    ``auto`` on a CPU is ONNX Runtime if that is installed and the encoder can be exported, on a GPU torch in half
    precision; it is plain torch where there are few images and nothing is ready, or where vectors would differ too much.

    Args:
        encoder: in evaluation mode.
        name: ``auto``; ``torch`` in float32; ``torch-fp16`` or ``torch-bf16``; ``torch-compiled``, by ``torch.compile`` and
            on a GPU in half precision; ``onnx``; or ``openvino``.
        n_images: to encode, as far as known.
        by_thread: the caller has a thread for each core; see :class:`Backend`. Only ONNX Runtime then leaves them to it.
    """
    check_backend(name)
    on_cpu = encoder.device.type == "cpu"
    if name == "auto" and (_missing_packages("onnx") if on_cpu else n_images < WORTH_EXPORTING):
        name = "torch"
    if name == "torch":
        return torch_backend(encoder)
    if name in HALF:
        return _reduced_backend(encoder, [HALF[name]])
    if name == "torch-compiled":
        return _reduced_backend(encoder, [torch.float32] if on_cpu else [*HALF.values(), torch.float32], compiled=True)
    if name != "auto":
        return _exported_backend(encoder, name, by_thread)
    if not on_cpu:
        return _reduced_backend(encoder, [*HALF.values(), torch.float32])
    if not _is_worth_trying(encoder, n_images):
        return torch_backend(encoder)
    try:
        return _exported_backend(encoder, "onnx", by_thread)
    except (InputError, OSError) as error:
        say(f"ONNX Runtime cannot run this encoder, so torch does: {error}")
        return torch_backend(encoder)


def check_backend(name: str) -> None:
    """Refuse a name that is no backend, and a backend whose packages are not installed."""
    if name not in get_args(BackendName):
        raise InputError(f"unknown backend {name!r}: {nearest(name, get_args(BackendName))}")
    if missing := _missing_packages(name):
        raise InputError(f"backend {name!r} needs {' and '.join(missing)}: pip install 'sightline[{name}]'")


def _missing_packages(name: str) -> list[str]:
    return [package for package in PACKAGES.get(name, ()) if find_spec(package) is None]


def onnx_file(encoder: Embedder) -> Path:
    """Where the export of an encoder is kept: below ``$SIGHTLINE_CACHE``, under its fingerprint.

    A file of the same name ending in ``.json`` says how it was made: :func:`_record`.
    """
    return cache_root() / "onnx" / f"{encoder.fingerprint()}.onnx"


def _record(file: Path) -> dict[str, Any]:
    """What is known of an export by these versions of packages: its ``hash``, or the ``failure``; else nothing."""
    with suppress(InputError, OSError):  # there is none, or it is damaged
        found = read_json_object(own_file(file.with_suffix(".json")))
        return found if found.get("made_by") == _versions() else {}
    return {}


def _write_record(file: Path, **known: object) -> None:
    write_text(file.with_suffix(".json"), json.dumps({"made_by": _versions(), **known}, indent=2) + "\n")


def _versions() -> dict[str, str]:
    return {"sightline": __version__} | {package: version(package) for package in MADE_BY}


def _is_whole(file: Path) -> bool:
    """Whether the export is there, byte for byte as it was written."""
    with suppress(InputError, OSError):
        return bool(_record(file).get("hash") == file_hash(own_file(file)))
    return False


def _is_worth_trying(encoder: Embedder, n_images: int) -> bool:
    """Whether ``auto`` is to take an export: one that is there, or could be, for so many images."""
    return n_images >= WORTH_EXPORTING or "hash" in _record(onnx_file(encoder))


def _exported_backend(encoder: Embedder, name: str, by_thread: bool) -> Backend:
    prepare = partial(encoder.settings.preprocessing.normalised, planes=True)
    with _exported(encoder) as file:
        try:
            return openvino_backend(file, prepare) if name == "openvino" else onnx_backend(file, prepare, by_thread)
        except Exception as error:  # each library has exceptions of its own
            raise InputError(f"{file}: {name} cannot read it: {_first_line(error)}") from error


@contextmanager
def _exported(encoder: Embedder) -> Iterator[Path]:
    """The encoder's ONNX file; where the cache cannot be written, one that is gone after the block."""
    file = onnx_file(encoder)
    with ExitStack() as scratch:
        if not _is_current(encoder, file):
            try:
                _make_once(encoder, file)
            except OSError as error:
                say(f"exporting the encoder to ONNX for this process alone, as it cannot be kept: {error}")
                file = Path(scratch.enter_context(tempfile.TemporaryDirectory())) / file.name
                _make(encoder, file)
        yield file


def _is_current(encoder: Embedder, file: Path) -> bool:
    """Whether the export is there and of this encoder; a fingerprint does not see the code of a wrapped module."""
    return _is_whole(file) and (encoder.settings.module is None or _difference(encoder, file) <= LARGEST_DIFFERENCE)


def _make_once(encoder: Embedder, file: Path) -> None:
    """Export to the cache; of several processes one does, and the others wait for it."""
    with locked(file.with_suffix(".lock")):
        if _is_current(encoder, file):
            return
        check_file(file)
        if failure := _record(file).get("failure"):
            raise InputError(str(failure))
        say(f"exporting the encoder to ONNX (once, kept in {file.parent})")
        try:
            _make(encoder, file)
        except InputError as error:
            _write_record(file, failure=str(error))
            raise
        _write_record(file, hash=file_hash(file))


def _make(encoder: Embedder, file: Path) -> None:
    """Export the encoder, if ONNX Runtime then computes what torch does."""
    with replaced(file) as scratch:
        try:
            write_onnx(plain_copy(encoder), scratch)
        except (InputError, OSError):
            raise
        except Exception as error:  # exporters raise anything about a model that they cannot follow
            raise InputError(f"ONNX export: {_first_line(error)}") from error
        difference = _difference(encoder, scratch)
        if not difference <= LARGEST_DIFFERENCE:
            raise InputError(f"its vectors differ from torch's by {difference:.1e}, more than {LARGEST_DIFFERENCE:g}")
    say(f"largest difference to torch: {difference:.1e}")


def _difference(encoder: Embedder, file: Path) -> float:
    """The largest difference of a coordinate between an export and torch on the CPU."""
    pixels, prepare = _compared_pixels(encoder), partial(encoder.settings.preprocessing.normalised, planes=True)
    expected = torch_backend(plain_copy(encoder)).run(pixels)
    try:
        found = onnx_backend(file, prepare).run(pixels)
        pairs = zip(_unit_parts(expected, encoder), _unit_parts(found, encoder), strict=True)
        return max(float(np.abs(one - other).max()) for one, other in pairs)
    except Exception as error:  # of ONNX Runtime, about an operator or a shape
        raise InputError(f"ONNX Runtime: {_first_line(error)}") from error


def _unit_parts(rows: NDArray[np.float32], encoder: Embedder) -> list[NDArray[np.float32]]:
    """The unit vectors, and the other parts of the rows brought to length 1."""
    vectors, *others = np.split(rows, np.cumsum(encoder.widths)[:-1], axis=1)
    others = [np.where(part.any(1, keepdims=True), part, 1) for part in others]  # no deviations over a single position
    return [vectors, *(part / np.linalg.norm(part, axis=1, keepdims=True) for part in others)]


def _compared_pixels(encoder: Embedder) -> Tensor:
    """Images of noise and of smooth colour, as bytes."""
    side = encoder.settings.preprocessing.crop
    noise = torch.randn(N_COMPARED, side, side, 3, generator=torch.Generator().manual_seed(0))
    return (128 + 50 * torch.cat([noise, noise.cumsum(1).cumsum(2) / side])).clamp(0, 255).byte()


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def plain_copy(encoder: Copied) -> Copied:
    """A copy on the CPU, in evaluation mode, with its adapters merged."""
    plain: Any = copy.deepcopy(encoder)
    if adapters(plain.backbone):
        merge_adapters(plain.backbone)
    return plain.cpu().eval()  # type: ignore[no-any-return]


def write_onnx(network: Any, file: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write an encoder's network as ONNX: normalised images in, unit vectors out, any number at a time."""
    if (size := sum(tensor.nbytes for tensor in network.state_dict().values())) >= MAX_BYTES:
        raise InputError(
            f"backbone {network.settings.backbone!r}: {size / 1e9:.1f} GB of weights; an ONNX file holds 2.1 GB"
        )
    side = network.settings.preprocessing.crop
    with EXPORTING, warnings.catch_warnings():
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


def _reduced_backend(encoder: Embedder, precisions: Sequence[torch.dtype], compiled: bool = False) -> Backend:
    """Torch in the first of these precisions whose vectors are near those of float32; the head is always in float32."""
    pixels, kind, fault = _compared_pixels(encoder), encoder.device.type, ""
    expected = torch_backend(encoder).run(pixels)
    pooled = torch.compile(encoder.pooled) if compiled else encoder.pooled
    for precision in precisions:

        def compute(images: Tensor, precision: torch.dtype = precision) -> Tensor:
            with torch.autocast(kind, precision, enabled=precision != torch.float32):
                features = pooled(images)
            return encoder.head(features.float())  # type: ignore[no-any-return]

        name = f"torch{' (compiled)' * compiled} in {str(precision).removeprefix('torch.')}"
        backend = torch_backend(encoder, compute)
        try:
            pairs = zip(_unit_parts(expected, encoder), _unit_parts(backend.run(pixels), encoder), strict=True)
            cosine = min(float((one * other).sum(1).min()) for one, other in pairs)
        except Exception as error:  # of a compiler, or of an operator that has no such precision
            fault = f"{name}: {_first_line(error)}"
            continue
        if cosine >= LEAST_COSINE:
            say(f"{name}: cosine with float32 at least {cosine:.6f}")
            return backend
        fault = f"{name}: vectors have a cosine of {cosine:.4f} with those of float32, less than {LEAST_COSINE}"
    raise InputError(fault)


Prepare = Callable[[Tensor], Tensor]  # (B, H, W, 3) bytes to (B, 3, H, W) normalised images


def onnx_backend(file: Path, prepare: Prepare, by_thread: bool = False) -> Backend:
    """ONNX Runtime on the CPU, with as many threads as torch has or, with ``by_thread``, in those that call it."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1 if by_thread else torch.get_num_threads()
    # A thread that waits for others would otherwise keep its core busy: twice the processor time on two of them.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
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
