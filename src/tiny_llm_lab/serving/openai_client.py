"""A client's side of OpenAI's API: its errors, the events of a stream, and which model is served."""

import asyncio
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import httpx2

from tiny_llm_lab.types import UserError

_MOST: Final = 300  # characters


class ServerError(Exception):
    """The server answered a request with an error; the message is its own."""


def error_message(error: object) -> str:
    """The message of OpenAI's error object, or whatever there is instead, in one line."""
    message = error.get("message", error) if isinstance(error, dict) else error
    return " ".join(str(message).split())[:_MOST] or "the server sent no message"


def refusal(status: int, body: bytes) -> str:
    """The status and the message of a refused request."""
    try:
        content = json.loads(body)
        error = content.get("error", content) if isinstance(content, dict) else content
    except (ValueError, RecursionError):
        error = body[:_MOST].decode(errors="replace")
    return f"HTTP {status}: {error_message(error)}"


def failure(error: Exception) -> str:
    """An error of the connection in one line."""
    return " ".join(str(error).split()) or type(error).__name__


# A chunk of an answer has a few hundred bytes; its log probabilities add a few thousand.
MAX_EVENT_BYTES: Final = 4 * 2**20
DONE: Final = b"[DONE]"


def events_of(received: Iterable[bytes], on_comment: Callable[[str], object] = len) -> Iterator[bytes]:
    """The data of every event of a stream except the last one, [DONE]."""
    parser = EventParser(on_comment)
    for each in received:
        yield from (data for data in parser.feed(each) if data.strip() != DONE)
    yield from (data for data in parser.close() if data.strip() != DONE)


class EventParser:
    """Turns bytes into the `data` of events; other fields are left out.

    Lines end with LF or CRLF and may come in any number of pieces.
    """

    def __init__(self, on_comment: Callable[[str], object] = len) -> None:
        self._on_comment = on_comment
        self._rest = b""
        self._data: list[bytes] = []
        self._num_bytes = 0

    def feed(self, received: bytes) -> Iterator[bytes]:
        """The data of every event that `received` completes; UserError for one that never ends."""
        *lines, self._rest = (self._rest + received).split(b"\n")
        for line in lines:
            yield from self._line(line.removesuffix(b"\r"))
        if self._num_bytes + len(self._rest) > MAX_EVENT_BYTES:
            raise UserError(f"the server sent an event of more than {MAX_EVENT_BYTES // 2**20} MB")

    def close(self) -> Iterator[bytes]:
        """The data of an event that the end of the stream cut off: some servers end without a blank line."""
        yield from self._line(self._rest)
        yield from self._line(b"")
        self._rest = b""

    def _line(self, line: bytes) -> Iterator[bytes]:
        if line.startswith(b"data:"):
            data = line[5:].removeprefix(b" ")
            self._data.append(data)
            self._num_bytes += len(data)
        elif line.startswith(b":"):
            self._on_comment(line[1:].decode(errors="replace").strip())
        elif not line and self._data:
            yield b"\n".join(self._data)
            self._data, self._num_bytes = [], 0


_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class ServedModel:
    """A model, and the most tokens of a request if the server lists them."""

    name: str
    max_model_len: int | None = None


def base_of(url: str) -> httpx2.URL:
    """The server's URL without /v1; UserError if it is not a URL."""
    try:
        base = httpx2.URL(url.rstrip("/").removesuffix("/v1"))
        if base.scheme not in ("http", "https") or not base.host:
            raise httpx2.InvalidURL("it needs http:// or https://, and a host")
    except (httpx2.InvalidURL, UnicodeError) as error:
        raise UserError(f"{url} is not a URL ({error}): write one such as http://127.0.0.1:8000") from None
    return base


def with_key(key: str | None, headers: Mapping[str, str] | None = None) -> dict[str, str]:
    """`headers` with the one for an API key. Raises UserError for a key that no header can have."""
    if key and not (key.isascii() and key.isprintable()):
        raise UserError("the API key has a line break, or a letter that is not ASCII: copy it again")
    return dict(headers or {}) | ({"Authorization": f"Bearer {key}"} if key else {})


def first_model(
    url: str,
    cures: tuple[str, str],
    headers: Mapping[str, str] | None = None,
    *,
    model: str | None = None,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> ServedModel:
    """The first model that the server at `url` lists, or `model`.

    The server is asked in either case. Raises UserError, with the first of `cures` where no server answers,
    the second where it lists no model.
    """
    base, (start, name) = base_of(url), cures

    async def ask() -> tuple[int, bytes]:
        async with httpx2.AsyncClient(base_url=base, headers=headers, transport=transport) as client:
            answer = await client.get("/v1/models", timeout=_TIMEOUT_S)
            return answer.status_code, answer.content

    try:
        status, body = asyncio.run(ask())
    except httpx2.HTTPError as error:
        raise UserError(f"cannot reach a server at {url} ({failure(error)}): {start}") from None
    if model is not None:
        return ServedModel(model)
    if status != 200:
        cure = "set its key in OPENAI_API_KEY" if status in (401, 403) else name
        raise UserError(f"{url} does not list its models ({refusal(status, body)}): {cure}")
    try:
        first = json.loads(body)["data"][0]
        return ServedModel(str(first["id"]), first.get("max_model_len"))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{url} does not list a model: {name}") from None
