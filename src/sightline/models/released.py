"""Published checkpoints as encoders: NAVER's deep-image-retrieval, and ROADMAP, HAPPIER and SupRank.

A checkpoint is a pickle. Tensors, numbers, text and containers are read from it; whatever else it names becomes an empty
object that keeps its attributes, so that nothing of the file runs.
"""

import pickle
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sightline.errors import InputError, choose, names
from sightline.models.encoder import Encoder
from sightline.models.heads import Whitening

ALLOWED = {
    ("collections", "OrderedDict"),
    ("_codecs", "encode"),
    ("torch", "Size"),
    ("torch", "device"),
    ("torch.nn.parameter", "Parameter"),
    ("torch._utils", "_rebuild_tensor"),
    ("torch._utils", "_rebuild_tensor_v2"),
    ("torch._utils", "_rebuild_parameter"),
    *((f"numpy.{core}.multiarray", made) for core in ("core", "_core") for made in ("_reconstruct", "scalar")),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}
RESNETS = {
    "2-2-2-2": "resnet18",
    "3-4-6-3": "resnet34",
    "3-4-6-3 bottleneck": "resnet50",
    "3-4-23-3 bottleneck": "resnet101",
}
DEITS = {192: "deit_tiny_patch16_224", 384: "deit_small_patch16_224", 768: "deit_base_patch16_224"}
CHILDREN = {"0": "conv1", "1": "bn1", **{str(3 + layer): f"layer{layer}" for layer in range(1, 5)}}  # of a cut ResNet
AUTHORS_POOLINGS = {"avg": "avg", "max": "max", "gem": "gem", "gem_froze": "gem_frozen", "meanmax": "mean+max"}
POWERS = {"adpool.p", "pooling.p"}


class _Kept:
    """An object of a class that is not loaded: its attributes, and nothing that runs."""

    def __init__(self, *_: Any) -> None:
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def __setitem__(self, key: Any, value: Any) -> None:
        """Entries of an unknown kind of dictionary are not needed."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        return super().find_class(module, name) if (module, name) in ALLOWED else _Kept


def convert_checkpoint(
    file: Path,
    feature_norm: str | None = None,
    pooling: str | None = None,
    image_size: int = 224,
    resize: int = 256,
    power: float = 0.25,
) -> Encoder:
    """The encoder of a published checkpoint: each of its tensors in its place, none missing and none left over.

    Args:
        file: ``.pt`` of deep-image-retrieval; or ``.ckpt`` of ROADMAP, HAPPIER or SupRank, or their weights alone.
        feature_norm: before the projection: ``layer``, ``l2`` or ``none``; None for what the file's settings say.
        pooling: as in :meth:`Encoder.create`; None for what the settings say, or for that of the backbone.
        image_size: side of the images it sees.
        resize: length of their shorter side before the cut.
        power: of the whitening in NAVER's checkpoints; theirs is 0.25.
    """
    read = _read(Path(file))
    options = read.get("model_options") or next(_settings(read.get("config")), {})
    state = read.get("state_dict") or read.get("net_state") or read
    tensors = {key.removeprefix("module."): value for key, value in state.items() if isinstance(value, Tensor)}
    tensors = {key: value for key, value in tensors.items() if not key.startswith("head.")}  # SupRank names them twice
    if not any(key.startswith(("backbone.", "layer1.")) for key in tensors):
        raise InputError(f"{file}: no weights of a backbone, found {names(list(state)[:5])}")
    named = dict(_named(tensors))
    backbone = _backbone(file, named)
    is_power = bool(POWERS & set(tensors))
    given = AUTHORS_POOLINGS.get(str(options.get("pooling")))
    default = "cls" if backbone.startswith("deit") else "gem" if is_power else "avg"
    projection = named.get("head.projection.weight")
    norm = feature_norm or _norm(file, options, "model_options" in read)
    encoder = Encoder.create(
        backbone,
        None if projection is None else len(projection),
        pooling or given or default,
        image_size=image_size,
        resize=resize,
        feature_norm=choose({"layer": "layer", "l2": "l2", "none": "none"}, norm, "feature_norm"),
    )
    _load(file, encoder, named)
    pca = read.get("pca")
    if isinstance(pca, Mapping):  # by the images that it was fitted on
        pca = next(iter(pca.values()), None)
    return encoder if pca is None else encoder.whitened(_whitening(file, pca, power))


def _read(file: Path) -> dict[str, Any]:
    if not file.is_file():
        raise InputError(f"{file}: no such file")
    reader = SimpleNamespace(
        Unpickler=_Reader, load=lambda source, **options: _Reader(source, **options).load(), __name__="kept"
    )
    try:
        found = torch.load(file, map_location="cpu", pickle_module=reader, weights_only=False)
    except Exception as error:  # whatever its bytes lead to
        raise InputError(f"{file}: not a checkpoint that torch can read: {error}") from error
    if not isinstance(found, Mapping):
        raise InputError(f"{file}: must be a checkpoint with named weights, found {type(found).__name__}")
    return dict(found)


def _settings(node: Any) -> Iterator[dict[str, Any]]:
    """Every dictionary of a stored configuration that names a backbone, plain or of OmegaConf."""
    found = _plain(node)
    if isinstance(found, dict):
        if "backbone_name" in found:
            yield found
        for value in found.values():
            yield from _settings(value)


def _plain(node: Any) -> Any:
    state = node.state if isinstance(node, _Kept) else None
    if isinstance(state, dict):
        return _plain(state["_content"] if "_content" in state else state.get("_val"))
    return {str(_plain(key)): _plain(value) for key, value in node.items()} if isinstance(node, Mapping) else node


def _named(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Each tensor by the encoder's name for it."""
    for key, tensor in tensors.items():
        first, _, rest = key.partition(".")
        if key in POWERS:
            yield "pooling.power", tensor
        elif first == "fc":
            yield f"head.projection.{rest}", tensor
        elif first == "backbone":
            child, _, inner = rest.partition(".")
            yield f"backbone.{CHILDREN.get(child, child)}.{inner}" if inner else f"backbone.{child}", tensor
        else:
            yield f"backbone.{key}", tensor


def _backbone(file: Path, named: Mapping[str, Tensor]) -> str:
    if (tokens := named.get("backbone.cls_token")) is not None and tokens.shape[-1] in DEITS:
        return DEITS[tokens.shape[-1]]
    blocks = {match.groups() for key in named if (match := re.match(r"backbone\.layer(\d)\.(\d+)\.", key))}
    depths = "-".join(str(sum(layer == number for layer, _ in blocks)) for number in "1234")
    kind = depths + " bottleneck" * ("backbone.layer1.0.conv3.weight" in named)
    if kind not in RESNETS:
        raise InputError(f"{file}: must be a ResNet-18, 34, 50 or 101 or a DeiT, found layers of {kind} blocks")
    return RESNETS[kind]


def _norm(file: Path, options: Mapping[str, Any], is_naver: bool) -> str:
    """What stands before the projection: it has no weights, so only the settings tell."""
    if "norm_features" not in options and not is_naver:
        raise InputError(f"{file}: does not say what norms the features; give --feature-norm layer or none")
    is_normed = str(options.get("norm_features", False)).lower() == "true"
    return ("l2" if is_naver else "layer") if is_normed else "none"


def _load(file: Path, encoder: Encoder, named: dict[str, Tensor]) -> None:
    wanted = encoder.state_dict()
    counters = {key for key in wanted if key.endswith("num_batches_tracked")}  # which old files lack
    missing, surplus = sorted(wanted.keys() - named.keys() - counters), sorted(named.keys() - wanted.keys())
    if "pooling.power" in missing and encoder.settings.pooling.startswith("gem"):
        missing.remove("pooling.power")  # 3, as the authors have it where it does not learn
    shapes = [f"{key} is {tuple(named[key].shape)}, not {tuple(wanted[key].shape)}" for key in wanted.keys() & named.keys()
              if named[key].shape != wanted[key].shape]  # fmt: skip
    faults = [f"missing: {names(missing[:5])}"] * bool(missing) + [f"left over: {names(surplus[:5])}"] * bool(surplus)
    if faults or shapes:
        raise InputError(
            f"{file}: not the weights of a {encoder.settings.backbone}: {'; '.join([*faults, *sorted(shapes)[:5]])}"
        )
    encoder.load_state_dict(named, strict=False)


def _whitening(file: Path, pca: Any, power: float) -> Whitening:
    """Of scikit-learn's PCA: its directions over a power of their variances."""
    state = pca.state if isinstance(pca, _Kept) else None
    if not isinstance(state, Mapping) or not {"components_", "mean_", "explained_variance_"} <= state.keys():
        raise InputError(f"{file}: its whitening is no PCA of scikit-learn")
    weight = np.asarray(state["components_"], np.float64) / np.asarray(state["explained_variance_"])[:, None] ** power
    whitening = Whitening(weight.shape[1], weight.shape[0])
    whitening.weight.copy_(torch.from_numpy(weight))
    whitening.bias.copy_(torch.from_numpy(-weight @ np.asarray(state["mean_"], np.float64)))
    return whitening
