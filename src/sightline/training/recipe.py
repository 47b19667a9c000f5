"""One run as frozen models, read from TOML with dotted overrides; a key nobody reads is refused."""

import inspect
import tomllib
from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator
from pydantic_core import ErrorDetails, PydanticCustomError

from sightline.data.samplers import SamplerSection
from sightline.errors import InputError, nearest

LARGEST = 1 << 20  # bytes of a recipe
DEEPEST = 20  # recipes that extend each other
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

    backbone: str = "tf_efficientnet_lite0"  # one of timm's names
    weights: str | None = "bundled"  # bundled, hub, distilled or a safetensors file; none: random
    pooling: str = "gem"  # avg, cls, gem, gem_frozen, max or mean+max
    feature_norm: Literal["layer", "l2", "none"] = "layer"  # of the pooled vector, before the projection
    embedding_dim: int | None = Field(default=512, ge=1)  # none: no projection
    projection: Literal["random", "pca"] = "random"  # where it starts; pca: whitens features of the training images
    freeze_batch_norm: Literal["none", "stats", "all"] = "stats"  # what training leaves fixed; all: its weights too
    # frozen: the backbone sees each image once, without augmentation, and the head learns from what it saw
    adaptation: Literal["full", "lora", "frozen"] = "full"
    lora_rank: int = Field(default=8, ge=1)  # of lora


class LossSection(BaseModel):
    """A loss by name; every other key is an option of that loss, checked when it is made."""

    model_config = ConfigDict(frozen=True, extra="allow")

    name: str = "roadmap"  # one of sl.list_losses()

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
    return sorted(
        Path(file.name).stem for file in (resources.files("sightline") / "recipes").iterdir() if file.name.endswith(".toml")
    )


def read_recipe(source: str, overrides: list[str] | None = None) -> Recipe:
    """Read a recipe and lay the overrides over it.

    Args:
        source: the path of a TOML file, or the name of a recipe inside the package; ``extends`` in it names another one
            that it changes: section by section, a loss with a name as a whole.
        overrides: such as ``loss.name=sup_ap``; the value is TOML, or a plain word.
    """
    values = _values(source)
    for override in overrides or []:
        _lay_over(values, override)
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        faults = [fault_sentence(fault, Recipe) for fault in error.errors()]
        raise InputError(f"{source}: " + "; ".join(faults)) from error


def _values(source: str, extended_by: tuple[str, ...] = ()) -> dict[str, Any]:
    """What a recipe file says, over what the one that it extends says."""
    if source in extended_by:
        raise InputError(f"{source}: extends itself, by way of {', '.join(extended_by)}")
    if len(extended_by) > DEEPEST:
        raise InputError(f"{extended_by[0]}: extends more than {DEEPEST} recipes, one by way of the other")
    if Path(source).suffix == ".toml":
        if not Path(source).is_file():
            raise InputError(f"{source}: no such recipe file")
        if (n_bytes := Path(source).stat().st_size) > LARGEST:
            raise InputError(f"{source}: {n_bytes} bytes; a recipe has at most {LARGEST}")
        stored = Path(source).read_bytes()
    elif source in shipped_recipes():
        stored = (resources.files("sightline") / "recipes" / f"{source}.toml").read_bytes()
    else:
        raise InputError(f"{source!r} is neither a .toml file nor a shipped recipe: {nearest(source, shipped_recipes())}")
    try:
        values = tomllib.loads(stored.decode())
    except (ValueError, RecursionError) as error:  # also a number of thousands of digits
        raise InputError(f"{source}: not TOML: {error}") from error
    if "extends" not in values:
        return values
    extended = Path(str(values.pop("extends")))
    if extended.suffix == ".toml" and Path(source).suffix == ".toml":
        extended = Path(source).parent / extended
    base = _values(str(extended), (*extended_by, source))
    for key, value in values.items():
        replaces = not isinstance(value, dict) or not isinstance(base.get(key), dict) or (key == "loss" and "name" in value)
        base[key] = value if replaces else base[key] | value
    return base


def _lay_over(values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    if not equals or not all(key.split(".")):
        raise InputError(f"override {override!r}: a dotted key and a value are needed, such as loss.name=sup_ap")
    try:
        value: Any = tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):
        value = None if text == "none" else _number(text)
    *sections, last = key.split(".")
    for section in sections:
        values = values.setdefault(section, {})
        if not isinstance(values, dict):
            raise InputError(f"override {override!r}: {section!r} is a value, not a section")
    values[last] = value


def _number(text: str) -> float | str:
    """What TOML does not take for a number but people write as one, such as ``.5``; else a word without quotes."""
    try:
        return float(text)
    except ValueError:
        return text


def fault_sentence(fault: ErrorDetails, model: Any) -> str:
    """One fault of a recipe, or of another file that a model describes, in the words of its author."""
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
