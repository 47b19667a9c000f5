"""An encoder as one ONNX file, with its preprocessing described inside."""

import copy
import json
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from sightline.errors import InputError
from sightline.files import replaced
from sightline.models.backbones import adapters, merge_adapters
from sightline.models.encoder import Encoder, check_encoder

OPSET = 18
MAX_BYTES = 1 << 31  # of a protobuf, which the file is
METADATA_KEY = "sightline"
INPUT, OUTPUT = "images", "embeddings"


def export_onnx(encoder: Encoder, file: Path | str) -> Path:
    """Write the encoder as an ONNX file of opset 18: normalised images in, unit vectors out, any number at a time.

    The file's metadata has one entry, ``sightline``: JSON of :func:`onnx_description`. Needs the extra ``onnx``.

    Args:
        encoder: is left as it is.
        file: ending in ``.onnx``; replaced if it is there.

    Returns:
        The file.
    """
    check_encoder(encoder)
    file = Path(file)
    if file.suffix != ".onnx":
        raise InputError(f"{file}: the file must end in .onnx")
    if missing := [package for package in ("onnx", "onnxscript") if find_spec(package) is None]:
        raise InputError(f"ONNX export needs {' and '.join(missing)}: pip install 'sightline[onnx]'")
    plain = copy.deepcopy(encoder).cpu().eval()
    if adapters(plain.backbone):
        merge_adapters(plain.backbone)
    if (size := sum(tensor.nbytes for tensor in plain.state_dict().values())) >= MAX_BYTES:
        raise InputError(f"backbone {plain.settings.backbone!r}: {size / 1e9:.1f} GB of weights; an ONNX file holds 2.1 GB")
    side = plain.settings.preprocessing.crop
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's, about its own insides
        program: Any = torch.onnx.export(  # None only without dynamo
            plain,
            (torch.zeros(2, 3, side, side),),
            input_names=[INPUT],
            output_names=[OUTPUT],
            dynamic_shapes=({0: torch.export.Dim("batch")},),
            opset_version=OPSET,
            dynamo=True,
            verbose=False,
        )
    program.model.metadata_props[METADATA_KEY] = json.dumps(onnx_description(plain))
    with replaced(file) as scratch:
        program.save(scratch, external_data=False)
    return file


def onnx_description(encoder: Encoder) -> dict[str, Any]:
    """What someone who has the file alone must know: how an image becomes the input, and which encoder this is.

    Example:
        >>> onnx_description(Encoder.create("tiny", 8, image_size=32))["preprocessing"]["crop"]
        32
    """
    seen = encoder.settings.preprocessing
    return {
        "format": 1,
        "fingerprint": encoder.fingerprint(),
        "backbone": encoder.settings.backbone,
        "dim": encoder.dim,
        "opset": OPSET,
        "input": {"name": INPUT, "shape": ["batch", 3, seen.crop, seen.crop], "dtype": "float32", "layout": "NCHW"},
        "output": {"name": OUTPUT, "shape": ["batch", encoder.dim], "dtype": "float32", "norm": "l2"},
        "preprocessing": {
            "colour_order": "RGB",
            "resize": seen.resize,
            "resize_mode": "both_sides" if seen.stretch else "shorter_side",
            "interpolation": "bilinear",
            "antialias": True,
            "crop": seen.crop,
            "crop_mode": "centre",
            "scale": 1 / 255,
            "mean": list(seen.mean),
            "std": list(seen.std),
        },
    }
