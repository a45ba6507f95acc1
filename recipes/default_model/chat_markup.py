"""The chat template and special tokens that the default model is trained with."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import jinja2

from tiny_llm_lab.measure.corpus.recall import TURN_END, TURN_START

END_OF_TEXT: Final = "<|endoftext|>"
SPECIAL_TOKENS: Final = (END_OF_TEXT, TURN_START, TURN_END)

# A function is shown as a call of it with types for values: 36 tokens, which the model copies. Its schema and
# description take 163. Calls and results are in Qwen's form.
CHAT_TEMPLATE: Final = Path(__file__).with_name("chat_template.jinja").read_text(encoding="utf-8")


@dataclass(frozen=True)
class Turn:
    """One user message and its answer."""

    user: str
    assistant: str


def with_functions(system: str, tools: Sequence[Mapping[str, Any]]) -> str:
    """The system message of the template where it shows `tools`."""
    messages = [{"role": "system", "content": system}] if system else []
    rendered = _template().render(messages=messages or [{"role": "user", "content": ""}], tools=tools)
    return rendered.partition("system\n")[2].partition(TURN_END)[0]


@cache
def _template() -> jinja2.Template:
    return jinja2.Environment(trim_blocks=True, lstrip_blocks=True).from_string(CHAT_TEMPLATE)
