"""How a server reads the answers of its model; the names are those of the flags, as in vLLM."""

from argparse import ArgumentParser, Namespace
from dataclasses import dataclass
from typing import Final, Literal

from tiny_llm_lab.runtime.console.field_flags import Flag, add_field_flags, given_fields


@dataclass(frozen=True)
class ChatSettings:
    """Which parts of an answer are split off."""

    reasoning_parser: Literal["qwen3", "off"] = "qwen3"
    tool_call_parser: Literal["hermes", "off"] = "hermes"
    enable_auto_tool_choice: bool = True


_FLAGS: Final = (
    Flag("reasoning_parser", "qwen3 makes <think>...</think> the reasoning_content of an answer"),
    Flag("tool_call_parser", "hermes takes <tool_call>...</tool_call> as a call, also in Qwen3-Coder's form"),
    Flag("enable_auto_tool_choice", "a request with tools leaves it to the model whether to call one"),
)


def add_chat_flags(parser: ArgumentParser) -> None:
    """The flags of `ChatSettings`."""
    add_field_flags(parser.add_argument_group("chat"), ChatSettings, _FLAGS)


def chat_settings(args: Namespace) -> ChatSettings:
    """What the flags ask for."""
    return ChatSettings(**given_fields(args, ChatSettings))
