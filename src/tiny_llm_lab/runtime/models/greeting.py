"""What a conversation opens with."""

from collections.abc import Iterable
from typing import Final, NamedTuple

from tiny_llm_lab.runtime.models.registry import SHIPPED


class Greeting(NamedTuple):
    """What a model can do, and two questions that show it."""

    says: str
    questions: tuple[str, str]


_SHIPPED: Final = Greeting(
    "A very small model. It finds facts in notes, explains the words of the course, and tells short stories.",
    (
        "Ann keeps the red lamp in the hall. Tom keeps the old map in the kitchen. Who has the lamp?",
        "What is chunked prefill?",
    ),
)
_OTHERS: Final = Greeting(
    "Ask anything, or start with one of these.",
    ("Explain chunked prefill in two sentences.", "Write a short poem about a cache."),
)


def greeting(names: Iterable[str]) -> Greeting:
    """Of the model that has these names."""
    return _SHIPPED if not SHIPPED.keys().isdisjoint(names) else _OTHERS
