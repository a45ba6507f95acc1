"""The `logprobs` of the chat API: a token at a time, with its bytes."""

from collections.abc import Sequence
from typing import Any

from tiny_llm_lab.runtime.models.text.tokenizer import CheckpointTokenizer
from tiny_llm_lab.types import TokenLogprobs


def chat_logprobs(tokenizer: CheckpointTokenizer, scores: Sequence[TokenLogprobs]) -> list[dict[str, Any]]:
    """An item for each token; a token that is a part of a character has its bytes, and U+FFFD as text."""
    return [
        {
            **_token(tokenizer, score.token_id, score.logprob),
            "top_logprobs": [_token(tokenizer, token_id, logprob) for token_id, logprob in score.top],
        }
        for score in scores
    ]


def _token(tokenizer: CheckpointTokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    data = tokenizer.token_bytes(token_id)
    return {"token": data.decode(errors="replace"), "logprob": logprob, "bytes": list(data)}
