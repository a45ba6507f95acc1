"""The content of an answer of `/v1/messages`: thinking, text and tool_use, as blocks and as events."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

from tiny_llm_lab.serving.server.chat.tool_calls import ParsedText, ToolCall

Event = dict[str, Any]
_DELTAS = {"thinking": "thinking_delta", "text": "text_delta"}


class ContentBlocks:
    """Builds the blocks of one answer while it arrives, and sends each change as an event."""

    def __init__(self, is_one_call: bool = False) -> None:
        """`is_one_call`: calls after the first are dropped."""
        self.blocks: list[dict[str, Any]] = []
        self._is_one_call = is_one_call
        self._is_open = False  # whether the last block may grow

    @property
    def has_calls(self) -> bool:
        """Whether the answer calls a tool."""
        return any(each["type"] == "tool_use" for each in self.blocks)

    def add(self, parsed: ParsedText) -> Iterator[Event]:
        """Events of what is new; must be read to its end."""
        for kind, text in (("thinking", parsed.reasoning), ("text", parsed.content)):
            if text:
                yield from self._text(kind, text)
        for call in parsed.tool_calls:
            if not (self._is_one_call and self.has_calls):
                yield from self._call(call)

    def finish(self) -> Iterator[Event]:
        """The end of the last block."""
        if self._is_open:
            self._is_open = False
            yield {"type": "content_block_stop", "index": len(self.blocks) - 1}

    def _text(self, kind: str, text: str) -> Iterator[Event]:
        if not self._is_open or self.blocks[-1]["type"] != kind:
            signature = {"signature": ""} if kind == "thinking" else {}  # nobody checks ours
            yield from self._begun({"type": kind, kind: "", **signature})
        self.blocks[-1][kind] += text
        yield self._delta({"type": _DELTAS[kind], kind: text})

    def _call(self, call: ToolCall) -> Iterator[Event]:
        block = {"type": "tool_use", "id": f"toolu_{uuid.uuid4().hex[:24]}", "name": call.name, "input": {}}
        yield from self._begun(block)
        self.blocks[-1]["input"] = json.loads(call.arguments)
        yield self._delta({"type": "input_json_delta", "partial_json": call.arguments})
        yield from self.finish()

    def _begun(self, block: dict[str, Any]) -> Iterator[Event]:
        yield from self.finish()
        self._is_open = True
        self.blocks.append(block)
        yield {"type": "content_block_start", "index": len(self.blocks) - 1, "content_block": dict(block)}

    def _delta(self, delta: dict[str, Any]) -> Event:
        return {"type": "content_block_delta", "index": len(self.blocks) - 1, "delta": delta}
