"""How likely the tokens of an answer were."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import TokenLogprobs


def score_tokens(logits: mx.array, tokens: mx.array, num_top: int) -> tuple[mx.array, ...]:
    """logits [n, V], tokens [n] -> logprobs [n], top_tokens [n, num_top], top_logprobs [n, num_top], lazily.

    A logprob is the natural logarithm of the softmax of `logits`, in float32. top_tokens are the likeliest
    of each row, in any order.
    """
    raise NotImplementedError("task 3.6.7")


def read_logprobs(tokens: Sequence[int], scores: Sequence[mx.array]) -> tuple[TokenLogprobs, ...]:
    """The logprobs of `tokens` from the first rows of `scores`, the arrays that `score_tokens` returned.

    Equally likely top tokens are in the order of their ids.
    """
    raise NotImplementedError("task 3.6.7")
