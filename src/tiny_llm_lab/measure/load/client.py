"""The load client: sends requests when they are due, and records what becomes of each."""

import asyncio
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import accumulate, dropwhile
from typing import Any, Final, Literal

import httpx2

from tiny_llm_lab.measure.traffic.request import CountTokens, LoadRequest
from tiny_llm_lab.serving import openai_client
from tiny_llm_lab.types import Timing, UserError

# How the tokens of an answer were counted: as the server says, by a local tokenizer, or one a chunk.
CountedBy = Literal["usage", "tokenizer", "chunks"]


@dataclass(frozen=True)
class Usage:
    """The server's own counts of one request."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None  # None: the server does not say


@dataclass(frozen=True)
class RequestRecord:
    """One request as its client saw it; times are seconds since the start of the run."""

    request: LoadRequest
    send_s: float  # later than the scheduled arrival under a limit of concurrency
    end_s: float
    token_s: tuple[float, ...] = ()  # when each token was received; those of one read at the same time
    text: str = ""
    finish_reason: str | None = None
    usage: Usage | None = None
    counted_by: CountedBy = "chunks"
    error: str | None = None  # None: the answer is complete

    @property
    def timing(self) -> Timing:
        """Latencies from the moment of sending, as `vllm bench serve` tells them."""
        return Timing(self.send_s, self.token_s)

    @property
    def timing_from_arrival(self) -> Timing:
        """Latencies from the scheduled arrival: the wait for a free slot of the client counts."""
        return Timing(self.request.arrival_s, self.token_s)

    @property
    def is_read_at_once(self) -> bool:
        """Whether all tokens were in one read, so that no gap was seen: the client itself got no time."""
        return len(self.token_s) > 1 == len(self.timing.distinct_s)

    @property
    def num_prompt_tokens(self) -> int:
        return self.usage.prompt_tokens if self.usage else self.request.num_prompt_tokens


@dataclass(frozen=True)
class LoadRun:
    """All requests of one run, in the order in which they were given."""

    records: Sequence[RequestRecord]

    @property
    def completed(self) -> list[RequestRecord]:
        return [record for record in self.records if record.error is None]

    @property
    def failed(self) -> list[RequestRecord]:
        return [record for record in self.records if record.error is not None]

    @property
    def total_s(self) -> float:
        """From the start of the run to the end of its last request."""
        return max((record.end_s for record in self.records), default=0.0)

    @property
    def max_send_delay_s(self) -> float:
        """The longest that a request was sent after its scheduled arrival."""
        return max((record.send_s - record.request.arrival_s for record in self.records), default=0.0)

    def of_kind(self, kind: str) -> list[RequestRecord]:
        """The completed requests of one kind."""
        return [record for record in self.completed if record.request.kind == kind]


def timings(records: Iterable[RequestRecord]) -> list[Timing]:
    """The latencies of each record, from the moment of sending."""
    return [record.timing for record in records]


MAX_TOKENS: Final = 10**6  # of one answer, whatever its server says
# Where servers put text: answers, reasoning (two names), and completions.
_TEXT_KEYS: Final = ("content", "reasoning_content", "reasoning")


@dataclass(frozen=True)
class Chunk:
    """One event with a choice in it."""

    time_s: float
    text: str


class Answer:
    """Collects the events of one streamed answer."""

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.is_done = False

    @property
    def text(self) -> str:
        return "".join(chunk.text for chunk in self.chunks)

    def add(self, data: bytes, time_s: float) -> None:
        """Take the data of one event; raises ServerError for an error, or for data that is not a chunk."""
        if data.strip() == openai_client.DONE:
            self.is_done = True
            return
        try:
            event: dict[str, Any] = json.loads(data)
            if error := event.get("error"):
                raise openai_client.ServerError(openai_client.error_message(error))
            for choice in (event.get("choices") or [])[:1]:
                self.chunks.append(Chunk(time_s, _text_of(choice)))
                self.finish_reason = choice.get("finish_reason") or self.finish_reason
            self.usage = _usage_of(event.get("usage")) or self.usage
        except (ValueError, AttributeError, TypeError, OverflowError, RecursionError):
            raise openai_client.ServerError(
                f"the server sent an event that is not a chunk: {data[:100].decode(errors='replace')}"
            ) from None

    def require_end(self) -> None:
        """Raise ServerError for a stream that ended before its answer did."""
        if not self.is_done and self.finish_reason is None:
            raise openai_client.ServerError("the stream ended before the answer did")

    def token_times(self, count: CountTokens | None) -> tuple[tuple[float, ...], CountedBy]:
        """When each token was received, and who counted them.

        Chunks of one token each are taken as they are. Otherwise the tokens are shared out among the chunks
        that have text, by `count` of it (None: evenly), and those of one chunk have one time.
        """
        # A chat begins with a chunk that holds a role and no token.
        chunks = list(dropwhile(lambda chunk: not chunk.text, self.chunks)) or self.chunks[:1]
        with_text = [chunk for chunk in chunks if chunk.text] or chunks
        if self.usage is not None:
            return _spread(chunks, with_text, self.usage.completion_tokens, count), "usage"
        if count is not None:
            return _spread(chunks, with_text, count(self.text), count), "tokenizer"
        return tuple(chunk.time_s for chunk in with_text), "chunks"


def _spread(
    chunks: Sequence[Chunk], with_text: Sequence[Chunk], num_tokens: int, count: CountTokens | None
) -> tuple[float, ...]:
    for each in (with_text, chunks):  # of the latter, some hold tokens without text, such as the last
        if len(each) == num_tokens:
            return tuple(chunk.time_s for chunk in each)
    weights = [max(1, count(chunk.text)) if count else 1 for chunk in with_text]
    total = sum(weights)
    # Rounded up: the first chunk has the first token.
    ends = [math.ceil(num_tokens * part / total) for part in accumulate(weights)]
    sizes = [end - start for start, end in zip([0, *ends], ends, strict=False)]
    return tuple(chunk.time_s for chunk, size in zip(with_text, sizes, strict=True) for _ in range(size))


def _text_of(choice: dict[str, Any]) -> str:
    delta = choice.get("delta") or choice
    parts = [delta.get(key) or "" for key in _TEXT_KEYS] + [choice.get("text") or ""]
    calls = [call.get("function") or {} for call in delta.get("tool_calls") or []]
    return "".join([*parts, *((call.get("name") or "") + (call.get("arguments") or "") for call in calls)])


def _usage_of(usage: dict[str, Any] | None) -> Usage | None:
    if not usage:
        return None
    details = usage.get("prompt_tokens_details") or {}
    completion = min(int(usage.get("completion_tokens") or 0), MAX_TOKENS)
    cached = details.get("cached_tokens")
    return Usage(int(usage.get("prompt_tokens") or 0), completion, None if cached is None else int(cached))


Endpoint = Literal["completions", "chat"]
PATHS: Final[Mapping[Endpoint, str]] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_MAX_ERROR_BYTES: Final = 2**16
OnRecord = Callable[[RequestRecord], None]


@dataclass(frozen=True)
class LoadOptions:
    """How requests are sent; `body` holds more fields for every request's JSON, such as temperature."""

    endpoint: Endpoint = "completions"
    path: str | None = None  # None: the endpoint's
    api_key: str | None = None
    max_concurrency: int | None = None  # None: as many as arrive
    ignore_eos: bool = False
    timeout_s: float = 600.0  # of one request, from sending to its end
    headers: Mapping[str, str] = field(default_factory=dict)
    body: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.timeout_s > 0:
            raise UserError(f"the timeout of a request must be above 0 s, not {self.timeout_s:g}")


DEFAULT_OPTIONS: Final = LoadOptions()


async def run_load(
    url: str,
    model: str,
    requests: Sequence[LoadRequest],
    options: LoadOptions = DEFAULT_OPTIONS,
    *,
    count_tokens: CountTokens | None = None,
    on_record: OnRecord | None = None,
    transport: httpx2.AsyncBaseTransport | None = None,
) -> LoadRun:
    """Send `requests` to the server at `url`, each at its arrival, and wait for all answers.

    An arrival never waits for an earlier answer, unless max_concurrency makes it wait. Times are those of
    the event loop. `count_tokens` serves where the server tells no usage; `on_record` is called as requests
    end, also those that are cancelled with the run. A request that fails is a record with an error.
    """
    async with httpx2.AsyncClient(
        base_url=openai_client.base_of(url),
        headers=openai_client.with_key(options.api_key, {"Accept-Encoding": "identity", **options.headers}),
        timeout=options.timeout_s,
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=None),
        transport=transport,
    ) as client:
        run = _Run(client, model, options, count_tokens)
        tasks = [asyncio.create_task(run.serve(request, on_record)) for request in requests]
        try:
            return LoadRun(await asyncio.gather(*tasks))
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


class _Run:
    """What the requests of one run share."""

    def __init__(
        self, client: httpx2.AsyncClient, model: str, options: LoadOptions, count_tokens: CountTokens | None
    ) -> None:
        self._client, self._model, self._options = client, model, options
        self._count_tokens = count_tokens
        limit = options.max_concurrency
        self._slots = nullcontext() if limit is None else asyncio.Semaphore(limit)
        self._loop = asyncio.get_running_loop()
        self._start_s = self._loop.time()
        self._turn_s: float | None = None  # of the loop's present turn, once something was received in it

    def _now(self) -> float:
        return self._loop.time() - self._start_s

    def _received_s(self) -> float:
        """The time of what one turn of the event loop brings: the same for all chunks of a read."""
        if self._turn_s is None:
            self._turn_s = self._now()
            self._loop.call_soon(self._end_turn)
        return self._turn_s

    def _end_turn(self) -> None:
        self._turn_s = None

    async def serve(self, request: LoadRequest, on_record: OnRecord | None) -> RequestRecord:
        """Wait for the arrival of `request` and a slot, send it and read its answer."""
        await asyncio.sleep(max(0.0, request.arrival_s - self._now()))
        async with self._slots:
            return await self._send(request, on_record)

    async def _send(self, request: LoadRequest, on_record: OnRecord | None) -> RequestRecord:
        body = self._body(request)
        answer, send_s, error = Answer(), self._now(), "interrupted"
        try:
            async with asyncio.timeout(self._options.timeout_s):
                await self._read(body, answer)
            error = ""
        except TimeoutError:
            error = f"the answer did not end within {self._options.timeout_s:g} s"
        except (httpx2.HTTPError, openai_client.ServerError, UserError) as problem:
            error = openai_client.failure(problem)
        finally:
            token_s, counted_by = answer.token_times(self._count_tokens)
            record = RequestRecord(
                request,
                send_s,
                self._now(),
                token_s,
                answer.text,
                answer.finish_reason,
                answer.usage,
                counted_by,
                error or None,
            )
            if on_record:
                on_record(record)
        return record

    def _body(self, request: LoadRequest) -> bytes:
        options = self._options
        fields: dict[str, Any] = {
            "model": self._model,
            "max_tokens": request.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if options.endpoint == "chat":
            if not request.messages and not isinstance(request.prompt, str):
                raise UserError("a chat needs text: leave out token ids, or use the completions endpoint")
            fields["messages"] = request.messages or [{"role": "user", "content": request.prompt}]
        else:
            fields["prompt"] = request.prompt
        if options.ignore_eos:
            fields["ignore_eos"] = True
        return json.dumps(fields | dict(options.body)).encode()

    async def _read(self, body: bytes, answer: Answer) -> None:
        path = self._options.path or PATHS[self._options.endpoint]
        headers = {"Content-Type": "application/json"}
        async with self._client.stream("POST", path, content=body, headers=headers) as response:
            if response.status_code != 200:
                raise openai_client.ServerError(
                    openai_client.refusal(response.status_code, await _beginning(response))
                )
            events = openai_client.EventParser()
            async for received in response.aiter_raw():
                now = self._received_s()
                for data in events.feed(received):
                    answer.add(data, now)
            for data in events.close():
                answer.add(data, self._now())
            answer.require_end()


async def _beginning(response: httpx2.Response) -> bytes:
    body = b""
    async for received in response.aiter_bytes():
        body += received
        if len(body) > _MAX_ERROR_BYTES:
            break
    return body
