"""Bodies of requests and responses."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator
from pydantic_core import PydanticCustomError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from sightline.data.manifest import BOX
from sightline.gallery.gallery import Value
from sightline.ood.rejector import Policy, Verdict

MEDIA_TYPE = "application/problem+json"
Crop = tuple[float, float, float, float]  # left, top, right and bottom as shares of width and height


class Problem(HTTPException):
    """What the caller is told instead of an answer: a status and a sentence."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, detail, headers)


class TooBusy(Problem):
    """More is asked for than can be taken; comes with the time after which to ask again."""

    def __init__(self, detail: str, seconds: float) -> None:
        super().__init__(429, detail, {"Retry-After": str(max(1, round(seconds)))})


def problem_response(
    status: int, detail: str, headers: Mapping[str, str] | None = None, errors: list[dict[str, Any]] | None = None
) -> JSONResponse:
    """The document of a problem."""
    body: dict[str, Any] = {"type": "about:blank", "title": _title(status), "status": status, "detail": detail}
    if errors is not None:
        body["errors"] = errors
    return JSONResponse(body, status, dict(headers or {}), MEDIA_TYPE)


def _title(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


MOST_RESULTS = 200
LONGEST_ID = 1024
HIDDEN = (
    "path",
    "file_size",
    "file_mtime_ns",
    "file_hash",
    "file_root",
    "file_prefix",
)  # where and how an image lies on this machine
OF_THE_IMAGE = (*HIDDEN, *BOX)  # what goes with an item's image, and is not for requests to set
NOT_SET = ("id", *OF_THE_IMAGE)  # keys of metadata that requests may not set
MOST_KEYS, LONGEST_KEY, LONGEST_VALUE = 100, 200, 10_000  # of an item's metadata
LEAST, MOST = -(2**63), 2**63 - 1
ID = r"^(?:\.{0,2}[^.\x00]|\.{3})[^\x00]*$"  # neither . nor .., which addresses cannot name
ID_SCHEMA: dict[str, Any] = {"minLength": 1, "maxLength": LONGEST_ID, "pattern": ID}
SHARE = r"(?:0(?:\.[0-9]{1,20})?|1(?:\.0{1,20})?)"
CROP = rf"^(?:{SHARE}(?:,{SHARE}){{3}})?$"
Number = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False, strict=True)]


class SearchOptions(BaseModel):
    """What every search may say.

    Attributes:
        gallery: its name; the first by default.
        k: results wanted.
        where: a condition on metadata, such as ``label_1 == "Flags" and year >= 2020``.
        expand: neighbours that the query is expanded by.
        alpha: power of similarity that these are weighted by.
        rerank: how the first results are ordered anew.
    """

    model_config = ConfigDict(extra="forbid")

    gallery: str | None = Field(default=None, max_length=200)
    k: int = Field(default=30, ge=1, le=MOST_RESULTS)
    where: str | None = Field(default=None, max_length=10_000, json_schema_extra={"format": "sightline-filter"})
    expand: int = Field(default=0, ge=0, le=100)
    alpha: float = Field(default=2.0, ge=0, le=100, allow_inf_nan=False)
    rerank: Literal["kreciprocal", ""] | None = None

    @field_validator("gallery", "where", "rerank", "policy", "crop", mode="before", check_fields=False)
    @classmethod
    def _nothing(cls, value: object) -> object:
        """A form sends an empty text for a field that is not filled in."""
        return None if value == "" else value


class JudgedOptions(SearchOptions):
    """Options of queries that may not belong.

    Attributes:
        policy: ``reject`` gives what does not belong no results, ``flag`` says so, ``ignore`` does not ask; by default what
            the gallery's rejector says.
    """

    policy: Policy | Literal[""] | None = None


class UploadOptions(JudgedOptions):
    """Options of a search by upload.

    Attributes:
        crop: ``x1,y1,x2,y2``, shares of the upright image's width and height: search by this part alone.
    """

    crop: str | None = Field(default=None, pattern=CROP, json_schema_extra={"format": "sightline-crop"})

    def part(self) -> Crop | None:
        """The part to search by."""
        if self.crop is None:
            return None
        left, top, right, bottom = (float(side) for side in self.crop.split(","))
        if not (left < right and top < bottom):
            raise Problem(422, "crop: 0 <= x1 < x2 <= 1 and 0 <= y1 < y2 <= 1 are needed")
        return left, top, right, bottom


class JsonOptions(JudgedOptions):
    """Options in JSON, where numbers are numbers; in a form they are texts."""

    @field_validator("k", "expand", "alpha", mode="before")
    @classmethod
    def _numbers(cls, value: object) -> object:
        if isinstance(value, bool | str):
            raise PydanticCustomError("number", "Input should be a number")
        return value


class IdSearch(JsonOptions):
    """A search by an item of the gallery."""

    id: str = Field(min_length=1, max_length=LONGEST_ID)


class VectorSearch(JsonOptions):
    """A search by a vector of the gallery's encoder.

    Attributes:
        vector: as the encoder gives it, of any length above 0.
        fingerprint: of the encoder it is from, as a gallery's description has it; that of another is refused.
    """

    vector: list[Number] = Field(
        min_length=1, max_length=16_384, json_schema_extra={"contains": {"not": {"const": 0}}, "minContains": 1}
    )
    fingerprint: str | None = Field(default=None, max_length=200)


class QueryBody(BaseModel):
    """What was asked by: the id and labels of an item, if it was one."""

    id: str | None
    labels: list[str] | None


@dataclass(frozen=True)
class VerdictBody(Verdict):
    """Whether the query belongs to the collection, and has a match in it."""

    policy: Policy


class ItemBody(BaseModel):
    """An item: labels finest first, addresses of its image."""

    id: str
    labels: list[str]
    metadata: dict[str, Value]
    image: str | None
    thumbnail: str | None


class ResultBody(ItemBody):
    """An item that was found, how similar it is, and how many label levels it shares with the query, coarsest first."""

    score: float
    relation: int | None


class Took(BaseModel):
    """Milliseconds, waiting included."""

    encode_ms: float
    search_ms: float


class AnswerBody(BaseModel):
    """What was found."""

    gallery: str
    generation: int
    query: QueryBody
    verdict: VerdictBody | None
    results: list[ResultBody]
    took: Took


class ValueCount(BaseModel):
    """A value of a field and the number of items that have it."""

    value: str | bool
    count: int


class FieldBody(BaseModel):
    """A field of the items' metadata: its most frequent values, or the range of its numbers."""

    name: str
    kind: Literal["text", "number", "bool"]
    values: list[ValueCount] | None
    min: float | None
    max: float | None


class GalleryBody(BaseModel):
    """A gallery: what it holds, and what can be asked of it."""

    name: str
    items: int
    dim: int
    metric: str
    encoder: str
    fingerprint: str
    generation: int
    levels: list[str]
    fields: list[FieldBody]
    rejector: bool
    writable: bool


class Written(BaseModel):
    """An item that was written, and the generation of the gallery that has it."""

    gallery: str
    generation: int
    item: ItemBody


class ProblemBody(BaseModel):
    """An error, as RFC 9457 has it."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[dict[str, Any]] | None = None


class Health(BaseModel):
    """How the service is."""

    status: Literal["ok"]


class Ready(BaseModel):
    """Whether every gallery can be searched; which one cannot is in the log."""

    status: Literal["ready", "not ready"]


def metadata_schema() -> dict[str, Any]:
    """What :func:`checked_metadata_text` takes, as JSON Schema."""
    keys = {"minLength": 1, "maxLength": LONGEST_KEY, "pattern": r"^[^\x00]+$", "not": {"enum": list(NOT_SET)}}
    text = {"type": "string", "maxLength": LONGEST_VALUE, "pattern": r"^[^\x00]*$"}
    number = {"type": "number", "minimum": LEAST, "maximum": MOST}
    values = {"anyOf": [text, number, {"type": "boolean"}, {"type": "null"}]}
    return {"type": "object", "maxProperties": MOST_KEYS, "propertyNames": keys, "additionalProperties": values}


def checked_metadata_text(text: str | None) -> dict[str, Value] | None:
    """What a JSON object of a form says of an item; None where there is none."""
    if text is None:
        return None
    try:
        found = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise Problem(422, f"metadata: not JSON: {error}") from error
    if not isinstance(found, dict) or len(found) > MOST_KEYS:
        raise Problem(422, f"metadata: a JSON object of at most {MOST_KEYS} keys is needed")
    if taken := sorted({*NOT_SET} & found.keys()):
        raise Problem(422, f"metadata: these keys are not for requests to set: {', '.join(taken)}")
    for key, value in found.items():
        if not 0 < len(key) <= LONGEST_KEY or "\0" in key:
            raise Problem(422, f"metadata: a key of 1 to {LONGEST_KEY} letters without NUL is needed, found {key[:100]!a}")
        if not _is_plain(value):
            fits = (
                f"a text of at most {LONGEST_VALUE} letters without NUL, a number of 64 bits, true, false or null is needed"
            )
            raise Problem(422, f"metadata: {key!a}: {fits}")
    return found


def _is_plain(value: object) -> bool:
    if isinstance(value, str):
        return len(value) <= LONGEST_VALUE and "\0" not in value
    if isinstance(value, int | float):
        return LEAST <= value <= MOST  # not NaN either
    return value is None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise Problem(422, f"metadata: the key {twice[:100]!a} is there twice")
    return found
