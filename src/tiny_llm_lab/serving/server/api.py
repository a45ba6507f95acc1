"""What routes work with: a model that is ready to answer, and errors in OpenAI's format or Anthropic's."""

import asyncio
import functools
import json
import logging
import re
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Annotated, Any, Final, cast

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from tiny_llm_lab.runtime.models.recommended import recommended_sampling
from tiny_llm_lab.runtime.pictures.contents import Contents, PartError
from tiny_llm_lab.runtime.pictures.processor import PictureProcessor
from tiny_llm_lab.serving.async_engine.listener import EngineLink
from tiny_llm_lab.serving.async_engine.messages import EngineStoppedError
from tiny_llm_lab.serving.async_engine.model import RunningModel, on_thread, run_model
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.serving.server.live.recorder import LiveView
from tiny_llm_lab.serving.server.metrics.engine_metrics import EngineMetrics
from tiny_llm_lab.serving.server.prompts.watch import PromptWatch
from tiny_llm_lab.serving.server.settings import ANY_NAME, ChatSettings, RequestLimits
from tiny_llm_lab.types import PriorityClass, SamplingParams, UserError
from tiny_llm_lab.types.request import PRIORITY_CLASSES


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
CLASS_HEADER: Final = "x-priority-class"
_READERS: Final = 4  # threads that fetch and decode pictures
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
    " after validation": "",
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
        message = self.message[:_LONGEST_MESSAGE] + "…" * (len(self.message) > _LONGEST_MESSAGE)
        if is_anthropic(path):
            kind = _ANTHROPIC.get(self.status, INVALID if self.status < 500 else "api_error")
            return {"type": "error", "error": {"type": kind, "message": message}}
        return {"error": {"message": message, "type": self.type, "param": self.param, "code": self.code}}

    def response(self, path: str = "") -> Response:
        """The answer of a route."""
        return json_response(self.body(path), self.status, self.headers)


def refused(param: str, complaint: str) -> ApiError:
    """Status 400 for the field `param`, whose name begins the message."""
    return ApiError(400, f"{param} {complaint}", param=param)


def unknown_model(name: object, names: Iterable[str], more: str = "") -> ApiError:
    """Status 404 for the model `name`, which is none of `names`; `more` goes on with the advice."""
    here = ", ".join(names)
    message = f"the model {name!r} does not exist: this server has {here}: send one of these names{more}"
    return ApiError(404, message, param="model", code="model_not_found")


def is_anthropic(path: str) -> bool:
    """Whether a route speaks Anthropic's API, which has errors of its own form."""
    return path.startswith("/v1/messages")


def json_response(
    body: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """`body` as JSON. Text that is not valid Unicode, which a client may send as escapes, does not fail."""
    return Response(to_json(body), status, headers, "application/json")


def model_card(name: str, root: str, created_s: int, **more: object) -> Mapping[str, object]:
    """A model in OpenAI's list of models."""
    card = {"id": name, "object": "model", "created": created_s, "owned_by": "tiny-llm", "root": root}
    return {**card, "parent": None, **more}


class WrittenList:
    """A list for `to_json`. Each value is written when it is added: all at the end could take seconds.

    Sets written: a comma and the JSON of each value, in turn.
    """

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def append(self, value: object) -> None:
        """Raises ApiError as `to_json`."""
        self.written += b",", to_json(value)


def to_json(body: object) -> bytes:
    """Compact JSON in UTF-8. Raises ApiError for NaN and infinite numbers, which JSON cannot write."""
    marks: list[tuple[bytes, WrittenList]] = []

    def marked(value: object) -> str:
        if not isinstance(value, WrittenList):
            raise TypeError(f"{type(value).__name__} has no JSON")
        mark = uuid.uuid4().hex
        marks.append((f'"{mark}"'.encode(), value))
        return mark

    try:
        text = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False, default=marked)
    except ValueError:
        raise not_finite() from None
    rest, parts = text.encode("utf-8", "replace"), list[bytes]()
    for mark, values in marks:
        before, _, rest = rest.partition(mark)
        parts += [before, b"[", *values.written[1:], b"]"]
    return b"".join([*parts, rest])


def not_finite() -> ApiError:
    """The model computed something that is no number."""
    return ApiError(500, "the model computed NaN or infinity: check its weights", SERVER, code="engine_error")


def as_api_error(error: BaseException) -> ApiError:
    """What the client reads about `error`; a failure of the server comes without its details."""
    match error:
        case ApiError():
            return error
        case PartError():
            return ApiError(400, str(error), param=error.place)
        case UserError():
            # Its beginning may name a field: a token id in logit_bias must be 0 or more.
            named = (word for word in str(error).split()[:5] if word in _SAMPLING)
            return ApiError(400, str(error), param=next(named, None))
        case EngineStoppedError():
            headers = {"Retry-After": str(error.retry_s)}
            return ApiError(503, str(error), SERVER, code="unavailable", headers=headers)
        case RecursionError():
            return ApiError(400, _NESTED)
    return ApiError(500, "the server failed on this request: its log says why", SERVER, code="internal_error")


@contextmanager
def blamed(param: str | None) -> Iterator[None]:
    """Raise a UserError of the block as an ApiError about the field `param`, unless it names another one."""
    try:
        yield
    except UserError as error:
        told = as_api_error(error)
        if told.param in (None, "structured_outputs"):
            told.param = param or told.param
        raise told from None


def add_error_handlers(app: FastAPI) -> None:
    """Answer every error of `app` in one format."""

    async def answered(request: Request, error: Exception) -> Response:
        return _of_route(request, error).response(request.url.path)

    own = (ApiError, UserError, EngineStoppedError, RecursionError)
    for kind in (*own, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answered)


def _of_route(request: Request, error: Exception) -> ApiError:
    match error:
        case RequestValidationError():
            return _validation_error(error.errors())
        case HTTPException(status_code=status):
            kind = INVALID if status < 500 else SERVER
            message = _told(request, error)
            return ApiError(status, message, kind, code=_CODES.get(status), headers=error.headers or {})
    return as_api_error(error)


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
    said = re.sub(r"\b[A-Z]\w+ should\b", "must", complaint)  # Input, List, String
    return functools.reduce(lambda said, each: said.replace(*each), _WORDS.items(), said)


def _is_form(part: object) -> bool:
    return part in _FORMS or "[" in str(part)


def _validation_error(found: Sequence[Mapping[str, Any]]) -> ApiError:
    """The first complaint; `param` is the field, as in messages[0].content."""
    first = found[0]
    # If a field has several forms, the place also names the form that was tried.
    place = [part for part in first["loc"] if part != "body" and not _is_form(part)]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is not valid JSON: {first.get('ctx', {}).get('error', first['msg'])}")
    param = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in place).lstrip(".")
    # The forms of one field, each of which has its complaint, and no other field's.
    whole = next((i for i, part in enumerate(first["loc"]) if _is_form(part)), None)
    alike = [each for each in found if each["loc"][:whole] == first["loc"][:whole]]
    complaints = dict.fromkeys(_in_words(each["msg"]) for each in alike)
    message = ", or: ".join(list(complaints)[:_MOST_FORMS])
    return ApiError(400, f"{param or 'the body'}: {message}", param=param or None)


@dataclass(frozen=True, kw_only=True)
class ServedModel(RunningModel):
    """A running model with its names, and the server's own settings for it."""

    names: tuple[str, ...]  # names that requests may use; answers give the first
    presets: Mapping[str, float] = field(default_factory=dict)  # sampling defaults from the checkpoint
    limits: RequestLimits = RequestLimits()
    chat: ChatSettings = ChatSettings()
    processor: PictureProcessor | None = None  # of pictures; None: the model reads text only
    readers: Executor = field(default_factory=lambda: ThreadPoolExecutor(_READERS, "picture"))
    live: LiveView = field(default_factory=LiveView)
    metrics: EngineMetrics = field(default_factory=EngineMetrics)
    watch: PromptWatch = field(default_factory=PromptWatch)
    num_ranks: int = 1  # processes that compute the model together
    created_s: int = field(default_factory=lambda: int(time.time()))

    has_any_name: bool = False  # every name is answered

    def contents(self) -> Contents:
        """What reads the messages of a new request."""
        return Contents(self.chat.most_pictures, self.processor is not None)

    def priority_class(self, name: str | None, headers: Mapping[str, str] = {}) -> PriorityClass:
        """Of a request for the model `name`: those of programs that nobody waits for are "batch".

        The header x-priority-class says it too. Raises ApiError for a class that is none.
        """
        if (asked := headers.get(CLASS_HEADER, "interactive")) not in PRIORITY_CLASSES:
            raise refused(CLASS_HEADER, f"must be one of {', '.join(PRIORITY_CLASSES)}, not {asked!r}")
        is_background = any(fnmatchcase(name or "", each) for each in self.limits.background)
        return "batch" if is_background or asked == "batch" else "interactive"

    def require_name(self, name: str | None) -> None:
        """Raise ApiError 404 for a name that is not served; None is fine."""
        is_known = name is None or name in self.names or self.has_any_name
        if not is_known and self.priority_class(name) == "interactive":
            raise unknown_model(name, self.names, ", or serve it under yours with --served-model-name")


def served_names(names: Sequence[str], settings: ModelSettings) -> tuple[str, ...]:
    """What requests may call a model: `names` without "*", or its own name. Answers give the first."""
    return tuple(each for each in names if each != ANY_NAME) or (settings.model,)


async def start_model(
    settings: ModelSettings,
    names: Sequence[str] = (),
    limits: RequestLimits = RequestLimits(),
    chat: ChatSettings = ChatSettings(),
    live: LiveView | None = None,
    make_link: Callable[[ModelSettings], EngineLink] = on_thread,
) -> ServedModel:
    """Load the model and start its engine; `names` () is the model's own name, "*" among them any other.

    Raises UserError for a model or settings that cannot be served.
    """
    live, metrics = live or LiveView(), EngineMetrics()
    watch = PromptWatch(live.recorder.explained, metrics.explained)
    running = await run_model(make_link(settings), (watch, live.recorder, metrics))
    if running.tokenizer.has_chat_template:
        facts = await asyncio.to_thread(lambda: running.tokenizer.template_facts)
        logging.getLogger("tiny_llm.server").log(
            logging.WARNING if facts.complaint else logging.INFO, f"chat template: {facts.line()}"
        )
    folder, own = running.facts.folder, running.facts.model.pictures
    return ServedModel(
        processor=None if own is None else await asyncio.to_thread(PictureProcessor, folder, own),
        engine=running.engine,
        tokenizer=running.tokenizer,
        names=served_names(names, settings),
        has_any_name=ANY_NAME in names,
        presets=recommended_sampling(running.facts.folder) | json.loads(chat.override_generation_config),
        limits=limits,
        chat=chat,
        live=live,
        metrics=metrics,
        watch=watch,
        num_ranks=settings.tensor_parallel_size,
    )


def _served(request: Request) -> ServedModel:
    return cast(ServedModel, request.app.state.served)


Served = Annotated[ServedModel, Depends(_served)]
