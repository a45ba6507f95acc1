"""The content of an answer of `/v1/messages`: thinking, text and tool_use, as blocks and as events."""

import json
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from tiny_llm_lab.serving.server.chat.parts import Part

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
                self.blocks[-1]["input"] = _object(self._arguments)
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


def _object(arguments: str) -> Any:
    """Arguments as an object, as which Anthropic sends them; {} if they were cut off or are no JSON."""
    try:
        value = json.loads(arguments)
        json.dumps(value, allow_nan=False)
    except (ValueError, RecursionError):
        return {}
    return value
