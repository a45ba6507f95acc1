"""`/v1/responses`, as far as text goes; nothing is stored."""

import re
import time
import uuid
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, Final

from fastapi import APIRouter, Request
from fastapi.responses import Response

from tiny_llm_lab.serving.server.answering.answers import Answers
from tiny_llm_lab.serving.server.answering.event_stream import STREAMED, TypedReply, Usage, event, respond
from tiny_llm_lab.serving.server.api import Served
from tiny_llm_lab.serving.server.chat.answer_parser import Part
from tiny_llm_lab.serving.server.chat.choice import chat_logprobs, end_of, is_json
from tiny_llm_lab.serving.server.chat.conversation import Conversation, PreparedChat, prepare
from tiny_llm_lab.serving.server.schemas.responses import ResponsesRequest
from tiny_llm_lab.serving.server.schemas.tools import Function, chosen_functions
from tiny_llm_lab.types import EngineOutput, SamplingParams
from tiny_llm_lab.types.prompt_tokens import has_surrogate

LogprobItem = dict[str, Any]  # as in OpenAI's API: token, logprob, bytes, top_logprobs
_TAG: Final = re.compile(rb"</?(?:think|tool_call|function|parameter)\b[^<>]*>")


class TextScores:
    """Tokens that have come, until the text that they are comes too: a parser may hold it back."""

    def __init__(self) -> None:
        self._waiting: list[LogprobItem] = []

    def add(self, items: Sequence[LogprobItem]) -> None:
        """Add tokens, in their order."""
        self._waiting += items

    def taken(self, text: str) -> list[LogprobItem]:
        """The tokens of `text`; those before it, such as tags, are dropped. All if it is not theirs."""
        written = b"".join(bytes(each["bytes"]) for each in self._waiting)
        data, result, at = text.encode(errors="replace"), list[LogprobItem](), 0
        hidden = _TAG.sub(lambda tag: b"\xff" * len(tag[0]), written)  # a word such as hi is in </think> too
        start = max(written.find(data), hidden.find(data))
        end = len(written) if start < 0 else start + len(data)
        while self._waiting and at < end:
            item = self._waiting.pop(0)
            at += len(item["bytes"])
            if at > start:
                result.append(item)
        return result


Event = dict[str, Any]
_DONE = "completed"
_CALL = "response.function_call_arguments"


class OutputItems:
    """Builds the items of one answer while it arrives, and sends each change as an event."""

    def __init__(self, functions: Sequence[Function] = ()) -> None:
        """`functions` may be called."""
        self._namespaces = {each.name: each.namespace for each in functions if each.namespace}
        self.items: list[dict[str, Any]] = []
        self._is_open = False  # whether the last item may grow
        self._scores = TextScores()
        self._logprobs: list[LogprobItem] = []  # of the part that is added

    def add(self, parts: Sequence[Part], scores: Sequence[LogprobItem] = ()) -> Iterator[Event]:
        """Events of what is new, with the scores of its tokens; must be read to its end."""
        self._scores.add(scores)
        for part in parts:
            self._logprobs = self._scores.taken(part.text)
            match part.kind:
                case "reasoning":
                    yield from self._text("reasoning", part.text)
                case "content":
                    yield from self._text("message", part.text)
                case "call":
                    yield from self._call(part.text)
                case "arguments":
                    item = self.items[-1]
                    item["arguments"] += part.text
                    yield self._event(f"{_CALL}.delta", item_id=item["id"], delta=part.text)

    def finish(self, is_complete: bool, is_cut: bool = False) -> Iterator[Event]:
        """The last events; an answer without text has an empty message. `is_cut`: a call may be, too."""
        if not self.items:
            yield from self._begun("message")
        if is_cut:
            is_complete = is_complete and is_json(self.items[-1].get("arguments", "{}"))
        yield from self._closed(_DONE if is_complete else "incomplete")

    def _text(self, kind: str, text: str) -> Iterator[Event]:
        if not self._is_open or self.items[-1]["type"] != kind:
            yield from self._closed(_DONE)
            yield from self._begun(kind)
        part = self.items[-1]["content"][0]
        part["text"] += text
        if kind == "message":
            part["logprobs"] += self._logprobs
        yield self._of_part(f"{_event_kind(kind)}.delta", self._logprobs, delta=text)

    def _begun(self, kind: str) -> Iterator[Event]:
        self._is_open = True
        number = uuid.uuid4().hex
        if kind == "reasoning":
            item: dict[str, Any] = {"id": f"rs_{number}", "type": kind, "summary": []}
            part: dict[str, Any] = {"type": "reasoning_text", "text": ""}
        else:
            item = {"id": f"msg_{number}", "type": kind, "role": "assistant"}
            part = {"type": "output_text", "text": "", "annotations": [], "logprobs": []}
        yield self._added({**item, "status": "in_progress", "content": []})
        self.items[-1]["content"] = [part]
        added = {**part, "logprobs": []} if "logprobs" in part else dict(part)
        yield self._of_part("response.content_part.added", part=added)

    def _closed(self, status: str) -> Iterator[Event]:
        if not self._is_open:
            return
        self._is_open, item = False, self.items[-1]
        item["status"] = status
        if item["type"] == "function_call":
            told = {"name": item["name"], "arguments": item["arguments"]}
            yield self._event(f"{_CALL}.done", item_id=item["id"], **told)
        else:
            part = item["content"][0]
            logprobs = part.get("logprobs", ())
            yield self._of_part(f"{_event_kind(item['type'])}.done", logprobs, text=part["text"])
            yield self._of_part("response.content_part.done", part=part)
        yield self._event("response.output_item.done", item=item)

    def _call(self, name: str) -> Iterator[Event]:
        yield from self._closed(_DONE)
        self._is_open = True
        namespace = self._namespaces.get(name)
        item = {
            "id": f"fc_{uuid.uuid4().hex}",
            "type": "function_call",
            "call_id": f"call_{uuid.uuid4().hex[:24]}",
            "name": name.removeprefix(f"{namespace}."),
            "arguments": "",
            "status": "in_progress",
        }
        yield self._added(item if namespace is None else {**item, "namespace": namespace})

    def _added(self, item: dict[str, Any]) -> Event:
        self.items.append(item)
        return self._event("response.output_item.added", item=dict(item))

    def _event(self, kind: str, **data: Any) -> Event:
        return {"type": kind, "output_index": len(self.items) - 1, **data}

    def _of_part(self, kind: str, logprobs: Sequence[LogprobItem] = (), **data: Any) -> Event:
        if kind.startswith("response.output_text"):
            data["logprobs"] = list(logprobs)
        return self._event(kind, item_id=self.items[-1]["id"], content_index=0, **data)


def _event_kind(item_type: str) -> str:
    return "response.reasoning_text" if item_type == "reasoning" else "response.output_text"


router = APIRouter()


@router.post("/v1/responses", responses=STREAMED)
async def create_response(body: ResponsesRequest, request: Request, served: Served) -> Response:
    """Answer an input; as one JSON document, or as typed events while tokens come."""
    served.require_name(body.model)
    given = {"max_tokens": body.max_output_tokens, "logprobs": body.most_logprobs}
    sampling = body.sampling_params(served.presets, **given)
    has_form = sampling.structured_outputs is not None
    chosen, contents = chosen_functions(body.functions(), body.tool_choice), served.contents()
    turns, goes_on = body.messages(contents), body.is_continued
    conversation = Conversation.asked(body, turns, chosen, contents, goes_on, has_form=has_form)
    place = "instructions" if has_surrogate(body.instructions or "") else "input"
    chat = await prepare(served, conversation, place)
    request_id = f"resp_{uuid.uuid4().hex}"
    answers = await chat.answers(sampling, request_id, body, request.headers)
    return await respond(request, answers, _Answer(body, chat, sampling, request_id), body.is_stream)


class _Answer(TypedReply):
    """One response, while it is written."""

    def __init__(
        self, body: ResponsesRequest, chat: PreparedChat, sampling: SamplingParams, request_id: str
    ) -> None:
        self._served, self._parser = chat.served, chat.new_parser(body.parallel_tool_calls is False)
        self._items, self._stops = OutputItems(chat.chat.functions), sampling.stop
        self.usage = Usage.of(chat, thoughts=chat.thoughts)
        self._status = "in_progress"
        self._head = {
            "id": request_id,
            "object": "response",
            "created_at": int(time.time()),
            "model": chat.served.names[0],
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
        self.usage.count(0, output)
        done = output.completion
        scores = chat_logprobs(self._served.tokenizer, output.logprobs)
        end = end_of(done, self._stops, self._served.tokenizer)
        parts = self._parser.feed(output.text, end)
        yield from self._items.add(parts, scores)
        if done is not None:
            self._status = "completed" if done.finish_reason == "stop" else "incomplete"
            yield from self._items.finish(done.finish_reason == "stop", end != "stop")
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

        def begun(kind: str) -> bytes:
            return numbered({"type": kind, "response": self.whole()})

        yield begun("response.created")
        yield begun("response.in_progress")
        async for new in answers:
            if not new:  # clients such as Codex count no comments, and leave after 300 s without an event
                yield answers.sign() + begun("response.in_progress")
            elif told := [numbered(data) for _, output in new for data in self.told(output)]:
                yield b"".join(told)

    def _told_usage(self) -> dict[str, Any]:
        usage = self.usage.as_dict()
        return {
            "input_tokens": usage["prompt_tokens"],
            "input_tokens_details": usage["prompt_tokens_details"],
            "output_tokens": usage["completion_tokens"],
            "output_tokens_details": usage["completion_tokens_details"],
            "total_tokens": usage["total_tokens"],
        }
