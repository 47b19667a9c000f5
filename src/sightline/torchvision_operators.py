"""Lets torchvision (and timm, which needs it) be imported where its compiled operators cannot be loaded.

The default package index has torchvision built for CUDA only. Beside a CPU build of torch its library does not load, and
``import torchvision`` stops at operators that nobody declared. Sightline uses the transforms alone, which are plain
torch, so declaring those operators without an implementation is enough. Where the library loads, nothing is done.

Import this module before torchvision or timm.
"""

import importlib.util
from pathlib import Path

import torch

UNDECLARED = (  # what torchvision registers shape functions for, whether or not its library was loaded
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def declare_missing_operators() -> torch.library.Library | None:
    """Declare torchvision's operators if its compiled library cannot be loaded.

    Returns:
        The declarations, which last as long as this object; None where the library loads.
    """
    spec = importlib.util.find_spec("torchvision")
    if spec is None or spec.origin is None:
        return None  # the import itself will say what is missing
    try:
        for library in Path(spec.origin).parent.glob("_C*.*"):
            torch.ops.load_library(str(library))
    except OSError:
        declared = torch.library.Library("torchvision", "DEF")
        for schema in UNDECLARED:
            declared.define(schema)
        return declared
    return None


DECLARED = declare_missing_operators()
