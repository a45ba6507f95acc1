"""The chat template and special tokens that the default model is trained with."""

from dataclasses import dataclass
from typing import Final

from tiny_llm_lab.measure.corpus.chatml import TURN_END, TURN_START

END_OF_TEXT: Final = "<|endoftext|>"
SPECIAL_TOKENS: Final = (END_OF_TEXT, TURN_START, TURN_END)

CHAT_TEMPLATE: Final = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)


@dataclass(frozen=True)
class Turn:
    """One user message and its answer."""

    user: str
    assistant: str
