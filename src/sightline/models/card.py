"""The model card beside a saved encoder, and upload to and download from hubs, where a folder is ``owner/name``.

The card is ``README.md``, with a YAML head that hubs read. ``HF_ENDPOINT`` names another hub, ``HF_TOKEN`` is the token.
"""

import hashlib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
from huggingface_hub import EvalResult, HfApi, ModelCardData, metadata_load, snapshot_download
from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic import BaseModel, ConfigDict
from yaml import YAMLError

from sightline import __version__
from sightline.data.manifest import BOX, SEPARATOR, Manifest, label_columns
from sightline.data.transforms import Preprocessing
from sightline.errors import InputError
from sightline.files import write_text

CARD_FILE = "README.md"
SECTION = "sightline"  # of the card's head, where its facts are
TASK = "image-feature-extraction"
HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
TAGS = ["image-retrieval", "metric-learning", "similarity-search", "feature-extraction"]


class Facts(BaseModel):
    """A part of a card; keys that a later version added are passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class DataFacts(Facts):
    """The images an encoder was trained on.

    Attributes:
        manifest: name of the table or folder, without its place on the machine.
        n_images: how many.
        n_classes: at each label level, finest first; of images with several codes, how many codes.
        sha256: of ids, paths, splits, labels or codes, and boxes, row by row; not of pixels.
    """

    manifest: str
    n_images: int
    n_classes: tuple[int, ...]
    sha256: str

    @classmethod
    def of(cls, manifest: Manifest, codes: str | None = None) -> "DataFacts":
        """The facts of the manifest's rows, by their labels or by a column of codes."""
        columns = ["id", "path", "split", *(label_columns(manifest.n_levels) if codes is None else [codes]), *BOX]
        rows = manifest.table.select(column for column in columns if column in manifest.table.columns)
        n_classes = [int(column.max()) + 1 for column in manifest.labels().T]
        if codes is not None:
            rows = rows.with_columns(pl.col(codes).list.join(SEPARATOR))
            n_classes = [manifest.table[codes].explode().n_unique()]
        return cls(
            manifest=manifest.source.resolve().name,
            n_images=len(manifest),
            n_classes=tuple(n_classes),
            sha256=hashlib.sha256(rows.write_csv().encode()).hexdigest(),
        )


class TrainingFacts(Facts):
    """How an encoder was trained: the loss with all its options, the budget, and the starting weights.

    ``trained_share`` is the position of the weights between the start (0) and the end (1) of training, if it was chosen.
    """

    loss: str
    loss_options: dict[str, Any]
    weights: str | None
    adaptation: str
    epoch: int
    epochs: int
    batch_size: int
    optimizer: str
    lr: float
    precision: str
    seed: int
    trained_share: float | None = None


class Measure(Facts):
    """A metric's mean over queries and the ends of its interval; None where it is undefined."""

    mean: float | None
    low: float | None
    high: float | None


class EvaluationFacts(Facts):
    """What was measured.

    Attributes:
        on: which images, in words.
        chose: whether these images chose the encoder among several, which makes the values a little too good.
        n_queries: asked.
        n_skipped: of them, without a relevant item.
        level: of the intervals, by bootstrap over queries.
        metrics: by name.
    """

    on: str
    chose: bool
    n_queries: int
    n_skipped: int
    level: float
    metrics: dict[str, Measure]


class Account(Facts):
    """What is known of an encoder besides what it computes.

    Attributes:
        data: the images it was trained on; None where nothing is known.
        training: how.
        evaluation: how well it finds.
        license: of the weights, by the hub's short names.
        notes: Markdown, shown as it is.
    """

    data: DataFacts | None = None
    training: TrainingFacts | None = None
    evaluation: EvaluationFacts | None = None
    license: str = "unknown"
    notes: str = ""


class ModelCard(Account):
    """An account of one encoder, which its fingerprint names.

    Attributes:
        name: what to load it by: a folder's name or ``owner/name`` on a hub.
        version: of Sightline.
    """

    name: str
    fingerprint: str
    backbone: str
    pooling: str
    dim: int
    is_whitened: bool
    preprocessing: Preprocessing
    factory: str | None = None  # import path, of a wrapped module
    version: str = __version__

    def as_markdown(self) -> str:
        """The whole file, head included; the same card gives the same text."""
        environment = Environment(
            loader=PackageLoader("sightline.models"),
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        return environment.get_template("card.md").render(
            card=self,
            head=self._head(),
            quoted_name=json.dumps(self.name),
            data=self.data,
            training=self.training,
            evaluation=self.evaluation,
            seen=self.preprocessing,
        )

    def _head(self) -> str:
        """YAML, by the hub's own library."""
        measured = {} if self.evaluation is None else self.evaluation.metrics
        results = [
            EvalResult(
                task_type=TASK,
                task_name="Image retrieval",
                dataset_type="image-retrieval",
                dataset_name=self.evaluation.on,
                metric_type=metric,
                metric_value=measure.mean,
                metric_args={"interval": [measure.low, measure.high], "level": self.evaluation.level},
            )
            for metric, measure in measured.items()
            if self.evaluation is not None and measure.mean is not None
        ]
        head = ModelCardData(
            library_name="sightline",
            license=self.license,
            pipeline_tag=TASK,
            tags=TAGS,
            metrics=list(measured) or None,
            model_name=self.name if results else None,
            eval_results=results or None,
        )
        head[SECTION] = self.model_dump(mode="json")
        return head.to_yaml()


def read_card(folder: Path | str) -> ModelCard:
    """The card in an encoder's folder.

    Example:
        >>> import tempfile
        >>> from sightline.models.encoder import Encoder
        >>> folder = Encoder.create("tiny", 8, image_size=32).save_pretrained(tempfile.mkdtemp())
        >>> read_card(folder).dim
        8
    """
    file = Path(folder) / CARD_FILE
    if not file.is_file():
        raise InputError(f"{folder}: no {CARD_FILE}; `sightline export card` writes one")
    try:
        head = metadata_load(file)
        if head is None or SECTION not in head:
            raise ValueError(f"its head has no part {SECTION!r}")
        return ModelCard.model_validate(head[SECTION])
    except (ValueError, YAMLError) as error:
        raise InputError(f"{file}: not a model card of Sightline: {error}") from error


def write_card(folder: Path | str, card: ModelCard) -> Path:
    """Write the card into a folder, in place of one that is there."""
    file = Path(folder) / CARD_FILE
    write_text(file, card.as_markdown())
    return file


def is_hub_name(name: Path | str) -> bool:
    """Whether a name could be a hub's: a string ``owner/name``; a ``Path`` never is.

    Example:
        >>> is_hub_name("owner/name"), is_hub_name("./run/encoder"), is_hub_name(Path("owner/name"))
        (True, False, False)
    """
    return isinstance(name, str) and HUB_NAME.fullmatch(name) is not None


def download(name: str, files: Sequence[str], revision: str | None = None) -> Path:
    """The folder of a hub's model, downloaded unless it is in the hub's cache.

    Args:
        name: ``owner/name``.
        files: the only ones to fetch.
        revision: a branch, tag or commit; None for ``main``.
    """
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=list(files)))
    except Exception as error:  # what network libraries raise has no base in common
        at = "" if revision is None else f" at {revision!r}"
        raise InputError(
            f"{name}: no such folder, and it cannot be downloaded from the hub{at}: {_first_line(error)}"
        ) from error


def upload(
    folder: Path, name: str, private: bool | None = None, revision: str | None = None, message: str = "Encoder"
) -> str:
    """Make the hub's model ``owner/name`` if there is none, and put the folder's files there as one commit.

    Args:
        folder: its files go up.
        name: ``owner/name``.
        private: whether a model that is made is; None for the owner's default.
        revision: a branch; made from ``main`` if there is none.
        message: of the commit.

    Returns:
        The commit's address.
    """
    if not is_hub_name(name):
        raise InputError(f"a hub name must be 'owner/name', got {name!r}")
    api = HfApi(library_name="sightline")
    try:
        api.create_repo(name, private=private, exist_ok=True)
        if revision is not None:
            api.create_branch(name, branch=revision, exist_ok=True)
        done = api.upload_folder(repo_id=name, folder_path=folder, revision=revision, commit_message=message)
    except Exception as error:
        raise InputError(f"{name}: the upload to the hub failed: {_first_line(error)}") from error
    return str(done.commit_url)


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
