"""Conversations as programs send them back, with a word of its own in everything that was said."""

import json
import random
from dataclasses import dataclass, field
from typing import Any

TOOL: Any = {"name": "get", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}


@dataclass
class History:
    """One conversation for all three APIs."""

    rng: random.Random
    chat: list[dict[str, Any]] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    items: list[dict[str, Any]] = field(default_factory=list)
    before: str | None = None  # instructions beside the turns, where an API has them
    words: list[str] = field(default_factory=list)  # of all that a template may not drop
    thoughts: list[str] = field(default_factory=list)

    def word(self) -> str:
        """A new word, which must be shown."""
        self.words.append(f"w{len(self.words)}ord")
        return self.words[-1]

    def said(self, role: str) -> None:
        """A turn of a user or of the system."""
        text = self.word()
        parts = self.rng.random() < 0.4
        self.chat.append({"role": role, "content": [{"type": "text", "text": text}] if parts else text})
        # What the system says before the first answer would go to the beginning.
        is_early = all(each["role"] != "assistant" for each in self.messages)
        kept = "user" if role == "developer" or is_early else role
        self.messages.append({"role": kept, "content": [{"type": "text", "text": text}] if parts else text})
        self.items.append(
            {"role": role, "content": [{"type": "input_text", "text": text}] if parts else text}
        )

    def answered(self, num_calls: int) -> None:
        """An answer, with the results of its calls."""
        content = self.word() if self.rng.random() < 0.6 else ""
        chat: dict[str, Any] = {"role": "assistant", "content": content or self.rng.choice(("", None))}
        blocks: list[dict[str, Any]] = []
        if self.rng.random() < 0.4:
            self._thought(chat, blocks)
        if content:
            blocks.append({"type": "text", "text": content})
            part: dict[str, Any] = {"type": "output_text", "text": content, "annotations": []}
            self.items.append({"type": "message", "role": "assistant", "content": [part]})
        calls = [self._called(blocks) for _ in range(num_calls)]
        if calls:
            chat["tool_calls"] = calls
        self.chat.append(chat)
        self.messages.append({"role": "assistant", "content": blocks})
        self._returned([each["id"] for each in calls])

    def _thought(self, chat: dict[str, Any], blocks: list[dict[str, Any]]) -> None:
        """Thoughts, in a field of their own or before the text, and maybe empty ones behind them."""
        said = f"t{len(self.thoughts)}hought"
        self.thoughts.append(said)
        if chat["content"] and self.rng.random() < 0.3:
            chat["content"] = f"<think>\n{said}\n</think>\n\n{chat['content']}"
        else:
            chat[self.rng.choice(("reasoning_content", "reasoning"))] = said
        blocks.append({"type": "thinking", "thinking": said, "signature": ""})
        kind = self.rng.choice(("content", "summary"))
        item: dict[str, Any] = {"type": "reasoning", "summary": []}
        self.items.append({**item, kind: [{"type": f"{kind}_text", "text": said}]})
        if self.rng.random() < 0.3:
            blocks.append({"type": "redacted_thinking", "data": "x"})
            self.items.append({**item, "encrypted_content": "x"})

    def _called(self, blocks: list[dict[str, Any]]) -> dict[str, Any]:
        """A call whose arguments are an object, or what a model wrote or was cut in."""
        word, name = self.word(), f"call_{len(self.words)}"
        whole = json.dumps({"city": word, "more": [None, {}]})
        arguments = self.rng.choice((whole, whole, whole[:16], f'["{word}"]', f'"{word}"', word))
        try:
            value = json.loads(arguments)
        except ValueError:
            value = None
        given = value if isinstance(value, dict) else {"city": word}
        blocks.append({"type": "tool_use", "id": name, "name": "get", "input": given})
        item = {"call_id": name, "name": "get", "arguments": arguments}
        self.items.append({"type": "function_call", **item})
        return {"id": name, "type": "function", "function": {"name": "get", "arguments": arguments}}

    def _returned(self, ids: list[str]) -> None:
        results: list[dict[str, Any]] = []
        for name in ids:
            text, parts = self.word(), self.rng.random() < 0.4
            content: Any = [{"type": "text", "text": text}] if parts else text
            turn: dict[str, Any] = {"role": "tool", "tool_call_id": name, "content": content}
            if self.rng.random() < 0.2:
                del turn["tool_call_id"]
            self.chat.append(turn)
            results.append({"type": "tool_result", "tool_use_id": name, "content": content})
            output: Any = [{"type": "input_text", "text": text}] if parts else text
            self.items.append({"type": "function_call_output", "call_id": name, "output": output})
        if results:
            self.messages.append({"role": "user", "content": results})


def history(rng: random.Random) -> History:
    """A conversation that a model answers next."""
    made = History(rng)
    if rng.random() < 0.3:
        made.before = made.word()
        made.chat.append({"role": "system", "content": made.before})
    for _ in range(rng.choice((0, 1, 1, 2, 3))):
        made.said(rng.choice(("system", "developer")))
    for _ in range(rng.randrange(4)):
        made.said("user")
        for _ in range(rng.randrange(1, 3)):
            made.answered(rng.choice((0, 0, 1, 1, 2, 3)))
            if rng.random() < 0.15:
                made.said(rng.choice(("system", "developer")))
    made.said("user")
    if rng.random() < 0.4:
        made.answered(rng.choice((1, 2)))  # the results of its calls are the question
    return made
