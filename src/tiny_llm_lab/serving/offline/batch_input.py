"""The input of a batch: OpenAI's batch file format, or text with a prompt a line."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tiny_llm_lab.types import UserError

URLS: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/rerank",
)
MAX_LINE_BYTES: Final = 16 * 2**20
_SKIPPED_AT_A_TIME: Final = 2**20
_FORM: Final = (
    'write {"custom_id": "1", "method": "POST", "url": "/v1/completions", "body": {"prompt": "Hello"}}'
)


@dataclass(frozen=True)
class BatchRequest:
    """A line that is a request."""

    line: int  # from 1
    custom_id: str
    url: str
    body: dict[str, Any]


@dataclass(frozen=True)
class BadLine:
    """A line that is not a request, and why."""

    line: int
    custom_id: str | None  # None if we can't read one
    reason: str


BatchLine = BatchRequest | BadLine


@dataclass
class InputIndex:
    """The custom_id of each line."""

    custom_ids: dict[int, str | None] = field(default_factory=dict)  # by line; blank lines are not in it

    def has(self, line: int, custom_id: object) -> bool:
        """Whether that line of the input has that custom_id; None for a line without one."""
        return line in self.custom_ids and self.custom_ids[line] == custom_id


def read_lines(path: Path) -> Iterator[BatchLine]:
    """The lines of a file, read lazily, without blank lines.

    If the first one does not look like JSON, the file is text, and each line is a prompt. Raises UserError
    when the file cannot be read.
    """
    is_text: bool | None = None
    try:
        with path.open("rb") as file:
            number = 0
            while raw := file.readline(MAX_LINE_BYTES + 1):
                number += 1
                if len(raw) > MAX_LINE_BYTES:
                    while raw and not raw.endswith(b"\n"):
                        raw = file.readline(_SKIPPED_AT_A_TIME)
                    yield BadLine(number, None, f"the line is longer than {MAX_LINE_BYTES} bytes: split it")
                elif raw.strip():
                    is_text = raw.lstrip()[:1] not in (b"{", b"[", b'"') if is_text is None else is_text
                    yield (_as_prompt if is_text else parse_line)(number, raw)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def _as_prompt(number: int, raw: bytes) -> BatchLine:
    try:
        text = raw.decode().strip()
    except UnicodeDecodeError:
        return BadLine(number, None, "the line is not UTF-8 text: convert the file first")
    body = {"messages": [{"role": "user", "content": text}]}
    return BatchRequest(number, f"line-{number}", URLS[0], body)


def parse_line(number: int, raw: bytes) -> BatchLine:
    """One line as a request, or what is wrong with it."""
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError) as error:
        return BadLine(number, None, f"the line is not JSON: {error}")
    if not isinstance(line, dict):
        return BadLine(number, None, "the line must be a JSON object")
    custom_id, url, body = line.get("custom_id"), line.get("url"), line.get("body")
    if not isinstance(custom_id, str) or not custom_id:
        return BadLine(number, None, "custom_id must be a string with at least one character")
    if line.get("method") != "POST":
        return BadLine(number, custom_id, 'method must be "POST"')
    if url not in URLS:
        return BadLine(number, custom_id, f"url must be one of {', '.join(URLS)}")
    if not isinstance(body, dict):
        return BadLine(number, custom_id, "body must be a JSON object")
    if body.get("stream"):
        return BadLine(number, custom_id, "a batch does not stream its answers: leave out stream")
    return BatchRequest(number, custom_id, str(url), body)


def index_input(path: Path) -> InputIndex:
    """Read the whole file once. Raises UserError if a custom_id occurs twice or there is no request."""
    index, first_lines = InputIndex(), dict[str, int]()
    first_line: BatchLine | None = None
    has_request = False
    for each in read_lines(path):
        first_line = first_line or each
        has_request |= isinstance(each, BatchRequest)
        index.custom_ids[each.line] = each.custom_id
        if each.custom_id is None:
            continue
        first = first_lines.setdefault(each.custom_id, each.line)
        if first != each.line:
            raise UserError(
                f"{path}:{each.line}: line {first} has the same custom_id {_short(each.custom_id)}: "
                "give each line its own custom_id"
            )
    if isinstance(first_line, BadLine) and not has_request:
        raise UserError(f"{path}:{first_line.line}: {first_line.reason}, and no line is a request: {_FORM}")
    return index


def _short(custom_id: str) -> str:
    shown = json.dumps(custom_id)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."
