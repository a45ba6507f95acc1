"""`/v1/chat/completions`."""

import time
import uuid
from collections.abc import AsyncIterator, Sequence
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
from tiny_llm_lab.serving.server.answering.usage import Usage
from tiny_llm_lab.serving.server.chat.choice import ChatChoice
from tiny_llm_lab.serving.server.chat.conversation import Conversation, prepare
from tiny_llm_lab.serving.server.errors import json_response
from tiny_llm_lab.serving.server.routes.served import Served
from tiny_llm_lab.serving.server.schemas.chat import ChatRequest
from tiny_llm_lab.serving.server.schemas.tools import chosen_functions

router = APIRouter()


@router.post("/v1/chat/completions", responses=STREAMED)
async def create_chat_completion(body: ChatRequest, request: Request, served: Served) -> Response:
    """Answer a conversation; as one JSON document, or as events while tokens come."""
    served.require_name(body.model)
    body.require_supported()
    n = body.n or 1
    require_queue(served, n)
    sampling = body.sampling_params(
        served.presets,
        max_tokens=body.most_tokens,
        logprobs=(body.top_logprobs or 0) if body.logprobs else None,
    )
    chat = await prepare(
        served, _conversation(body, sampling.structured_outputs is not None), body.most_tokens
    )
    asks = await asks_for(served, [chat.token_ids], chat.with_form(sampling), n)
    request_id = f"chatcmpl-{uuid.uuid4().hex}"
    answers = await Answers.start(served, asks, request_id, body.priority or 0)
    choices = [
        ChatChoice(
            served.tokenizer,
            chat.new_parser(),
            has_logprobs=bool(body.logprobs),
            has_reasoning=body.include_reasoning is not False,
            most_calls=1 if body.parallel_tool_calls is False else None,
        )
        for _ in range(n)
    ]
    usage = Usage(len(chat.token_ids), n)
    head = {"id": request_id, "created": int(time.time()), "model": served.names[0]}
    if body.is_stream:
        return EventStream(answers, _events(answers, choices, usage, head, body.include_usage))
    async with closed_with_client(request.receive, answers):
        async for new in answers:
            for idx, output in new:
                usage.count(idx, output)
                choices[idx].keep(output)
    whole = [each.whole(idx) for idx, each in enumerate(choices)]
    return json_response({**head, "object": "chat.completion", "choices": whole, "usage": usage.as_dict()})


def _conversation(body: ChatRequest, has_form: bool) -> Conversation:
    functions, mode = chosen_functions([each.function for each in body.tools or ()], body.tool_choice)
    return Conversation(
        [each.as_dict(f"messages[{number}]") for number, each in enumerate(body.messages)],
        functions,
        mode,
        body.chat_template_kwargs or {},
        body.add_generation_prompt is not False,
        bool(body.continue_final_message),
        has_form,
    )


async def _events(
    answers: Answers,
    choices: Sequence[ChatChoice],
    usage: Usage,
    head: dict[str, Any],
    include_usage: bool,
) -> AsyncIterator[bytes]:
    head = {**head, "object": "chat.completion.chunk"}
    start = f'data: {dumps(head)[:-1]}, "choices": ['.encode()
    end = b'], "usage": null}\n\n' if include_usage else b"]}\n\n"
    async for new in answers:
        chunks = []
        for idx, output in new:
            usage.count(idx, output)
            if (chunk := choices[idx].chunk(idx, output)) is not None:
                chunks += [start, chunk, end]
        if chunks or not new:
            yield b"".join(chunks)
    if include_usage:
        yield event({**head, "choices": [], "usage": usage.as_dict()})
    yield DONE
