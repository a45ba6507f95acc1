"""Vectors for texts: what the routes share whose requests draw no token."""

from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Final

from fastapi import Request

from tiny_llm_lab.serving.server.answering.answers import Answers, require_prompt, require_room, require_short
from tiny_llm_lab.serving.server.answering.choices import Usage
from tiny_llm_lab.serving.server.answering.event_stream import read_all
from tiny_llm_lab.serving.server.errors import ApiError
from tiny_llm_lab.serving.server.served_model import ServedModel
from tiny_llm_lab.types import EngineOutput, SamplingParams, Task

MAX_TOKENS: Final = 300_000  # of one request, as in OpenAI's API
Vector = tuple[float, ...]


def require_task(served: ServedModel, task: Task) -> None:
    """Raise ApiError unless the model is served for `task`."""
    if served.facts.model.task != task:
        is_for = f"{served.names[0]} is served to {served.facts.model.task}"
        raise ApiError(400, f"{is_for}: start the server with --task {task}, and with a model for it")


async def encoded(
    served: ServedModel, inputs: Iterable[str | Sequence[int]], param: str
) -> AsyncIterator[Sequence[int]]:
    """The tokens of each input. Raises ApiError for one that is empty or too long, and for too many."""
    num_tokens = 0
    for each in inputs:
        if isinstance(each, str):
            require_short(served, each, 0, param)
        token_ids = await served.encode(each) if isinstance(each, str) else each
        require_prompt(served, token_ids, param)
        require_room(served, len(token_ids), 0, param)
        num_tokens += len(token_ids)
        if num_tokens > MAX_TOKENS:
            message = f"{param} has more than {MAX_TOKENS} tokens in all: send several requests"
            raise ApiError(400, message, param=param)
        yield token_ids


async def pooled(
    request: Request,
    served: ServedModel,
    prompts: Sequence[Sequence[int]],
    request_id: str,
    priority: int | None,
) -> tuple[list[Vector], Usage]:
    """The vector of each prompt, and what it took. Raises ApiError, also if the client has left."""
    usage, vectors = Usage(sum(map(len, prompts))), dict[int, Vector]()

    def keep(idx: int, output: EngineOutput) -> None:
        usage.count(idx, output)
        if output.completion is not None:
            vectors[idx] = output.completion.vector

    sampling = SamplingParams(pooling=True)
    answers = await Answers.start(served, prompts, sampling, request_id, priority=priority or 0)
    await read_all(request, answers, keep)
    if len(vectors) < len(prompts):
        raise ApiError(499, "the client left")
    return [vectors[idx] for idx in range(len(prompts))], usage
