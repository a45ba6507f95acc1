"""Refuses prompts before the engine sees them."""

from collections.abc import Sequence

from tiny_llm_lab.serving.server.errors import ApiError
from tiny_llm_lab.serving.server.served_model import ServedModel


def require_prompt(served: ServedModel, token_ids: Sequence[int], param: str = "prompt") -> None:
    """Raise ApiError for a prompt that is empty or has a token outside the vocabulary."""
    if not token_ids:
        raise ApiError(400, f"{param} is empty: give at least one token", param=param)
    if not 0 <= min(token_ids) <= max(token_ids) < served.facts.model.vocab_size:
        message = (
            f"{param} has a token id outside the model's vocabulary of {served.facts.model.vocab_size} tokens"
        )
        raise ApiError(400, f"{message}: use this model's tokenizer", param=param)


def require_short(served: ServedModel, text: str, max_tokens: int | None, param: str = "prompt") -> None:
    """Raise ApiError for a text that is too long however it is encoded; encoding it could take seconds."""
    if len(text) <= served.max_num_tokens:
        return  # short enough to encode, so the numbers can be exact
    fewest = -(-len(text) // served.tokenizer.longest_token)
    require_room(served, fewest, max_tokens, param, "at least ")


def require_room(
    served: ServedModel,
    num_prompt_tokens: int,
    max_tokens: int | None,
    param: str = "prompt",
    about: str = "",
) -> None:
    """Raise ApiError when prompt and answer are longer than the model's context.

    `about` is what the message says before these numbers, where they are estimates.
    """
    limit, answer = served.max_num_tokens, 1 if max_tokens is None else max_tokens
    if num_prompt_tokens + answer <= limit:
        return
    parts = f"{about}{num_prompt_tokens} in the {param}" + (
        "" if max_tokens is None else f", {max_tokens} in the completion"
    )
    message = (
        f"This model's maximum context length is {limit} tokens. However, you requested "
        f"{about}{num_prompt_tokens + answer} tokens ({parts}). Please reduce the length of either."
    )
    raise ApiError(400, message, param=param, code="context_length_exceeded")
