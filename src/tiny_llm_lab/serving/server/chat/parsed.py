"""What a model's text means to a client of the chat API."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ToolCall:
    """A function that the model wants to be called; `arguments` is a JSON object as text."""

    name: str
    arguments: str


@dataclass(frozen=True)
class ParsedText:
    """What is new in an answer."""

    reasoning: str = ""
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()


def num_held(text: str, tag: str) -> int:
    """How many of the last characters of `text` may be the beginning of `tag`."""
    return next(
        (size for size in range(min(len(tag) - 1, len(text)), 0, -1) if tag[:size] == text[-size:]), 0
    )
