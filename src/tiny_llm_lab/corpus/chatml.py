"""The chat markup of the default model, in one place: training, evaluation and the template must agree."""

from dataclasses import dataclass
from typing import Final

END_OF_TEXT: Final = "<|endoftext|>"
TURN_START: Final = "<|im_start|>"
TURN_END: Final = "<|im_end|>"
SPECIAL_TOKENS: Final = (END_OF_TEXT, TURN_START, TURN_END)

CHAT_TEMPLATE: Final = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


@dataclass(frozen=True)
class Turn:
    """One question of a user and what the assistant says to it."""

    user: str
    assistant: str


@dataclass(frozen=True)
class Conversation:
    """A chat as the model is trained on it; `system` is None when there is no system message."""

    turns: tuple[Turn, ...]
    system: str | None = None


def render_prompt(user: str) -> str:
    """What the chat template makes of a single user message, up to where the assistant starts."""
    return f"{TURN_START}user\n{user}{TURN_END}\n{TURN_START}assistant\n"
