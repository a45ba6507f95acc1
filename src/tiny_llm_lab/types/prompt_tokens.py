"""From a prompt to the tokens that a model can compute."""

import operator
from collections.abc import Sequence

from tiny_llm_lab.types.computing.model import Tokenizer
from tiny_llm_lab.types.computing.model_config import ModelConfig
from tiny_llm_lab.types.errors import UserError


def prompt_token_ids(tokenizer: Tokenizer, prompt: str | Sequence[int], config: ModelConfig) -> list[int]:
    """Returns the token ids of `prompt`. If you pass ids instead of text, they are taken as they are.

    Raises UserError if the prompt is empty, can't be encoded, or has anything but integers inside the
    vocabulary.
    """
    token_ids = _encoded(tokenizer, prompt) if isinstance(prompt, str) else _integers(prompt)
    if not token_ids:
        raise UserError("the prompt is empty: give at least one token")
    if not 0 <= min(token_ids) <= max(token_ids) < config.vocab_size:
        raise UserError("the prompt has a token id outside the vocabulary: use this model's tokenizer")
    return token_ids


def require_room(num_tokens: int, limit: int, limit_name: str) -> None:
    """Raises UserError if a prompt of `num_tokens` does not fit into `limit` tokens."""
    if num_tokens > limit:
        raise UserError(
            f"the prompt has {num_tokens} tokens but {limit_name} is {limit}: shorten it, or raise the limit "
            f"to {num_tokens} or more"
        )


def _encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    try:
        return list(tokenizer.encode(text))
    except (TypeError, UnicodeError, ValueError) as error:
        # Tokenizers in Rust reject a lone surrogate with a TypeError that does not name the text.
        reason = "it is not valid Unicode" if has_surrogate(text) else str(error).partition("\n")[0]
        raise UserError(f"the prompt cannot be encoded ({reason}): fix the text") from None


def has_surrogate(text: str) -> bool:
    """Whether half of a pair is in the text, which no encoding takes."""
    return any("\ud800" <= letter <= "\udfff" for letter in text)


def _integers(prompt: Sequence[int]) -> list[int]:
    try:
        return [operator.index(token) for token in prompt]
    except TypeError:
        raise UserError("a prompt is text or a list of integer token ids") from None
