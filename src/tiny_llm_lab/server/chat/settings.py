"""How a server reads the answers of its model; the names are those of the flags, as in vLLM."""

from dataclasses import dataclass
from typing import Final, Literal

REASONING_PARSERS: Final = ("qwen3", "off")
TOOL_CALL_PARSERS: Final = ("hermes", "off")


@dataclass(frozen=True)
class ChatSettings:
    """Which parts of an answer are split off."""

    reasoning_parser: Literal["qwen3", "off"] = "qwen3"  # <think>...</think> becomes reasoning_content
    tool_call_parser: Literal["hermes", "off"] = "hermes"  # <tool_call>...</tool_call>, JSON or Qwen3-Coder's
    enable_auto_tool_choice: bool = True  # off: tools need tool_choice required, or a named function
