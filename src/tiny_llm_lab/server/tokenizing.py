"""From what a request holds to token ids, beside the event loop where that takes long."""

import asyncio
from collections.abc import Sequence
from typing import Final

from .errors import ApiError
from .served_model import ServedModel

_QUICK: Final = 2000  # characters that are encoded in less than a millisecond


async def encode(served: ServedModel, text: str) -> list[int]:
    """The tokens of `text`; long ones are computed on a thread. UserError for invalid Unicode."""
    if len(text) <= _QUICK:
        return served.tokenizer.encode(text)
    return await asyncio.to_thread(served.tokenizer.encode, text)


def require_prompt(served: ServedModel, token_ids: Sequence[int], param: str = "prompt") -> None:
    """Raise ApiError for a prompt that is empty or holds what is no token of the model."""
    if not token_ids:
        raise ApiError(400, f"{param} is empty: give at least one token", param=param)
    if not 0 <= min(token_ids) <= max(token_ids) < served.model.vocab_size:
        message = f"{param} has a token id outside the vocabulary of {served.model.vocab_size} tokens"
        raise ApiError(400, f"{message}: use this model's tokenizer", param=param)


def require_room(
    served: ServedModel, num_prompt_tokens: int, max_tokens: int | None, param: str = "prompt"
) -> None:
    """Raise ApiError when prompt and answer are longer than the model's context."""
    limit, answer = served.max_num_tokens, 1 if max_tokens is None else max_tokens
    if num_prompt_tokens + answer <= limit:
        return
    parts = f"{num_prompt_tokens} in the {param}" + (
        "" if max_tokens is None else f", {max_tokens} in the completion"
    )
    message = (
        f"This model's maximum context length is {limit} tokens. However, you requested "
        f"{num_prompt_tokens + answer} tokens ({parts}). Please reduce the length of either."
    )
    raise ApiError(400, message, param=param, code="context_length_exceeded")
