"""`/v1/responses`, as far as text goes; nothing is stored."""

import time
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from tiny_llm_lab.serving.server.answering.answers import Answers
from tiny_llm_lab.serving.server.answering.choices import Usage
from tiny_llm_lab.serving.server.answering.event_stream import STREAMED, TypedReply, event, respond
from tiny_llm_lab.serving.server.chat.choice import chat_logprobs
from tiny_llm_lab.serving.server.chat.conversation import Conversation, PreparedChat, prepare
from tiny_llm_lab.serving.server.chat.output_items import OutputItems
from tiny_llm_lab.serving.server.schemas.responses import ResponsesRequest
from tiny_llm_lab.serving.server.schemas.tools import chosen_functions
from tiny_llm_lab.serving.server.served_model import Served, ServedModel
from tiny_llm_lab.types import EngineOutput, SamplingParams

router = APIRouter()


@router.post("/v1/responses", responses=STREAMED)
async def create_response(body: ResponsesRequest, request: Request, served: Served) -> Response:
    """Answer an input; as one JSON document, or as typed events while tokens come."""
    served.require_name(body.model)
    form = body.form()
    sampling = body.sampling_params(
        served.presets,
        max_tokens=body.max_output_tokens,
        structured_outputs=form,
        logprobs=body.most_logprobs,
    )
    functions, mode = chosen_functions(body.functions(), body.tool_choice)
    conversation = Conversation(
        body.messages(),
        functions,
        mode,
        body.chat_template_kwargs or {},
        body.effort(),
        not body.is_continued,
        body.is_continued,
        form is not None,
    )
    chat = await prepare(served, conversation, "input")
    request_id = f"resp_{uuid.uuid4().hex}"
    answers = await Answers.start(
        served, [chat.token_ids], chat.with_form(sampling), request_id, priority=body.priority or 0
    )
    return await respond(request, answers, _Answer(served, body, chat, sampling, request_id), body.is_stream)


class _Answer(TypedReply):
    """One response, while it is written."""

    def __init__(
        self,
        served: ServedModel,
        body: ResponsesRequest,
        chat: PreparedChat,
        sampling: SamplingParams,
        request_id: str,
    ) -> None:
        self._served, self._parser = served, chat.new_parser(body.parallel_tool_calls is False)
        self._items = OutputItems(chat.functions)
        self._usage = Usage(len(chat.token_ids))
        self._status = "in_progress"
        self._head = {
            "id": request_id,
            "object": "response",
            "created_at": int(time.time()),
            "model": served.names[0],
            "error": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "metadata": body.metadata or {},
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": None,
            "reasoning": {"effort": body.effort(), "summary": None},
            "store": False,
            "temperature": sampling.temperature,
            "text": body.text or {"format": {"type": "text"}},
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": sampling.top_p,
            "truncation": "disabled",
        }

    def told(self, output: EngineOutput) -> Iterator[dict[str, Any]]:
        """See `TypedReply.told`."""
        self._usage.count(0, output)
        done = output.completion
        scores = chat_logprobs(self._served.tokenizer, output.logprobs)
        parts = self._parser.feed(output.text, None if done is None else done.finish_reason)
        yield from self._items.add(parts, scores)
        if done is not None:
            self._status = "completed" if done.finish_reason == "stop" else "incomplete"
            yield from self._items.finish(done.finish_reason == "stop")
            yield {"type": f"response.{self._status}", "response": self.whole()}

    def whole(self) -> dict[str, Any]:
        """All of it."""
        reason = {"reason": "max_output_tokens"} if self._status == "incomplete" else None
        is_done = self._status != "in_progress"
        return {
            **self._head,
            "status": self._status,
            "incomplete_details": reason,
            "output": self._items.items if is_done else [],
            "usage": self._told_usage() if is_done else None,
        }

    async def events(self, answers: Answers) -> AsyncIterator[bytes]:
        """What is written at a time."""
        number = 0

        def numbered(data: dict[str, Any]) -> bytes:
            nonlocal number
            number += 1
            return event({**data, "sequence_number": number - 1}, data["type"])

        for kind in ("response.created", "response.in_progress"):
            yield numbered({"type": kind, "response": self.whole()})
        async for new in answers:
            told = [numbered(data) for _, output in new for data in self.told(output)]
            if told or not new:
                yield b"".join(told)

    def _told_usage(self) -> dict[str, Any]:
        usage = self._usage.as_dict()
        thoughts = "".join(
            each["content"][0]["text"] for each in self._items.items if each["type"] == "reasoning"
        )
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": {"reasoning_tokens": len(self._served.tokenizer.encode(thoughts))},
            "total_tokens": usage["total_tokens"],
        }
