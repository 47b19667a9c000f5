"""One run as frozen models, read from TOML with dotted overrides; a key nobody reads is refused."""

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
    """Where the images are and how training sees them."""

    manifest: Path  # a .csv or .parquet file, or a folder of images
    image_size: int = Field(default=224, ge=8)  # side of the square that the network sees
    resize: int | None = Field(default=None, ge=8)  # shorter side before the central cut; 8/7 of image_size
    stretch: bool = False  # both sides to resize, the aspect lost
    train_resize: int | tuple[int, int] | None = None  # shorter side, or both, before the random cut; none: as it is
    # share of the area that a random cut for training takes, least and most; none: a square of image_size
    crop_area: tuple[float, float] | None = (0.16, 1.0)
    flip: float = Field(default=0.5, ge=0, le=1)  # chance that a training image is mirrored
    colour_jitter: float = Field(default=0.0, ge=0, le=1)  # share by which brightness, contrast and saturation change
    rotation: float = Field(default=0.0, ge=0, le=180)  # degrees
    val_fraction: float = Field(default=0.2, ge=0, lt=1)  # of the training classes, where there is no val split
    check_images: bool = True  # decode every image before the run starts
    skip_unreadable: bool = False  # leave out images that cannot be decoded, and name them, instead of refusing to train
    n_workers: int = Field(default=2, ge=0)  # processes that read images; 0: the run itself does
    draft: bool = True  # decode JPEG files for training at a half, quarter or eighth where that still covers image_size

    @field_validator("train_resize")
    @classmethod
    def _some_pixels(cls, size: int | tuple[int, int] | None) -> int | tuple[int, int] | None:
        if size is not None and min(size if isinstance(size, tuple) else [size]) < 8:
            raise PydanticCustomError("train_resize", "at least 8 pixels are needed, for the shorter side or for both")
        return size

    @field_validator("crop_area")
    @classmethod
    def _shares_in_order(cls, area: tuple[float, float] | None) -> tuple[float, float] | None:
        if area is not None and not 0 < area[0] <= area[1] <= 1:
            raise PydanticCustomError("crop_area", "smallest and largest share of the area are needed, above 0 and up to 1")
        return area


class ModelSection(RecipeSection):
    """The encoder to start from."""

    # an encoder folder to continue from; backbone, weights, pooling, feature_norm, embedding_dim, projection, image_size,
    # resize and stretch then come from it
    start: Path | None = None
    backbone: str = "tf_efficientnet_lite0"  # one of timm's names
    weights: str | None = "bundled"  # bundled, hub, distilled or a safetensors file; none: random
    pooling: str = "gem"  # avg, cls, gem, gem_frozen, max, mean+max or none
    feature_norm: Literal["layer", "l2", "none"] = "layer"  # of the pooled vector, before the projection
    embedding_dim: int | None = Field(default=512, ge=1)  # none: no projection
    projection: Literal["random", "pca"] = "random"  # where it starts; pca: whitens features of the training images
    freeze_batch_norm: Literal["none", "stats", "all"] = "stats"  # what training leaves fixed; all: its weights too
    # what learns. upper: about the last third of the stages (upper:2: the last two), from cached features; frozen: the head
    adaptation: str = Field(default="full", pattern=r"^(full|lora|frozen|upper|upper:[1-9]\d?)$")
    n_views: int = Field(default=8, ge=1, le=1000)  # of upper and frozen: augmented views of each image that are cached
    lora_rank: int = Field(default=8, ge=1)  # of lora


class LossSection(BaseModel):
    """A loss by name; every other key is an option of that loss, checked when it is made."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str = "roadmap"  # one of sl.list_losses()
    # what a batch is ranked against: itself, or all training images by their latest embeddings
    reference: Literal["batch", "train"] = "batch"
    # what moves a loss's proxies: gradients, or a running mean of the embeddings of their class, from its mean at the start
    proxies: Literal["learned", "means"] = "learned"

    def options(self) -> dict[str, Any]:
        """The loss's own settings."""
        return dict(self.model_extra or {})


class OptimizerSection(RecipeSection):
    """How weights move."""

    name: Literal["adam", "adamw", "sgd"] = "adamw"  # which rule
    lr: float = Field(default=1e-4, gt=0, le=1e6)  # learning rate of the backbone
    head_lr_factor: float = Field(default=2.0, gt=0)  # times lr: the rate of pooling, head and the loss's own vectors
    weight_decay: float = Field(default=1e-4, ge=0)  # pull of the weights towards 0
    momentum: float = Field(default=0.9, ge=0, lt=1)  # of sgd, with Nesterov's correction
    clip_norm: float | None = Field(default=None, gt=0)  # longest gradient; none: as it is
    # of the loss's own vectors, without decay; none: as the head
    proxy_lr: float | None = Field(default=None, gt=0, le=1e6)
    proxy_final_factor: float = Field(default=0.0, ge=0, le=1)  # what cosine leaves of that rate


class ScheduleSection(RecipeSection):
    """How long, and how the learning rate falls."""

    epochs: int = Field(default=10, ge=1)  # passes over the training images
    warmup_epochs: int = Field(default=0, ge=0)  # the backbone is frozen, the schedule waits
    name: Literal["constant", "cosine", "linear", "step"] = "cosine"  # how the rate falls
    final_factor: float = Field(default=0.0, ge=0, le=1)  # of cosine and linear: what is left of the rate at the end
    milestones: tuple[int, ...] = ()  # of step: epochs after the warm-up at which the rate falls
    gamma: float = Field(default=0.3, gt=0, le=1)  # of step: what is left each time


class ValidationSection(RecipeSection):
    """When to measure, and what decides which encoder is kept."""

    every: int = Field(default=1, ge=1)  # epochs
    metric: str = "map@r"  # decides which encoder is kept
    mode: Literal["max", "min"] = "max"  # min where less is better
    ks: tuple[int, ...] = (1, 2, 4, 8)  # places for recall@k
    patience: int | None = Field(default=None, ge=1)  # validations without a better value after which the run ends
    interpolate: bool = False  # at the end, keep the best mixture of the weights at the start and the trained ones

    def decisive(self, mean: float) -> float:
        """The metric's mean as it is compared; undefined is 0: how severe no mistake is."""
        return 0.0 if math.isnan(mean) else mean

    def is_better(self, mean: float, best: float | None) -> bool:
        """Does a mean beat the best one before it?"""
        value = self.decisive(mean)
        return best is None or (value > best if self.mode == "max" else value < best)


class MemorySection(RecipeSection):
    """Earlier embeddings as more items for the loss (cross-batch memory)."""

    size: int | Literal["all"] | None = None  # items; all of the training images; none for no memory
    start_epoch: int = Field(default=0, ge=0)  # from which it counts; it fills before
    share: float = Field(default=0.5, ge=0, le=1)  # of the loss against the memory

    @field_validator("size")
    @classmethod
    def _some_items(cls, size: int | Literal["all"] | None) -> int | Literal["all"] | None:
        if isinstance(size, int) and size < 1:
            raise PydanticCustomError("size", "at least 1 item is needed, or all")
        return size


class Recipe(RecipeSection):
    """A whole training run.

    Example:
        >>> Recipe.model_validate({"data": {"manifest": "photos"}}).loss.name
        'roadmap'
    """

    seed: int = Field(default=0, ge=0, lt=2**63)  # of every random choice
    precision: Literal["32-true", "16-mixed", "bf16-mixed"] = "32-true"  # ranks are computed in float32 in any case
    checkpoint_every: int | None = Field(default=None, ge=1)  # steps; at the end of every epoch in any case
    keep_every: int | None = Field(default=None, ge=1)  # epochs after which a checkpoint is kept for good
    chunk_size: int | Literal["auto"] | None = None  # images through the encoder at a time; none: the whole batch
    compile: bool = False  # the encoder, by torch.compile
    strategy: Literal["ddp", "fsdp"] = "ddp"  # of several processes: each has all weights, or its part of them
    loggers: tuple[str, ...] = ("tensorboard",)  # besides log.csv: tensorboard, wandb, mlflow
    data: DataSection
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
    def _without_the_word_none(cls, values: Any) -> Any:
        return _with_none(cls, values)


def _with_none(model: type[BaseModel], values: Any) -> Any:
    """TOML has no null: the word ``none`` is no value where a key may go without one, else the word."""
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
    """Read a recipe and lay the overrides over it.

    Args:
        source: the path of a TOML file, or the name of a recipe inside the package; ``extends`` in it names another one
            that it changes: section by section, a loss with a name as a whole.
        overrides: such as ``loss.name=sup_ap``; the value is TOML, or a plain word. A loss that is named starts from its
            own defaults: options of the recipe's loss do not count for it.
    """
    if not isinstance(source, str | Path):
        raise InputError(f"recipe must be a .toml file or the name of a shipped recipe, got {type(source).__name__}")
    if isinstance(overrides, str):
        raise InputError(f"overrides must be a list such as ['loss.name=sup_ap'], got the text {overrides!r}")
    return _with_overrides(_read_layers(str(source)), overrides or [], str(source))


def as_recipe(recipe: Recipe | str | Path) -> Recipe:
    """The recipe, read where its file or name is given."""
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
    """A table of TOML; strings, numbers, lists and truth values are written as in JSON."""
    lines = [f"{key} = {json.dumps('none' if value is None else value)}" for key, value in table.items()]
    return ["", f"[{name}]", *lines] if name else lines


def _with_overrides(values: dict[str, Any], overrides: Sequence[str], source: str) -> Recipe:
    if any(override.startswith("loss.name=") for override in overrides):
        values["loss"] = {}
    for override in overrides:
        _lay_over(values, override)
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise InputError(f"{source}: {describe_faults(error, Recipe)}") from error


def _read_layers(source: str) -> dict[str, Any]:
    """What a recipe file says, over what those say that it extends."""
    layers: dict[Path, dict[str, Any]] = {}
    file: Path | None = _find_recipe(source)
    while file is not None:
        if file.resolve() in layers:
            raise InputError(f"{source}: extends itself, by way of {names(layers)}")
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


def _lay_over(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    *sections, last = key.split(".")
    if not equals or not all([*sections, last]):
        raise InputError(f"override {override!r}: a dotted key and a value are needed, such as loss.name=sup_ap")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise InputError(f"override {override!r}: {section!r} is a value, not a section")
    values[last] = _parse_value(text)


def _parse_value(text: str) -> Any:
    """TOML, or what people write that is not: a number such as ``.5``, none, or a word without quotes."""
    with suppress(ValueError, RecursionError):
        return tomllib.loads(f"value = {text}")["value"]
    with suppress(ValueError):
        return float(text)
    return None if text == "none" else text


def describe_faults(error: ValidationError, model: type[BaseModel]) -> str:
    """The faults of a recipe, or of another file that a model describes, in the words of its author."""
    return "; ".join(_fault_sentence(fault, model) for fault in error.errors())


def _fault_sentence(fault: ErrorDetails, model: Any) -> str:
    *sections, key = [str(part) for part in fault["loc"]]
    where = ".".join([*sections, key])
    if "accumul" in key:
        return (
            f"{where!r}: gradients of several small batches are not that of one list; set sampler.batch_size to the list "
            "and chunk_size to what fits in memory: staged back-propagation gives the gradient of the whole"
        )
    if fault["type"] == "extra_forbidden":
        for section in sections:
            model = get_args(model)[0] if section.isdigit() else model.model_fields[section].annotation
        return f"unknown key {where!r}: {nearest(key, model.model_fields)}"
    if fault["type"] == "missing":
        return f"{where!r} is missing"
    return f"{where!r} is {_short(fault['input'])}: {fault['msg'][0].lower()}{fault['msg'][1:]}"


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits
        return f"a {type(value).__name__} too long to be shown"
    return text if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}..."
