"""Makes ``import torchvision`` (and timm, which imports it) work beside a torch that its compiled library does not fit.

The default package index has torchvision built for CUDA only. Beside a CPU build of torch its library does not load, and
``import torchvision`` fails with "operator torchvision::nms does not exist". Sightline uses the transforms alone, which are
plain torch, so it is enough to declare these operators without an implementation. Where the library loads, nothing is done.

``import sightline`` installs :class:`BeforeTorchvision`, which costs nothing until torchvision is imported; torch itself is
not imported before that.
"""

import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

UNDECLARED = (  # what torchvision registers shape functions for, whether or not its library was loaded
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def declare_missing_operators() -> "torch.library.Library | None":
    """Declare torchvision's operators if its compiled library cannot be loaded.

    Returns:
        The declarations, which last as long as this object; None where the library loads.
    """
    from pathlib import Path

    import torch

    spec = PathFinder.find_spec("torchvision")
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


class BeforeTorchvision:
    """Finds no module, but declares the missing operators when torchvision is first imported.

    Attributes:
        declared: of :func:`declare_missing_operators`, kept for as long as the process lives.
    """

    declared: "torch.library.Library | None" = None

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """None: the next finder finds the module."""
        if name == "torchvision" and self.declared is None:
            self.declared = declare_missing_operators()
        return None


def install() -> None:
    """Put a :class:`BeforeTorchvision` before the other finders, once for each process."""
    # By name: the class is another one where this module was imported, dropped and imported again.
    if not any(type(finder).__name__ == BeforeTorchvision.__name__ for finder in sys.meta_path):
        sys.meta_path.insert(0, BeforeTorchvision())
