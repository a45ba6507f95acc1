"""Anthropic's `/v1/messages` and `/v1/messages/count_tokens`, as far as text goes."""

import json
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from tiny_llm_lab.runtime.pictures.contents import Contents
from tiny_llm_lab.serving.server.answering.answers import Answers
from tiny_llm_lab.serving.server.answering.event_stream import STREAMED, TypedReply, Usage, event, respond
from tiny_llm_lab.serving.server.api import ApiError, Served, ServedModel, json_response
from tiny_llm_lab.serving.server.chat.answer_parser import Part
from tiny_llm_lab.serving.server.chat.choice import end_of, is_json, stop_string
from tiny_llm_lab.serving.server.chat.conversation import Conversation, PreparedChat, prepare
from tiny_llm_lab.serving.server.schemas.messages import CountRequest, MessagesRequest, is_begun
from tiny_llm_lab.serving.server.schemas.tools import chosen_functions
from tiny_llm_lab.types import Completion, EngineOutput

Event = dict[str, Any]
_DELTAS = {"thinking": "thinking_delta", "text": "text_delta"}


class ContentBlocks:
    """Builds the blocks of one answer while it arrives, and sends each change as an event."""

    def __init__(self) -> None:
        self.blocks: list[dict[str, Any]] = []
        self._is_open = False  # whether the last block may grow
        self._arguments = ""  # of the last call

    @property
    def has_calls(self) -> bool:
        """Whether the answer calls a tool."""
        return any(each["type"] == "tool_use" for each in self.blocks)

    def add(self, parts: Sequence[Part]) -> Iterator[Event]:
        """Events of what is new; must be read to its end."""
        for part in parts:
            match part.kind:
                case "reasoning":
                    yield from self._text("thinking", part.text)
                case "content":
                    yield from self._text("text", part.text)
                case "call":
                    call = {"id": f"toolu_{uuid.uuid4().hex[:24]}", "name": part.text, "input": {}}
                    yield from self._begun({"type": "tool_use", **call})
                case "arguments":
                    self._arguments += part.text
                    yield self._delta({"type": "input_json_delta", "partial_json": part.text})

    def finish(self) -> Iterator[Event]:
        """The end of the last block."""
        if self._is_open:
            self._is_open = False
            if self.blocks[-1]["type"] == "tool_use":
                # What was cut off, or is no JSON, is no object.
                self.blocks[-1]["input"] = json.loads(self._arguments) if is_json(self._arguments) else {}
            yield {"type": "content_block_stop", "index": len(self.blocks) - 1}

    def _text(self, kind: str, text: str) -> Iterator[Event]:
        if not self._is_open or self.blocks[-1]["type"] != kind:
            signature = {"signature": ""} if kind == "thinking" else {}  # nobody checks ours
            yield from self._begun({"type": kind, kind: "", **signature})
        self.blocks[-1][kind] += text
        yield self._delta({"type": _DELTAS[kind], kind: text})

    def _begun(self, block: dict[str, Any]) -> Iterator[Event]:
        yield from self.finish()
        self._is_open, self._arguments = True, ""
        self.blocks.append(block)
        yield {"type": "content_block_start", "index": len(self.blocks) - 1, "content_block": dict(block)}

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}


router = APIRouter()


@router.post("/v1/messages", responses=STREAMED)
async def create_message(body: MessagesRequest, request: Request, served: Served) -> Response:
    """Answer a conversation; as one JSON document, or as typed events while tokens come."""
    _require_name(served, body.model)
    sampling = body.sampling_params(served.presets, max_tokens=body.max_tokens, stop=body.stops)
    has_form = sampling.structured_outputs is not None
    chat = await prepare(served, _conversation(body, served.contents(), has_form), is_bounded=False)
    _require_room(served, len(chat.token_ids))
    request_id = f"msg_{uuid.uuid4().hex}"
    answers = await chat.answers(sampling, request_id, body, request.headers)
    return await respond(request, answers, _Answer(body, chat, request_id), body.is_stream)


@router.post("/v1/messages/count_tokens")
async def count_tokens(body: CountRequest, served: Served) -> Response:
    """How many tokens the prompt of a conversation has, whether or not they fit."""
    _require_name(served, body.model)
    chat = await prepare(served, _conversation(body, served.contents()), is_bounded=False)
    return json_response({"input_tokens": len(chat.token_ids)})


def _conversation(body: CountRequest, contents: Contents, has_form: bool = False) -> Conversation:
    chosen, turns = chosen_functions(body.functions(), body.choice()), body.turns(contents)
    return Conversation.asked(body, turns, chosen, contents, is_begun(turns), has_form=has_form)


def _require_name(served: ServedModel, name: str | None) -> None:
    if name is None or not name.startswith("claude"):  # clients have names of their own for every server
        served.require_name(name)


def _require_room(served: ServedModel, num_tokens: int) -> None:
    """Raise ApiError in Anthropic's words: clients read both numbers, and drop as many tokens."""
    most = min(served.max_num_tokens, num_tokens - 1)  # one is for the answer
    if num_tokens >= served.max_num_tokens:
        raise ApiError(400, f"prompt is too long: {num_tokens} tokens > {most} maximum", param="messages")


class _Answer(TypedReply):
    """One message, while it is written."""

    def __init__(self, body: MessagesRequest, chat: PreparedChat, request_id: str) -> None:
        self._served, self._stops = chat.served, body.stops
        self._parser, self._blocks = chat.new_parser(body.is_one_call), ContentBlocks()
        self.usage = Usage.of(chat)
        self._head = {"id": request_id, "type": "message", "role": "assistant"}
        self._head["model"] = body.model or chat.served.names[0]
        self._stop: dict[str, str | None] = {"stop_reason": None, "stop_sequence": None}

    def told(self, output: EngineOutput) -> Iterator[dict[str, Any]]:
        """See `TypedReply.told`."""
        self.usage.count(0, output)
        done = output.completion
        parts = self._parser.feed(output.text, end_of(done, self._stops, self._served.tokenizer))
        yield from self._blocks.add(parts)
        if done is not None:
            yield from self._blocks.finish()
            self._stop = self._reason(done)
            yield {"type": "message_delta", "delta": self._stop, "usage": self._counts()}
            yield {"type": "message_stop"}

    def _reason(self, done: Completion) -> dict[str, str | None]:
        """Why the answer ended."""
        if done.finish_reason != "stop":
            return {"stop_reason": "max_tokens", "stop_sequence": None}
        if result := stop_string(done, self._stops, self._served.tokenizer):
            return {"stop_reason": "stop_sequence", "stop_sequence": result}
        return {"stop_reason": "tool_use" if self._blocks.has_calls else "end_turn", "stop_sequence": None}

    def whole(self) -> dict[str, Any]:
        """All of it."""
        return {**self._head, "content": self._blocks.blocks, **self._stop, "usage": self._counts()}

    async def events(self, answers: Answers) -> AsyncIterator[bytes]:
        """What is written at a time; it begins with the first output, which says what was cached."""
        has_begun = False
        async for new in answers:
            told: list[dict[str, Any]] = []
            for _, output in new:
                if not has_begun:
                    has_begun = True
                    self.usage.count(0, replace(output, token_ids=()))  # what was cached
                    told.append({"type": "message_start", "message": {**self.whole(), "content": []}})
                told += self.told(output)
            if not new:  # Anthropic's own sign of life, and how far the prompt is
                yield answers.sign() + event({"type": "ping"}, "ping")
            elif told:
                yield b"".join(event(data, data["type"]) for data in told)

    def _counts(self) -> dict[str, Any]:
        usage, facts = self.usage.as_dict(), self._served.facts
        cached = usage["prompt_tokens_details"].pop("cached_tokens")
        rest = usage["prompt_tokens"] - cached
        stored = rest - rest % facts.block_size if facts.has_prefix_cache else 0  # in whole blocks
        return {
            **usage["prompt_tokens_details"],
            "input_tokens": rest - stored,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": stored,
            "output_tokens": usage["completion_tokens"],
        }
