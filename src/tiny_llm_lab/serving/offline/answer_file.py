"""The files of a batch. Requests come in OpenAI's batch format, or as text with a prompt a line.

Answers are appended, one a line, never lost and never written twice.
"""

import codecs
import fcntl
import json
import os
import re
import stat
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Final

from tiny_llm_lab.runtime.console.talk import writing
from tiny_llm_lab.types import UserError

URLS: Final = ("/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/rerank")
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
    digest: str = ""  # of its text in the file


@dataclass(frozen=True)
class BadLine:
    """A line that is not a request, and why."""

    line: int
    custom_id: str | None  # None if we can't read one
    reason: str
    digest: str = ""


BatchLine = BatchRequest | BadLine


# The custom_id of each line, None for one without, and its digest, by its number. Blank lines are not in it.
InputIndex = Mapping[int, tuple[str | None, str]]


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
                raw = raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw
                if len(raw) > MAX_LINE_BYTES:
                    while raw and not raw.endswith(b"\n"):
                        raw = file.readline(_SKIPPED_AT_A_TIME)
                    yield BadLine(number, None, f"the line is longer than {MAX_LINE_BYTES} bytes: split it")
                elif raw.strip():
                    is_text = raw.lstrip()[:1] not in (b"{", b"[", b'"') if is_text is None else is_text
                    line = (_as_prompt if is_text else parse_line)(number, raw)
                    yield replace(line, digest=f"{zlib.crc32(raw.strip()):08x}")
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
    index, first_lines = dict[int, tuple[str | None, str]](), dict[str, int]()
    first_line: BatchLine | None = None
    has_request = False
    for each in read_lines(path):
        first_line = first_line or each
        has_request |= isinstance(each, BatchRequest)
        index[each.line] = each.custom_id, each.digest
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


_HEAD: Final = '{"id": "batch_req_'
# The line of the request, and its digest: a line that was changed later has not been answered.
_ID: Final = re.compile(r"batch_req_([0-9]{1,18})(?:_([0-9a-f]{8}))?")
_SYNC_EVERY_S: Final = 1.0
Record = dict[str, Any]


class UnwritableError(Exception):
    """An answer could not be written; the message says why. Run the same command again to resume."""


def answer_record(request: BatchRequest, status_code: int, request_id: str, body: object) -> Record:
    """The application's answer."""
    response = {"status_code": status_code, "request_id": request_id, "body": body}
    return {"id": _id(request), "custom_id": request.custom_id, "response": response, "error": None}


def error_record(line: BatchLine, code: str, message: str) -> Record:
    """Why there is no answer from the application."""
    error = {"code": code, "message": message}
    return {"id": _id(line), "custom_id": line.custom_id, "response": None, "error": error}


def is_failure(record: Record) -> bool:
    """Whether a record is an error and not an answer."""
    return record["error"] is not None or record["response"]["status_code"] >= 400


def reason(record: Record) -> str:
    """What a failed record says, in a line."""
    error = record["error"] or record["response"]["body"].get("error") or {}
    return f"{record['custom_id'] or record['id']}: {error.get('message', 'no reason given')}"


class AnswerFile:
    """An output file that one process at a time appends to.

    A line is in the file as soon as `append` returns, which a kill of the process does not undo; a loss of
    power costs the last second at most.
    """

    def __init__(self, path: Path, index: InputIndex, model: str = "") -> None:
        """Open `path`, cut off a torn last line, and read which lines of the input are answered.

        `model` is what answers call the model; "" is any. Raises UserError when it cannot be opened, another
        process holds it, or it has other lines than the model's answers to the input.
        """
        self._path, self._model = path, model
        with writing(path):
            self._file: BinaryIO = os.fdopen(
                os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644), "r+b", 0
            )
        try:
            self._lock()
            self.num_failed, self.first_failure = 0, ""
            self.answered = self._recover(index)
        except BaseException:
            self._file.close()
            raise
        self._synced_s = time.monotonic()

    def __enter__(self) -> "AnswerFile":
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, record: Record) -> None:
        """Write one record, unless its line is answered already. Raises UnwritableError."""
        line, _ = _line_of(record)
        if line in self.answered:
            return
        rest = memoryview(json.dumps(record).encode() + b"\n")
        try:
            while rest:  # a full disk may take a part of it; the next start cuts this torn line off
                rest = rest[os.write(self._file.fileno(), rest) :]
            if time.monotonic() - self._synced_s > _SYNC_EVERY_S:
                self.sync()
        except OSError as error:
            raise UnwritableError(
                f"cannot write {self._path}: {error.strerror}: fix that and run the same command again"
            ) from None
        self.answered.add(line)
        self._count(record)

    def sync(self) -> None:
        """Wait until all records are on disk."""
        os.fsync(self._file.fileno())
        self._synced_s = time.monotonic()

    def _lock(self) -> None:
        if not stat.S_ISREG(os.fstat(self._file.fileno()).st_mode):
            raise UserError(f"{self._path} is not a regular file, which a batch needs: choose another")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"another process is writing to {self._path}: wait until it ends, or choose another file"
            ) from None

    def _count(self, record: Record) -> None:
        if is_failure(record):
            self.num_failed += 1
            self.first_failure = self.first_failure or reason(record)

    def _recover(self, index: InputIndex) -> set[int]:
        """The answered lines; counts those that failed."""
        answered, end = set[int](), 0
        with os.fdopen(os.dup(self._file.fileno()), "rb") as reader:
            for number, raw in enumerate(reader, 1):
                if not raw.endswith(b"\n") and (
                    raw.startswith(_HEAD.encode()) or _HEAD.encode().startswith(raw)
                ):
                    os.truncate(self._file.fileno(), end)
                    break
                try:
                    line, record = self._answer(raw, index)
                except UserError as error:
                    raise UserError(f"{self._path}:{number}: {error}: choose another --output") from None
                end += len(raw)
                answered.add(line)
                self._count(record)
        return answered

    def _answer(self, raw: bytes, index: InputIndex) -> tuple[int, Record]:
        """The line that was answered, and its record. Raises UserError for what is no answer to the input."""
        record = _record(raw)
        line, digest = (0, "") if record is None else _line_of(record)
        own_id, own_digest = index.get(line, (None, ""))
        if record is None or line not in index or record["custom_id"] != own_id:
            raise UserError("this line is not an answer to the input")
        if digest not in ("", own_digest):
            raise UserError(f"the answer to line {line} of the input, which has changed since")
        other = _model_of(record) or self._model
        if self._model and other != self._model:
            raise UserError(f"an answer of the model {other}, and not of {self._model}")
        return line, record


def _id(line: BatchLine) -> str:
    return f"batch_req_{line.line}" + (f"_{line.digest}" if line.digest else "")


def _line_of(record: Record) -> tuple[int, str]:
    """The line that a record answers, from 1, and the line's digest; 0 for no line, "" for no digest."""
    known = _ID.fullmatch(str(record["id"]))
    return (int(known[1]), known[2] or "") if known else (0, "")


def _model_of(record: Record) -> str:
    """The model that has answered, "" if the record does not say it."""
    body = (record["response"] or {}).get("body")
    return str(body.get("model", "")) if isinstance(body, dict) else ""


def _record(raw: bytes) -> Record | None:
    try:
        record = json.loads(raw)
        is_failure(record) and reason(record), record["id"], record["custom_id"]
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None
    return record if isinstance(record, dict) else None
