"""The recipe of a run as frozen models, read from TOML with dotted overrides; an unknown key is an error."""

import inspect
import json
import math
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from sightline.data.samplers import SamplerSection
from sightline.errors import InputError, names, nearest
from sightline.files import read_toml
from sightline.progress import html_table

SHIPPED = Path(__file__).parents[1] / "recipes"
LONGEST_SHOWN = 200  # characters of a value in a message


class RecipeSection(BaseModel):
    """A part of a recipe."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class DataSection(RecipeSection):
    """Where the images are, and how they are augmented."""

    manifest: Path  # a .csv or .parquet file, or a folder of images
    codes: str | None = None  # column of several codes an image, such as 26.1.15;5.3.13, in place of labels; none: labels
    image_size: int = Field(default=224, ge=8)  # side of the square that the network sees, in pixels
    resize: int | None = Field(default=None, ge=8)  # shorter side before the centre crop; none: 8/7 of image_size
    stretch: bool = False  # resize both sides to `resize`, which changes the aspect ratio
    train_resize: int | tuple[int, int] | None = None  # shorter side, or both, before the random crop; none: original size
    # smallest and largest share of the area in a random crop; none: a square of image_size pixels
    crop_area: tuple[float, float] | None = (0.16, 1.0)
    flip: float = Field(default=0.5, ge=0, le=1)  # probability of a horizontal flip
    colour_jitter: float = Field(default=0.0, ge=0, le=1)  # strength of random brightness, contrast and saturation
    rotation: float = Field(default=0.0, ge=0, le=180)  # largest random rotation in degrees
    val_fraction: float = Field(default=0.2, ge=0, lt=1)  # share of training classes to hold out if there is no val split
    check_images: bool = True  # decode every image before the run starts
    skip_unreadable: bool = False  # skip images that cannot be decoded, with a warning that names them
    n_workers: int = Field(default=2, ge=0)  # processes that read images; 0: read in the main process
    draft: bool = True  # decode training JPEGs at 1/2, 1/4 or 1/8 size where that still covers image_size

    @field_validator("train_resize")
    @classmethod
    def _some_pixels(cls, size: int | tuple[int, int] | None) -> int | tuple[int, int] | None:
        if size is not None and min(size if isinstance(size, tuple) else [size]) < 8:
            raise PydanticCustomError("train_resize", "must be at least 8 pixels")
        return size

    @field_validator("crop_area")
    @classmethod
    def _shares_in_order(cls, area: tuple[float, float] | None) -> tuple[float, float] | None:
        if area is not None and not 0 < area[0] <= area[1] <= 1:
            raise PydanticCustomError(
                "crop_area", "must be the smallest and the largest share of the area, with 0 < smallest <= largest <= 1"
            )
        return area


class CodesSection(RecipeSection):
    """With data.codes: which codes there are, and what sharing them is worth."""

    tree: Path | None = None  # a table child,parent of the codes that there are; none: any codes, as deep as the deepest
    leaves: bool = True  # with a tree: refuse codes that have others below them
    level: int = Field(default=0, ge=0)  # for losses that ask whether an image is relevant: share a code of this level
    alpha: float = Field(default=1.0, gt=0)  # worth of sharing l of L levels: (l / L) ** alpha
    level_weights: tuple[float, ...] | None = None  # that worth itself, for 1 to L levels; none: by alpha
    # how much a code counts beside the others of its image: idf for rare codes more, or a weight by code or its beginning
    code_weights: Literal["idf"] | dict[str, float] | None = None
    symmetry: Literal["query", "mean", "harmonic"] = "query"  # query: extra codes of an image are free
    auxiliary: dict[str, str] = {}  # the main code of each auxiliary one
    # worth of meeting an auxiliary code for its main one; none: as two codes of one division
    auxiliary_weight: float | None = Field(default=None, ge=0, le=1)
    threshold: float = Field(default=0.0, ge=0, le=1)  # what is worth less is worth nothing


class ModelSection(RecipeSection):
    """The encoder, and which part of it is trained."""

    # an encoder folder to continue from; backbone, weights, pooling, feature_norm, embedding_dim, projection, image_size,
    # resize and stretch then come from it
    start: Path | None = None
    backbone: str = "tf_efficientnet_lite0"  # a timm model name
    weights: str | None = "bundled"  # bundled, icons (for drawings), hub, distilled or a safetensors file; none: random
    pooling: str = "gem"  # avg, cls, gem, gem_frozen, max, mean+max, none, or native: as the backbone was trained
    feature_norm: Literal["layer", "l2", "none"] = "layer"  # normalisation of the pooled vector before the projection
    embedding_dim: int | None = Field(default=512, ge=1)  # dimensions of the projection; none: no projection
    projection: Literal["random", "pca"] = "random"  # initial projection; pca: principal components of training images
    freeze_batch_norm: Literal["none", "stats", "all"] = "stats"  # what stays fixed: running statistics, or weights too
    # what is trained; upper: about the last third of the stages (upper:2: the last two), on cached features; frozen: the
    # head
    adaptation: str = Field(default="full", pattern=r"^(full|lora|frozen|upper|upper:[1-9]\d?)$")
    n_views: int = Field(default=8, ge=1, le=1000)  # for upper and frozen: cached augmented views of each image
    lora_rank: int = Field(default=8, ge=1)  # for lora


class LossSection(BaseModel):
    """A loss by name; every other key is an option of that loss."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str = "roadmap"  # one of sl.list_losses()
    # what a batch is ranked against: the batch itself; all training images (train); or one loss for each (both)
    reference: Literal["batch", "train", "both"] = "batch"
    # how proxies move: learned by gradients, or as running means of the embeddings of their class
    proxies: Literal["learned", "means"] = "learned"
    # rows of scores held in memory, for batches of thousands of images; none: all
    queries_at_once: int | None = Field(default=None, ge=1)

    def options(self) -> dict[str, Any]:
        """The loss's own settings."""
        return dict(self.model_extra or {})


class OptimizerSection(RecipeSection):
    """The optimizer and its learning rates."""

    name: Literal["adam", "adamw", "sgd"] = "adamw"  # optimizer
    lr: float = Field(default=1e-4, gt=0, le=1e6)  # learning rate of the backbone
    head_lr_factor: float = Field(default=2.0, gt=0)  # times lr: learning rate of pooling, head and the weights of the loss
    weight_decay: float = Field(default=1e-4, ge=0)  # decoupled for adamw, L2 penalty otherwise
    momentum: float = Field(default=0.9, ge=0, lt=1)  # for sgd, with Nesterov momentum
    clip_norm: float | None = Field(default=None, gt=0)  # largest gradient norm; none: no clipping
    # learning rate of the weights of the loss, without weight decay; none: as the head
    proxy_lr: float | None = Field(default=None, gt=0, le=1e6)
    proxy_final_factor: float = Field(default=0.0, ge=0, le=1)  # for cosine: proxy_lr at the end, as a share of proxy_lr


class ScheduleSection(RecipeSection):
    """Number of epochs and learning rate schedule."""

    epochs: int = Field(default=10, ge=1)  # passes over the training images
    warmup_epochs: int = Field(default=0, ge=0)  # epochs with a frozen backbone, before the schedule starts
    name: Literal["constant", "cosine", "linear", "step"] = "cosine"  # learning rate schedule
    final_factor: float = Field(default=0.0, ge=0, le=1)  # for cosine and linear: last learning rate, relative to the first
    milestones: tuple[int, ...] = ()  # for step: epochs after the warm-up at which the rate drops
    gamma: float = Field(default=0.3, gt=0, le=1)  # for step: factor at each milestone


class ValidationSection(RecipeSection):
    """When to validate, and which metric selects the encoder that is kept."""

    every: int = Field(default=1, ge=1)  # epochs between validations
    metric: str = "map@r"  # selects the encoder that is kept
    mode: Literal["max", "min"] = "max"  # min if lower is better
    ks: tuple[int, ...] = (1, 2, 4, 8)  # values of k for metrics at k
    patience: int | None = Field(default=None, ge=1)  # early stopping: validations without improvement; none: off
    interpolate: bool = False  # at the end, keep the best mixture of the start weights and the trained ones

    def decisive(self, mean: float) -> float:
        """The mean to compare; an undefined one counts as 0, the severity of no mistakes."""
        return 0.0 if math.isnan(mean) else mean

    def is_better(self, mean: float, best: float | None) -> bool:
        """Does a mean beat the best one before it?"""
        value = self.decisive(mean)
        return best is None or (value > best if self.mode == "max" else value < best)


class MemorySection(RecipeSection):
    """Embeddings of earlier batches as further items for the loss (cross-batch memory)."""

    size: int | Literal["all"] | None = None  # items; all: all training images; none: no memory
    start_epoch: int = Field(default=0, ge=0)  # first epoch in which the loss uses the memory; it fills from the start
    share: float = Field(default=0.5, ge=0, le=1)  # weight of the loss against the memory; the batch has the rest
    # of a running mean of the weights, whose embeddings fill the memory; 0: those of the encoder itself;
    # none: 0, with loss.reference a mean over about one epoch
    momentum: float | None = Field(default=None, ge=0, lt=1)

    @field_validator("size")
    @classmethod
    def _some_items(cls, size: int | Literal["all"] | None) -> int | Literal["all"] | None:
        if isinstance(size, int) and size < 1:
            raise PydanticCustomError("size", "must be at least 1, or all")
        return size


class Recipe(RecipeSection):
    """A whole training run.

    Example:
        >>> Recipe.model_validate({"data": {"manifest": "photos"}}).loss.name
        'roadmap'
    """

    seed: int = Field(default=0, ge=0, lt=2**63)  # random seed
    precision: Literal["32-true", "16-mixed", "bf16-mixed"] = "32-true"  # ranks are always computed in float32
    checkpoint_every: int | None = Field(default=None, ge=1)  # steps between checkpoints, besides one per epoch
    keep_every: int | None = Field(default=None, ge=1)  # epochs between checkpoints that are kept for good
    chunk_size: int | Literal["auto"] | None = None  # images per forward pass; none: the whole batch
    compile: bool = False  # compile the encoder with torch.compile
    strategy: Literal["ddp", "fsdp"] = "ddp"  # for several processes; ddp: each holds all weights, fsdp: a shard
    loggers: tuple[str, ...] = ()  # in addition to log.csv: tensorboard, wandb, mlflow
    data: DataSection
    codes: CodesSection = CodesSection()
    model: ModelSection = ModelSection()
    loss: LossSection = LossSection()
    sampler: SamplerSection = SamplerSection()
    memory: MemorySection = MemorySection()
    optimizer: OptimizerSection = OptimizerSection()
    schedule: ScheduleSection = ScheduleSection()
    validation: ValidationSection = ValidationSection()

    def _repr_html_(self) -> str:
        changed = self.model_dump(mode="json", exclude_defaults=True)
        rows = [
            [f"{section}.{key}" if key else section, value]
            for section, values in changed.items()
            for key, value in (values.items() if isinstance(values, dict) else [("", values)])
        ]
        return html_table([["Recipe", ""], *rows], "Every other key has its default.")

    @model_validator(mode="before")
    @classmethod
    def _read_none(cls, values: Any) -> Any:
        return _with_none(cls, values)


def _with_none(model: type[BaseModel], values: Any) -> Any:
    """TOML has no null: the word ``none`` becomes None where a key is optional, and stays a word otherwise."""
    if not isinstance(values, dict):
        return values
    changed = {}
    for key, field in model.model_fields.items():
        choices = get_args(field.annotation)
        if inspect.isclass(field.annotation) and issubclass(field.annotation, BaseModel):
            changed[key] = _with_none(field.annotation, values.get(key))
        elif values.get(key) == "none" and type(None) in choices:
            changed[key] = None
        elif values.get(key) is None and "none" in choices:
            changed[key] = "none"
    return values | {key: value for key, value in changed.items() if key in values}


def shipped_recipes() -> list[str]:
    """The names of the recipes inside the package."""
    return sorted(file.stem for file in SHIPPED.glob("*.toml"))


def read_recipe(source: str | Path, overrides: Sequence[str] | None = None) -> Recipe:
    """Read a recipe and apply the overrides.

    Args:
        source: the path of a TOML file, or the name of a shipped recipe. The key ``extends`` names a recipe to inherit
            from: sections are merged key by key, but a loss with a name replaces the inherited loss.
        overrides: such as ``loss.name=sup_ap``; the value is TOML or a plain word. A new loss name starts from the defaults
            of that loss, without the options of the recipe's loss.
    """
    if not isinstance(source, str | Path):
        raise InputError(f"recipe must be a .toml file or the name of a shipped recipe, got {type(source).__name__}")
    if isinstance(overrides, str):
        raise InputError(f"overrides must be a list such as ['loss.name=sup_ap'], got the text {overrides!r}")
    return _with_overrides(_read_layers(str(source)), overrides or [], str(source))


def as_recipe(recipe: Recipe | str | Path) -> Recipe:
    """The recipe itself, or the one that a file or a name gives."""
    return recipe if isinstance(recipe, Recipe) else read_recipe(recipe)


def override_recipe(recipe: Recipe, overrides: Sequence[str]) -> Recipe:
    """The recipe with other values, as in :func:`read_recipe`."""
    return _with_overrides(recipe.model_dump(mode="json"), overrides, "recipe")


def recipe_as_toml(recipe: Recipe) -> str:
    """A recipe file of every value that is not a default."""
    values = recipe.model_dump(mode="json", exclude_defaults=True)
    tables = {name: table for name, table in values.items() if isinstance(table, dict)}
    parts = {"": {key: value for key, value in values.items() if key not in tables}} | tables
    return "\n".join(line for name, table in parts.items() for line in _toml_lines(name, table)).strip() + "\n"


def _toml_lines(name: str, table: dict[str, Any]) -> list[str]:
    """A table of TOML."""
    lines = [f"{key} = {_toml_value('none' if value is None else value)}" for key, value in table.items()]
    return ["", f"[{name}]", *lines] if name else lines


def _toml_value(value: Any) -> str:
    """Strings, numbers and booleans are written as in JSON."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml_value(one)}" for key, one in value.items()) + "}"
    return f"[{', '.join(map(_toml_value, value))}]" if isinstance(value, list) else json.dumps(value)


def _with_overrides(values: dict[str, Any], overrides: Sequence[str], source: str) -> Recipe:
    if any(override.startswith("loss.name=") for override in overrides):
        values["loss"] = {}
    for override in overrides:
        _override(values, override)
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise InputError(f"{source}: {describe_faults(error, Recipe)}") from error


def _read_layers(source: str) -> dict[str, Any]:
    """The values of a recipe file, merged over those of the recipes that it extends."""
    layers: dict[Path, dict[str, Any]] = {}
    file: Path | None = _find_recipe(source)
    while file is not None:
        if file.resolve() in layers:
            raise InputError(f"{source}: extends itself through {names(layers)}")
        layers[file.resolve()] = values = read_toml(file)
        extended = values.pop("extends", None)
        file = None if extended is None else _find_recipe(str(extended), file.parent)
    merged: dict[str, Any] = {}
    for values in reversed(layers.values()):
        for key, value in values.items():
            adds = isinstance(value, dict) and isinstance(merged.get(key), dict) and not (key == "loss" and "name" in value)
            merged[key] = merged[key] | value if adds else value
    return merged


def _find_recipe(source: str, beside: Path = Path()) -> Path:
    if Path(source).suffix == ".toml":
        return beside / source
    if source not in shipped_recipes():
        raise InputError(f"{source!r} is neither a .toml file nor a shipped recipe: {nearest(source, shipped_recipes())}")
    return SHIPPED / f"{source}.toml"


def _override(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    *sections, last = key.split(".")
    if not equals or not all([*sections, last]):
        raise InputError(f"override {override!r}: must be a dotted key and a value, such as loss.name=sup_ap")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise InputError(f"override {override!r}: {section!r} is a value, not a section")
    values[last] = _parse_value(text)


def _parse_value(text: str) -> Any:
    """TOML, or what people write instead: a number such as ``.5``, none, or a word without quotes."""
    with suppress(ValueError, RecursionError):
        return tomllib.loads(f"value = {text}")["value"]
    with suppress(ValueError):
        return float(text)
    return None if text == "none" else text


def describe_faults(error: ValidationError, model: type[BaseModel]) -> str:
    """The faults of a recipe, or of another file with a pydantic model, by the names of its keys."""
    return "; ".join(_fault_sentence(fault, model) for fault in error.errors())


def _fault_sentence(fault: ErrorDetails, model: Any) -> str:
    *sections, key = [str(part) for part in fault["loc"]]
    fields = model.model_fields
    where = ".".join([*sections, key])
    if "accumul" in key:
        return (
            f"{where!r}: accumulated gradients of small batches are not the gradient of one large batch; set "
            "sampler.batch_size to the large batch and chunk_size to what fits in memory (staged back-propagation)"
        )
    if fault["type"] == "extra_forbidden":
        for section in sections:
            model = get_args(model)[0] if section.isdigit() else model.model_fields[section].annotation
        elsewhere = [f"{name}.{key}" for name, one in fields.items() if key in getattr(one.annotation, "model_fields", ())]
        hint = f"did you mean {names(elsewhere)}?" if elsewhere else nearest(key, model.model_fields)
        return f"unknown key {where!r}: {hint}"
    if fault["type"] == "missing":
        return f"{where!r} is missing"
    return f"{where!r} is {_short(fault['input'])}: {fault['msg'][0].lower()}{fault['msg'][1:]}"


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits
        return f"a {type(value).__name__} too long to show"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
