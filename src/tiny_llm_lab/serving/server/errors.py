"""Errors in OpenAI's format, {"error": {"message", "type", "param", "code"}}, or in Anthropic's."""

import functools
import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from tiny_llm_lab.serving.async_engine.messages import EngineStoppedError
from tiny_llm_lab.types import SamplingParams, UserError


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorAnswer(BaseModel):
    """The body of every error."""

    error: ErrorDetail


_LOG: Final = logging.getLogger("tiny_llm.server")
INVALID: Final = "invalid_request_error"
SERVER: Final = "server_error"
_CODES: Final = {404: "not_found", 405: "method_not_allowed"}
_ANTHROPIC: Final = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_SAMPLING: Final = {each.name for each in fields(SamplingParams)}
# How /openapi.json describes errors.
ERROR_RESPONSES: Final[dict[int | str, dict[str, Any]]] = {
    "4XX": {"model": ErrorAnswer},
    "5XX": {"model": ErrorAnswer},
}
_NESTED: Final = "the JSON is nested too deeply: flatten it"
_FORMS: Final = ("str", "int", "float", "bool")
_MOST_FORMS: Final = 4
_WORDS: Final = {
    " or object to extract fields from": "",
    "Input should be": "must be",
    "Field required": "is missing",
    "Value error, ": "",
    "a valid dictionary": "a JSON object",
    "a valid ": "a ",
    "a integer": "a whole number",
}
_LONGEST_MESSAGE: Final = 1000  # a message may quote the request


@dataclass
class ApiError(Exception):
    """An error that is the answer to a request."""

    status: int
    message: str
    type: str = INVALID
    param: str | None = None
    code: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self, path: str = "") -> dict[str, Any]:
        """The JSON of the answer of a route, and the data of a stream's last event."""
        message = (
            self.message if len(self.message) <= _LONGEST_MESSAGE else self.message[:_LONGEST_MESSAGE] + "…"
        )
        if is_anthropic(path):
            kind = _ANTHROPIC.get(self.status, INVALID if self.status < 500 else "api_error")
            return {"type": "error", "error": {"type": kind, "message": message}}
        return {"error": {"message": message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self, path: str = "") -> Response:
        """The answer of a route."""
        return json_response(self.body(path), self.status, self.headers)


def is_anthropic(path: str) -> bool:
    """Whether a route speaks Anthropic's API, which has errors of its own form."""
    return path.startswith("/v1/messages")


def json_response(
    body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """`body` as JSON. Text that is not valid Unicode, which a client may send as escapes, does not fail."""
    return Response(to_json(body), status, headers, "application/json")


def to_json(body: object) -> bytes:
    """Compact JSON in UTF-8. Raises ApiError for NaN and infinite numbers, which JSON cannot write."""
    try:
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except ValueError:
        raise not_finite() from None
    return text.encode("utf-8", "replace")


def not_finite() -> ApiError:
    """The model computed something that is no number."""
    return ApiError(500, "the model computed NaN or infinity: check its weights", SERVER, code="engine_error")


def as_api_error(error: BaseException) -> ApiError:
    """What the client reads about `error`; a failure of the server comes without its details."""
    match error:
        case ApiError():
            return error
        case UserError():
            first = str(error).partition(" ")[0]
            return ApiError(400, str(error), param=first if first in _SAMPLING else None)
        case EngineStoppedError():
            headers = {"Retry-After": str(error.retry_s)}
            return ApiError(503, str(error), SERVER, code="unavailable", headers=headers)
        case RecursionError():
            return ApiError(400, _NESTED)
    return ApiError(500, "the server failed on this request: its log says why", SERVER, code="internal_error")


def add_error_handlers(app: FastAPI) -> None:
    """Answer every error of `app` in one format."""

    async def known(request: Request, error: Exception) -> Response:
        return as_api_error(error).response(request.url.path)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return _validation_error(error.errors()).response(request.url.path)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        kind = INVALID if error.status_code < 500 else SERVER
        return ApiError(
            error.status_code,
            _told(request, error),
            kind,
            code=_CODES.get(error.status_code),
            headers=error.headers or {},
        ).response(request.url.path)

    for kind in (ApiError, UserError, EngineStoppedError, RecursionError):
        app.add_exception_handler(kind, known)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(Exception, known)


def _told(request: Request, error: HTTPException) -> str:
    match error.status_code:
        case 404:
            return f"this server has no {request.url.path}: /openapi.json lists its routes"
        case 405:
            return f"{request.url.path} does not take {request.method}"
    # FastAPI's words are the same for every body that json.loads does not end with its own error.
    match error.__cause__:
        case UnicodeDecodeError():
            return "the body is not UTF-8: send JSON in UTF-8"
        case RecursionError():
            return _NESTED
        case ValueError():
            return "a number in the body has too many digits: send fewer, or a string"
    return str(error.detail)


def _in_words(complaint: str) -> str:
    """A complaint of pydantic as we put it: must be a JSON object, is missing."""
    return functools.reduce(lambda said, each: said.replace(*each), _WORDS.items(), complaint)


def _validation_error(found: Sequence[Mapping[str, Any]]) -> ApiError:
    """The first complaint; `param` is the field, as in messages[0].content."""
    first = found[0]
    # If a field has several forms, the place also names the form that was tried.
    place = [part for part in first["loc"] if part != "body" and part not in _FORMS and "[" not in str(part)]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not valid JSON: {first.get('ctx', {}).get('error', first['msg'])}")
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    complaints = dict.fromkeys(
        _in_words(each["msg"]) for each in found if each["loc"][:2] == first["loc"][:2]
    )
    message = ", or: ".join(list(complaints)[:_MOST_FORMS])
    return ApiError(400, f"{param or 'the body'}: {message}", param=param or None)
