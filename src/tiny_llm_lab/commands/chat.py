"""From what a person typed to what the model reads."""

from typing import Any, cast

from tiny_llm_lab.types import Tokenizer


def as_chat(tokenizer: Tokenizer, text: str, raw: bool = False) -> str:
    """`text` as a user's turn in the tokenizer's chat template; unchanged when it has none or `raw`.

    An empty text stays empty: wrapped in a template, nothing would notice that nobody asked anything.
    """
    if raw or not text or not has_chat_template(tokenizer):
        return text
    # Text, not ids: what template calls return for ids differs between versions of transformers.
    rendered = cast(Any, tokenizer).apply_chat_template(
        [{"role": "user", "content": text}],
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=False,  # Qwen3's switch; other templates ignore it
    )
    return cast(str, rendered)


def has_chat_template(tokenizer: Tokenizer) -> bool:
    """Whether the checkpoint came with a chat template."""
    # mlx-lm's wrapper answers has_chat_template, the tokenizers of transformers only hold the template.
    flag = getattr(tokenizer, "has_chat_template", None)
    return bool(getattr(tokenizer, "chat_template", None) if flag is None else flag)
