"""The chat markup of the default model: the recall evaluation counts its tokens in every prompt."""

from typing import Final

TURN_START: Final = "<|im_start|>"
TURN_END: Final = "<|im_end|>"


def render_prompt(user: str) -> str:
    """The prompt that the chat template makes of a single user message."""
    return f"{TURN_START}user\n{user}{TURN_END}\n{TURN_START}assistant\n"
