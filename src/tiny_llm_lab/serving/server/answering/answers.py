"""The engine requests behind one API request, read as one stream of steps."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, Self

from tiny_llm_lab.runtime.pictures.picture import Picture
from tiny_llm_lab.serving.async_engine.engine import AsyncEngine, RequestStream
from tiny_llm_lab.serving.async_engine.messages import NewRequest
from tiny_llm_lab.serving.options.prompts_file import drawing_apart
from tiny_llm_lab.serving.server.api import SERVER, ApiError, ServedModel, as_api_error, blamed, refused
from tiny_llm_lab.serving.server.prompts.watch import WatchedPrompt
from tiny_llm_lab.serving.server.schemas.sampling import CompletionFields, SamplingFields
from tiny_llm_lab.types import EngineOutput, SamplingParams

_NO_FIELDS, _NO_HEADERS = CompletionFields.model_validate({}), MappingProxyType[str, str]({})
_PROGRESS_S: Final = 0.5  # between two of a prompt's
_PICTURE_BYTES: Final = 2**29  # of all requests; 16 of the largest pictures have 192 MiB


def require_prompt(served: ServedModel, token_ids: Sequence[int], param: str = "prompt") -> None:
    """Raise ApiError for a prompt that is empty or has a token outside the vocabulary."""
    if not token_ids:
        raise refused(param, "is empty: give at least one token")
    most = served.facts.model.vocab_size
    if not 0 <= min(token_ids) <= max(token_ids) < most:
        outside = f"has a token id outside the model's vocabulary of {most} tokens"
        raise refused(param, f"{outside}: use this model's tokenizer")


def require_short(served: ServedModel, text: str, max_tokens: int | None, param: str = "prompt") -> None:
    """Raise ApiError for a text that is too long however it is encoded; encoding it could take seconds."""
    if len(text) <= served.max_num_tokens:
        return  # short enough to encode, so the numbers can be exact
    fewest = -(-len(text) // served.tokenizer.longest_token)
    require_room(served, fewest, max_tokens, param, "at least ")


def require_room(
    served: ServedModel,
    num_prompt_tokens: int,
    max_tokens: int | None,
    param: str = "prompt",
    about: str = "",
) -> None:
    """Raise ApiError when prompt and answer are longer than the model's context.

    `about` is what the message says before these numbers, where they are estimates.
    """
    limit, answer = served.max_num_tokens, 1 if max_tokens is None else max_tokens
    if num_prompt_tokens + answer <= limit:
        return
    parts = f"{about}{num_prompt_tokens} in the {param}" + (
        "" if max_tokens is None else f", {max_tokens} in the completion"
    )
    message = (
        f"This model's maximum context length is {limit} tokens. However, you requested "
        f"{about}{num_prompt_tokens + answer} tokens ({parts}). Please reduce the length of either."
    )
    raise ApiError(400, message, param=param, code="context_length_exceeded")


async def encode_prompt(
    served: ServedModel, prompt: str | Sequence[int], max_tokens: int, param: str = "prompt"
) -> Sequence[int]:
    """The tokens of a text, or the given ones. Raises ApiError as the three checks above do."""
    if isinstance(prompt, str):
        require_short(served, prompt, max_tokens, param)
        with blamed(param):
            prompt = await served.encode(prompt)
    require_prompt(served, prompt, param)
    require_room(served, len(prompt), max_tokens, param)
    return prompt


class Answers:
    """Several answers; iterating gives, for each step, (index of the answer, what is new) pairs.

    An empty list is a sign of life after `keep_alive_s` seconds without anything.
    """

    prompts: Sequence[WatchedPrompt] = ()  # the streams of each follow each other; none are pooled
    has_progress = False  # whether the reader wants to know that often

    def __init__(self, engine: AsyncEngine, streams: Sequence[RequestStream], changed: asyncio.Event) -> None:
        self._engine, self._changed = engine, changed
        self._open = dict(enumerate(streams))
        self._error: ApiError | None = None
        self._timers: list[asyncio.TimerHandle] = []
        self._picture_bytes = 0  # counted in the engine's
        self._num_taken = 0  # since the last tick
        self._is_quiet = False  # nothing came between two ticks, and the reader doesn't know yet

    @classmethod
    async def start(
        cls,
        served: ServedModel,
        prompts: Sequence[Sequence[int]],
        sampling: SamplingParams,
        request_id: str,
        body: SamplingFields = _NO_FIELDS,
        headers: Mapping[str, str] = _NO_HEADERS,
        pictures: tuple[Picture, ...] = (),
    ) -> Self:
        """Ask the engine for all choices of each prompt, whose seeds follow each other; for all or none.

        `body` says how many, how urgent and by which name, the `headers` who asks; `pictures` are those of
        the only prompt. Their ids are `request_id`-0, -1 and so on. The caller must `close` the result.
        Raises ApiError 429 when the queue is full, UserError for what can never be served. Inputs that are
        pooled count as one.
        """
        priority, fields = body.priority or 0, body if isinstance(body, CompletionFields) else _NO_FIELDS
        n = fields.n or 1
        # All inputs of one request enter while a place is free: they are ended together, and bounded.
        require_queue(served, 1 if sampling.pooling else len(prompts) * n)
        num_bytes = sum(each.patches.nbytes for each in pictures)
        require_pictures(served, num_bytes)
        changed, arrival_s = asyncio.Event(), time.perf_counter()
        requests = [
            NewRequest(
                f"{request_id}-{number}",
                token_ids,
                drawing_apart(sampling, number % n),
                priority=priority,
                priority_class=served.priority_class(body.model, headers),
                arrival_s=arrival_s,
                pictures=pictures,
            )
            for number, token_ids in enumerate(each for each in prompts for _ in range(n))
        ]
        # Inputs that are pooled come by the thousand, and none goes on from another as a conversation does.
        told = [] if sampling.pooling else requests[::n]
        watched = [served.watch.expect(each, headers, served.tokenizer) for each in told]
        answers = cls(served.engine, await _added(served.engine, requests, changed, num_bytes), changed)
        answers._picture_bytes = num_bytes
        answers.prompts, answers.has_progress = watched, bool(fields.return_progress)
        quiet_s = _PROGRESS_S if answers.has_progress else served.limits.keep_alive_s
        answers._start_timers(served.limits.request_timeout_s, quiet_s)
        return answers

    def sign(self) -> bytes:
        """A comment for a sign of life: how far the first prompt is that has no answer yet."""
        return f": {next((each for each in self.prompts if not each.is_read), 'ping')}\n\n".encode()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[tuple[int, EngineOutput]]:
        """Raises ApiError when the engine failed, or the time is up."""
        while True:
            self._changed.clear()
            new = self._take()
            if new:
                return new
            if self._error is not None:
                raise self._error
            if not self._open:
                raise StopAsyncIteration
            if self._is_quiet:
                self._is_quiet = False
                return []
            await self._changed.wait()

    def close(self) -> int:
        """End what still runs, within one step; returns how many requests that were. Iteration ends."""
        for timer in self._timers:
            timer.cancel()
        for prompt in self.prompts:
            prompt.close()
        ended = [stream for stream in self._open.values() if not stream.is_done]
        if ended:
            self._engine.abort(*ended)
        self._engine.picture_bytes -= self._picture_bytes
        self._picture_bytes = 0
        self._open.clear()
        self._changed.set()
        return len(ended)

    def _take(self) -> list[tuple[int, EngineOutput]]:
        new = []
        for idx, stream in list(self._open.items()):
            try:
                output = stream.take()
            except Exception as error:
                self._fail(_engine_error(error))
                return []
            if output is not None:
                new.append((idx, output))
            if stream.is_done and (output is None or output.completion is not None):
                del self._open[idx]  # an error after the last output comes with the next call
        self._num_taken += len(new)
        return new

    def _fail(self, error: ApiError) -> None:
        self.close()
        self._error = error

    def _start_timers(self, timeout_s: float, keep_alive_s: float) -> None:
        loop = asyncio.get_running_loop()
        if timeout_s > 0:
            self._timers.append(loop.call_later(timeout_s, self._expire, timeout_s))
        if keep_alive_s > 0:
            self._timers.append(loop.call_later(keep_alive_s, self._tick, keep_alive_s))

    def _expire(self, timeout_s: float) -> None:
        message = f"the answer took longer than {timeout_s:g} s: ask for fewer tokens, or try again later"
        self._fail(ApiError(504, message, SERVER, code="timeout"))

    def _tick(self, keep_alive_s: float) -> None:
        # We set the timer once in a while, because one for every token would cost more than the token.
        if self._num_taken == 0:
            self._is_quiet = True
            self._changed.set()
            self._engine.note_silence()
        self._num_taken = 0
        loop = asyncio.get_running_loop()
        self._timers[-1] = loop.call_later(keep_alive_s, self._tick, keep_alive_s)


def require_queue(served: ServedModel, num_new: int) -> None:
    """Raise ApiError when the engine's queue has no room for `num_new` requests."""
    most = served.facts.config.max_num_seqs + served.limits.max_waiting
    if num_new > most:
        message = f"you asked for {num_new} answers, and this server takes {most} at a time: ask for fewer"
        raise ApiError(400, message)
    if served.engine.num_requests + num_new > most:
        raise _busy(f"{served.engine.num_requests} requests are running or waiting: try again later")


def require_pictures(served: ServedModel, num_new: int) -> None:
    """Raise ApiError when `num_new` bytes of pictures do not fit next to those of other requests."""
    held = served.engine.picture_bytes
    if held and held + num_new > _PICTURE_BYTES:
        raise _busy(f"{held >> 20} MiB of pictures are being answered: try again later, or send smaller ones")


async def _added(
    engine: AsyncEngine, requests: Sequence[NewRequest], changed: asyncio.Event, num_bytes: int
) -> Sequence[RequestStream]:
    """The streams of `requests`, which hold `num_bytes` of pictures."""
    engine.picture_bytes += num_bytes
    try:
        return await engine.add(requests, changed)
    except BaseException:
        engine.picture_bytes -= num_bytes
        raise


def _busy(message: str) -> ApiError:
    retry = {"Retry-After": "1"}
    return ApiError(429, message, "rate_limit_error", code="rate_limit_exceeded", headers=retry)


def _engine_error(error: Exception) -> ApiError:
    known = as_api_error(error)
    if known.status != 500:
        return known
    message = f"the engine failed in a step ({type(error).__name__}): try again"
    return ApiError(500, message, SERVER, code="engine_error")
