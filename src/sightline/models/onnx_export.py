"""An encoder as one ONNX file, with its preprocessing described inside."""

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from sightline.errors import InputError
from sightline.files import replaced
from sightline.models.encoder import Encoder, check_encoder
from sightline.models.inference import INPUT, OPSET, OUTPUT, plain_copy, write_onnx

METADATA_KEY = "sightline"


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
    plain = plain_copy(encoder)
    with replaced(file) as scratch:
        write_onnx(plain, scratch, {METADATA_KEY: json.dumps(onnx_description(plain))})
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
            "interpolation": seen.interpolation,
            "antialias": True,
            "crop": seen.crop,
            "crop_mode": "centre",
            "scale": 1 / 255,
            "mean": list(seen.mean),
            "std": list(seen.std),
        },
    }
