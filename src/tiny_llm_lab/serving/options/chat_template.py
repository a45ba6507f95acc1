"""From what a person typed to what the model reads."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeGuard, runtime_checkable

from tiny_llm_lab.types import Tokenizer, UserError

Turns = Sequence[Mapping[str, Any]]


@runtime_checkable
class ChatTemplate(Protocol):
    """A tokenizer with a chat template: the methods it has besides `Tokenizer`'s."""

    @property
    def has_chat_template(self) -> bool: ...

    def apply_chat_template(
        self, messages: Turns, *, add_generation_prompt: bool, tokenize: Literal[False], **variables: object
    ) -> str: ...


def has_template(tokenizer: Tokenizer) -> TypeGuard[ChatTemplate]:
    """Whether a tokenizer has a chat template."""
    return isinstance(tokenizer, ChatTemplate) and tokenizer.has_chat_template


def as_chat(
    tokenizer: Tokenizer, text: str | Turns, raw: bool = False, thinks: bool = False, picture_mark: str = ""
) -> str:
    """`text` as a user's turn in the tokenizer's chat template; unchanged when it has none or `raw`.

    `thinks`: the model may think before it answers. `picture_mark` is that of pictures in messages, if any.

    A list of messages, {"role": ..., "content": ...} each, is a conversation; UserError without a template.

    A text of blanks becomes an empty one, which solutions refuse: wrapped in a template it would be a
    prompt like any other, and the answer to a question that was not asked.
    """
    if isinstance(text, str) and (raw or not text.strip() or not has_template(tokenizer)):
        return text if raw or text.strip() else ""
    messages = [{"role": "user", "content": text}] if isinstance(text, str) else text
    if not has_template(tokenizer):
        raise UserError("this model does not have a chat template: give the prompt as text")
    # Text, not ids, because week 1's loops take text. Its type keeps `encode` from adding tokens.
    return tokenizer.apply_chat_template(
        messages,
        add_generation_prompt=True,
        tokenize=False,
        enable_thinking=thinks,  # Qwen3's switch; other templates ignore it
        **({"picture_mark": picture_mark} if picture_mark else {}),
    )
