"""`/v1/chat/completions`."""

import time
import uuid

from fastapi import APIRouter, Request
from fastapi.responses import Response

from tiny_llm_lab.serving.server.answering.answers import Answers, require_queue
from tiny_llm_lab.serving.server.answering.event_stream import STREAMED, Choices, Usage, respond
from tiny_llm_lab.serving.server.api import Served
from tiny_llm_lab.serving.server.chat.choice import ChatChoice
from tiny_llm_lab.serving.server.chat.conversation import Conversation, prepare
from tiny_llm_lab.serving.server.schemas.chat import ChatRequest, turns_of
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
    conversation = _conversation(body, sampling.structured_outputs is not None)
    chat = await prepare(served, conversation)
    request_id = f"chatcmpl-{uuid.uuid4().hex}"
    answers = await Answers.start(
        served, [chat.token_ids], chat.with_form(sampling), request_id, n=n, priority=body.priority or 0
    )
    choices = [
        ChatChoice(
            served.tokenizer,
            chat.new_parser(body.parallel_tool_calls is False),
            has_logprobs=bool(body.logprobs),
            has_reasoning=body.include_reasoning is not False,
        )
        for _ in range(n)
    ]
    head = {"id": request_id, "created": int(time.time()), "model": served.names[0]}
    usage, kind = Usage(len(chat.token_ids), n), "chat.completion"
    reply = Choices(head, choices, usage, kind, f"{kind}.chunk", body.include_usage, body.has_running_usage)
    return await respond(request, answers, reply, body.is_stream)


def _conversation(body: ChatRequest, has_form: bool) -> Conversation:
    functions, mode = chosen_functions([each.function for each in body.tools or ()], body.tool_choice)
    return Conversation(
        turns_of(body.messages),
        functions,
        mode,
        body.template_kwargs(),
        body.effort(),
        body.add_generation_prompt is not False,
        bool(body.continue_final_message),
        has_form,
    )
