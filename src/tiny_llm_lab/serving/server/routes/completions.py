"""`/v1/completions`."""

import time
import uuid
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from json import dumps
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from tiny_llm_lab.serving.server.answering.answers import Answers, asks_for, require_queue
from tiny_llm_lab.serving.server.answering.event_stream import (
    DONE,
    STREAMED,
    EventStream,
    closed_with_client,
    event,
)
from tiny_llm_lab.serving.server.answering.legacy_logprobs import LegacyLogprobs
from tiny_llm_lab.serving.server.answering.prompt_checks import require_prompt, require_room, require_short
from tiny_llm_lab.serving.server.answering.usage import Usage
from tiny_llm_lab.serving.server.errors import json_response, to_json
from tiny_llm_lab.serving.server.routes.served import Served
from tiny_llm_lab.serving.server.schemas.completions import DEFAULT_MAX_TOKENS, CompletionRequest
from tiny_llm_lab.serving.server.served_model import ServedModel
from tiny_llm_lab.types import EngineOutput, SamplingParams

router = APIRouter()


@router.post("/v1/completions", responses=STREAMED)
async def create_completion(body: CompletionRequest, request: Request, served: Served) -> Response:
    """Continue one prompt or several; as one JSON document, or as events while tokens come."""
    served.require_name(body.model)
    body.require_supported()
    n = body.n or 1
    require_queue(served, len(body.prompts) * n)
    prompts = await _encoded(served, body)
    sampling = _sampling(served, body)
    asks = await asks_for(served, [token_ids for _, token_ids in prompts], sampling, n)
    request_id = f"cmpl-{uuid.uuid4().hex}"
    answers = await Answers.start(served, asks, request_id, body.priority or 0)
    usage = Usage(sum(len(token_ids) for _, token_ids in prompts), n)
    prompt_of_each = [prompt for prompt in prompts for _ in range(n)]
    choices = [_Choice(idx, served, body, usage, *each) for idx, each in enumerate(prompt_of_each)]
    head = {
        "id": request_id,
        "object": "text_completion",
        "created": int(time.time()),
        "model": served.names[0],
    }
    if body.is_stream:
        return EventStream(answers, _events(answers, choices, usage, head, body.include_usage))
    async with closed_with_client(request.receive, answers):
        async for new in answers:
            for idx, output in new:
                choices[idx].keep(output)
    return json_response({**head, "choices": [each.whole() for each in choices], "usage": usage.as_dict()})


async def _encoded(served: ServedModel, body: CompletionRequest) -> list[tuple[str, list[int]]]:
    """Text and token ids of every prompt."""
    prompts = []
    for prompt in body.prompts:
        if isinstance(prompt, str):
            require_short(served, prompt, _max_tokens(body))
        token_ids = await served.encode(prompt) if isinstance(prompt, str) else prompt
        require_prompt(served, token_ids)
        require_room(served, len(token_ids), _max_tokens(body))
        text = prompt if isinstance(prompt, str) else served.tokenizer.decode(prompt) if body.echo else ""
        prompts.append((text, token_ids))
    return prompts


def _max_tokens(body: CompletionRequest) -> int:
    return DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens


def _sampling(served: ServedModel, body: CompletionRequest) -> SamplingParams:
    given: dict[str, Any] = {"max_tokens": max(1, _max_tokens(body)), "logprobs": body.logprobs}
    if body.echo and body.logprobs is not None:
        given["prompt_logprobs"] = body.logprobs
    return body.sampling_params(served.presets, **given)


async def _events(
    answers: Answers, choices: Sequence["_Choice"], usage: Usage, head: dict[str, Any], include_usage: bool
) -> AsyncIterator[bytes]:
    # A chunk is made of text: with pydantic, or a dictionary, it would cost several times as much.
    start = f"data: {dumps(head)[:-1]}, ".encode()
    end = b'], "usage": null}\n\n' if include_usage else b"]}\n\n"
    async for new in answers:
        chunks = []
        for idx, output in new:
            chunks += [start, b'"choices": [', choices[idx].chunk(output), end]
        yield b"".join(chunks)
    if include_usage:
        yield event({**head, "choices": [], "usage": usage.as_dict()})
    yield DONE


@dataclass
class _Choice:
    """What one choice has brought so far."""

    idx: int
    served: ServedModel
    body: CompletionRequest
    usage: Usage
    prompt: str
    prompt_token_ids: Sequence[int]

    def __post_init__(self) -> None:
        self._parts: list[str] = []
        self._finish_reason: str | None = None
        self._is_first = True
        has_logprobs = self.body.logprobs is not None
        self._logprobs = LegacyLogprobs(self.served.tokenizer) if has_logprobs else None

    def keep(self, output: EngineOutput) -> tuple[str, str | None]:
        """The text and the reason to finish that `output` brings, which are kept."""
        if self.body.max_tokens == 0:
            output = replace(output, token_ids=(), text="", logprobs=())  # of the one that had to be drawn
        self.usage.count(self.idx, output)
        text = output.text
        if self._is_first and self.body.echo:
            text = self.prompt + text
            if self._logprobs is not None:
                self._logprobs.add_prompt(self.prompt_token_ids, output)
        self._is_first = False
        if self._logprobs is not None:
            self._logprobs.add(output.logprobs)
        if output.completion is not None:
            self._finish_reason = "length" if self.body.max_tokens == 0 else output.completion.finish_reason
        self._parts.append(text)
        return text, self._finish_reason

    def whole(self) -> dict[str, Any]:
        """The choice of an answer that is not streamed."""
        return {
            "index": self.idx,
            "text": "".join(self._parts),
            "logprobs": None if self._logprobs is None else self._logprobs.taken(),
            "finish_reason": self._finish_reason,
        }

    def chunk(self, output: EngineOutput) -> bytes:
        """The choice of an event."""
        text, finish_reason = self.keep(output)
        self._parts.clear()
        logprobs = "null" if self._logprobs is None else to_json(self._logprobs.taken()).decode()
        reason = "null" if finish_reason is None else f'"{finish_reason}"'
        fields = f'"text": {dumps(text)}, "logprobs": {logprobs}, "finish_reason": {reason}'
        return f'{{"index": {self.idx}, {fields}}}'.encode()
