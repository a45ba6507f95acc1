"""The output of `/v1/responses`: reasoning, message and function calls, as items and as events."""

import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from tiny_llm_lab.serving.server.chat.tool_calls import ParsedText, ToolCall
from tiny_llm_lab.serving.server.schemas.tools import Function

Event = dict[str, Any]
_DONE = "completed"


class OutputItems:
    """Builds the items of one answer while it arrives, and sends each change as an event."""

    def __init__(self, functions: Sequence[Function] = (), is_single_call: bool = False) -> None:
        """`functions` may be called; `is_single_call`: calls after the first are dropped."""
        self._namespaces = {each.name: each.namespace for each in functions if each.namespace}
        self.items: list[dict[str, Any]] = []
        self._is_single_call = is_single_call
        self._is_open = False  # whether the last item may grow

    def add(self, parsed: ParsedText) -> Iterator[Event]:
        """Events of what is new; must be read to its end."""
        if parsed.reasoning:
            yield from self._text("reasoning", parsed.reasoning)
        if parsed.content:
            yield from self._text("message", parsed.content)
        for call in parsed.tool_calls:
            if not self._is_single_call or all(each["type"] != "function_call" for each in self.items):
                yield from self._call(call)

    def finish(self, is_complete: bool) -> Iterator[Event]:
        """The last events; an answer without text has an empty message."""
        if not self.items:
            yield from self._begun("message")
        yield from self._closed(_DONE if is_complete else "incomplete")

    def _text(self, kind: str, text: str) -> Iterator[Event]:
        if not self._is_open or self.items[-1]["type"] != kind:
            yield from self._closed(_DONE)
            yield from self._begun(kind)
        part = self.items[-1]["content"][0]
        part["text"] += text
        yield self._of_part(f"{_event_kind(kind)}.delta", delta=text)

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
        yield self._of_part("response.content_part.added", part=dict(part))

    def _closed(self, status: str) -> Iterator[Event]:
        if not self._is_open:
            return
        self._is_open, item = False, self.items[-1]
        item["status"] = status
        part = item["content"][0]
        yield self._of_part(f"{_event_kind(item['type'])}.done", text=part["text"])
        yield self._of_part("response.content_part.done", part=part)
        yield self._event("response.output_item.done", item=item)

    def _call(self, call: ToolCall) -> Iterator[Event]:
        yield from self._closed(_DONE)
        namespace = self._namespaces.get(call.name)
        item = {
            "id": f"fc_{uuid.uuid4().hex}",
            "type": "function_call",
            "call_id": f"call_{uuid.uuid4().hex[:24]}",
            "name": call.name.removeprefix(f"{namespace}."),
        }
        if namespace is not None:
            item["namespace"] = namespace
        yield self._added({**item, "arguments": "", "status": "in_progress"})
        item = self.items[-1] = {**item, "arguments": call.arguments, "status": _DONE}
        kind = "response.function_call_arguments"
        yield self._event(f"{kind}.delta", item_id=item["id"], delta=call.arguments)
        yield self._event(f"{kind}.done", item_id=item["id"], name=item["name"], arguments=call.arguments)
        yield self._event("response.output_item.done", item=item)

    def _added(self, item: dict[str, Any]) -> Event:
        self.items.append(item)
        return self._event("response.output_item.added", item=dict(item))

    def _event(self, kind: str, **data: Any) -> Event:
        return {"type": kind, "output_index": len(self.items) - 1, **data}

    def _of_part(self, kind: str, **data: Any) -> Event:
        logprobs: dict[str, Any] = {"logprobs": []} if kind.startswith("response.output_text") else {}
        return self._event(kind, item_id=self.items[-1]["id"], content_index=0, **data, **logprobs)


def _event_kind(item_type: str) -> str:
    return "response.reasoning_text" if item_type == "reasoning" else "response.output_text"
