"""Errors as RFC 9457 problem documents."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

MEDIA_TYPE = "application/problem+json"


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
