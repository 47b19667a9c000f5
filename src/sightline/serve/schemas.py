"""Bodies of requests and responses."""

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, Any, Literal
from urllib.parse import unquote

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, field_validator
from pydantic_core import PydanticCustomError
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from sightline.data.manifest import BOX, LONGEST_LISTED, MOST_LISTED
from sightline.gallery.gallery import FILE_KEYS, LARGEST, ONE_VALUE, SMALLEST, Value, may_be_id
from sightline.gallery.relabel import LONGEST_LABEL
from sightline.ood.rejector import Policy, Verdict

MEDIA_TYPE = "application/problem+json"
RETRY = {"Retry-After": "1"}
CLOSE = {"Connection": "close"}
Crop = tuple[float, float, float, float]  # left, top, right and bottom as fractions of width and height


class Problem(HTTPException):
    """An error response: a status and a sentence."""


def problem_response(
    status: int, detail: str, headers: Mapping[str, str] | None = None, errors: list[dict[str, Any]] | None = None
) -> JSONResponse:
    """A problem document (RFC 9457)."""
    body = {"type": "about:blank", "title": HTTPStatus(status).phrase, "status": status, "detail": detail}
    body |= {} if errors is None else {"errors": errors}
    return JSONResponse(body, status, dict(headers or {}), MEDIA_TYPE)


LONGEST_ID = 1024
OF_THE_IMAGE = (*FILE_KEYS, *BOX)  # belongs to the image; requests may not set it
NOT_SET = ("id", *OF_THE_IMAGE)  # metadata keys that requests may not set
MOST_KEYS, LONGEST_KEY, LONGEST_VALUE = 100, 200, 10_000  # of an item's metadata
ID_SCHEMA: dict[str, Any] = {
    "minLength": 1,
    "maxLength": LONGEST_ID,
    "pattern": r"^(?:\.{0,2}[^.\x00]|\.{3})[^\x00]*$",  # not . or .., which an address cannot express
}
SHARE = r"(?:0(?:\.[0-9]{1,20})?|1(?:\.0{1,20})?)"
CROP = rf"^(?:{SHARE}(?:,{SHARE}){{3}})?$"
Number = Annotated[float, Field(ge=-1e6, le=1e6, allow_inf_nan=False, strict=True)]


def check_id(id_: str) -> str:
    """The id, if a gallery can store it and an address can express it."""
    if len(id_) > LONGEST_ID or id_ in (".", "..") or not may_be_id(id_):
        raise Problem(422, f"id must have 1 to {LONGEST_ID} characters without NUL, and must not be '.' or '..'")
    return id_


def id_in_path(encoded: str) -> str:
    """The id from its URL-encoded form in a path."""
    try:
        return check_id(unquote(encoded, errors="strict"))
    except UnicodeDecodeError as error:
        raise Problem(422, "id: not UTF-8") from error


def parse_metadata(text: str | None) -> dict[str, Value] | None:
    """The metadata of an item from its JSON form field; None if absent."""
    if text is None:
        return None
    try:
        found = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise Problem(422, f"metadata: not JSON: {error}") from error
    if not isinstance(found, dict) or len(found) > MOST_KEYS:
        raise Problem(422, f"metadata must be a JSON object with at most {MOST_KEYS} keys")
    if taken := sorted({*NOT_SET} & found.keys()):
        raise Problem(422, f"metadata: reserved keys: {', '.join(taken)}")
    # The gallery checks the types of values.
    texts = [(key, str(one)) for key, value in found.items() for one in (value if isinstance(value, list) else [value])]
    if odd := [
        key
        for key, text in [*((key, "") for key in found), *texts]
        if not 0 < len(key) <= LONGEST_KEY or len(text) > LONGEST_VALUE or "\0" in key + text
    ]:
        fits = f"keys must have 1 to {LONGEST_KEY} characters, values at most {LONGEST_VALUE}, without NUL"
        raise Problem(422, f"metadata: {odd[0][:100]!a}: {fits}")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    counts = Counter(name for name, _ in pairs)
    if twice := [name for name, count in counts.items() if count > 1]:
        raise Problem(422, f"metadata: duplicate key {twice[0][:100]!a}")
    return dict(pairs)


SCALARS: list[dict[str, Any]] = [
    {"type": "string", "maxLength": LONGEST_VALUE, "pattern": r"^[^\x00]*$"},
    {"type": "number", "minimum": SMALLEST, "maximum": LARGEST},
    {"type": "boolean"},
    {"type": "null"},
]
LIST = {
    "type": "array",
    "minItems": 1,
    "maxItems": MOST_LISTED,
    "uniqueItems": True,
    "items": {"type": "string", "minLength": 1, "maxLength": LONGEST_LISTED, "pattern": r"^[^\x00]*$"},
}
METADATA_SCHEMA = {
    "type": "object",
    "maxProperties": MOST_KEYS,
    "propertyNames": {
        "minLength": 1,
        "maxLength": LONGEST_KEY,
        "pattern": r"^[^\x00]+$",
        "not": {"enum": list(NOT_SET)},
    },
    "patternProperties": {f"^(?:{ONE_VALUE.pattern})$": {"anyOf": SCALARS}},
    "additionalProperties": {"anyOf": [*SCALARS, LIST]},
}
ItemId = Annotated[str, AfterValidator(check_id), Field(json_schema_extra=ID_SCHEMA)]
Metadata = Annotated[dict[str, Value] | None, BeforeValidator(parse_metadata), WithJsonSchema(METADATA_SCHEMA)]
GalleryField = Annotated[str | None, Field(max_length=200)]
ImageFile = Annotated[bytes, Field(min_length=1, description="JPEG, PNG, WebP, GIF or BMP.")]


class RequestFields(BaseModel):
    """The fields of a form or JSON body; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid")

    @field_validator("*", mode="before")
    @classmethod
    def _nothing(cls, value: object) -> object:
        """An empty form field counts as missing."""
        return None if value == "" else value


class NewItem(RequestFields):
    """A form that adds an item: its image, its id, its metadata as a JSON object, the gallery's name."""

    image: ImageFile
    id: ItemId
    metadata: Metadata = None
    gallery: GalleryField = None


class ChangedItem(RequestFields):
    """A form that replaces an item; fields left out keep their value."""

    image: ImageFile | None = None
    metadata: Metadata = None


class SearchOptions(RequestFields):
    """Options of every search.

    Attributes:
        gallery: name of the gallery; default: the first.
        k: number of results.
        where: a filter on metadata, such as ``label_1 == "Flags" and year >= 2020``.
        expand: neighbours for query expansion.
        alpha: power of similarity that weights them.
        rerank: re-ranking method.
        policy: for out-of-distribution queries: ``reject`` returns no results, ``flag`` returns them with the verdict,
            ``ignore`` skips the rejector; default: the rejector's.
    """

    gallery: GalleryField = None
    k: int = Field(default=30, ge=1, le=200)
    where: str | None = Field(default=None, max_length=10_000, json_schema_extra={"format": "sightline-filter"})
    expand: int = Field(default=0, ge=0, le=100)
    alpha: float = Field(default=2.0, ge=0, le=100, allow_inf_nan=False)
    rerank: Literal["kreciprocal", ""] | None = None
    policy: Literal[Policy, ""] | None = None


class SearchForm(SearchOptions):
    """A form that searches by an image.

    Attributes:
        image: the file.
        crop: ``x1,y1,x2,y2`` as fractions of the upright image's width and height: search by this part only.
    """

    image: ImageFile
    crop: str | None = Field(default=None, pattern=CROP, json_schema_extra={"format": "sightline-crop"})

    def part(self) -> Crop | None:
        """The part to search by."""
        if self.crop is None:
            return None
        left, top, right, bottom = (float(side) for side in self.crop.split(","))
        if not (left < right and top < bottom):
            raise Problem(422, f"crop must satisfy 0 <= x1 < x2 <= 1 and 0 <= y1 < y2 <= 1, got {self.crop}")
        return left, top, right, bottom


class JsonOptions(SearchOptions):
    """Options in JSON, where numbers must be numbers; in a form they are strings."""

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
        vector: from the gallery's encoder, of any length above 0.
        fingerprint: of the encoder that made it; refused if it is not the gallery's.
    """

    vector: list[Number] = Field(
        min_length=1, max_length=16_384, json_schema_extra={"contains": {"not": {"const": 0}}, "minContains": 1}
    )
    fingerprint: str | None = Field(default=None, max_length=200)


class QueryBody(BaseModel):
    """The query: if it is an item, its id, its labels, and its lists such as codes by field."""

    id: str | None
    labels: list[str] | None
    lists: dict[str, list[str]] | None


@dataclass(frozen=True)
class VerdictBody(Verdict):
    """Whether the query belongs to the collection, and has a match in it."""

    policy: Policy


class ItemBody(BaseModel):
    """An item: labels (finest first), metadata, and the addresses of its image."""

    id: str
    labels: list[str]
    metadata: dict[str, Value]
    image: str | None
    thumbnail: str | None


class ResultBody(ItemBody):
    """A result: its similarity, and how many label levels it shares with the query, counted from the coarsest."""

    score: float
    relation: int | None


class BrowsedItem(ItemBody):
    """An item, and its cosine to the mean of the other items of its class; None where there is no other."""

    typicality: float | None


class BrowseBody(BaseModel):
    """One page of a gallery's items, and how many items there are to page through."""

    gallery: str
    total: int
    items: list[BrowsedItem]


class Took(BaseModel):
    """Milliseconds, including time in queues."""

    encode_ms: float
    search_ms: float


class AnswerBody(BaseModel):
    """The results; ``candidates`` is the number of items that were ranked: all, or those that pass the filter."""

    gallery: str
    generation: int
    query: QueryBody
    verdict: VerdictBody | None
    results: list[ResultBody]
    candidates: int
    took: Took


class ValueCount(BaseModel):
    """A value of a field and the number of items that have it."""

    value: str | bool
    count: int


class FieldBody(BaseModel):
    """A field of the items' metadata: its most frequent values, or the range of its numbers; see `/v1/codes` for lists."""

    name: str
    kind: Literal["text", "number", "bool", "list"]
    values: list[ValueCount] | None
    min: float | None
    max: float | None


class CodeCount(BaseModel):
    """A code, the number of items that have it or one below it, and whether there are codes below it."""

    code: str
    count: int
    has_more: bool


class CodesBody(BaseModel):
    """The codes one level below each code that was asked for, most frequent first; the first level under an empty code."""

    gallery: str
    field: str
    levels: dict[str, list[CodeCount]]


class GalleryBody(BaseModel):
    """A gallery: its size, encoder, label levels and fields, and what it supports."""

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
    """The item as written, and the gallery's generation."""

    gallery: str
    generation: int
    item: ItemBody


class LabelBody(BaseModel, extra="forbid"):
    """The class of an item, as its finest label; null takes a correction back."""

    label: Annotated[str, Field(min_length=1, max_length=LONGEST_LABEL, pattern=r"^[^\x00]*$")] | None


class Relabelled(Written):
    """The item as written, and whether no other item has its label."""

    is_new_label: bool


class ProblemBody(BaseModel):
    """An error (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str
    errors: list[dict[str, Any]] | None = None


class Health(BaseModel):
    """Health of the process."""

    status: Literal["ok"]


class Ready(BaseModel):
    """Whether every gallery can be searched; the log names those that cannot."""

    status: Literal["ready", "not ready"]
