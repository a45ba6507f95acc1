"""How likely the tokens of an answer were."""

from collections.abc import Sequence
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import TokenLogprobs


def score_tokens(logits: mx.array, tokens: mx.array, num_top: int) -> tuple[mx.array, ...]:
    """logits [n, V], tokens [n] -> logprobs [n], top_tokens [n, num_top], top_logprobs [n, num_top], lazily.

    A logprob is the natural logarithm of the softmax of `logits`, in float32. top_tokens are the likeliest
    of each row, in any order.
    """
    scores = logits.astype(mx.float32)
    # Of numbers near 0 more digits stay.
    scores = scores - mx.max(scores, axis=-1, keepdims=True)
    scores = scores - mx.logsumexp(scores, axis=-1, keepdims=True)
    chosen = mx.take_along_axis(scores, tokens[:, None], axis=-1)[:, 0]
    top = mx.zeros((len(tokens), 0), mx.uint32)
    if num_top > 0:
        # Finding the few largest costs one walk over the vocabulary, sorting all of it many.
        top = mx.argpartition(-scores, min(num_top, scores.shape[-1]) - 1, axis=-1)[:, :num_top]
    return chosen, top, mx.take_along_axis(scores, top, axis=-1)


def read_logprobs(tokens: Sequence[int], scores: Sequence[mx.array]) -> tuple[TokenLogprobs, ...]:
    """The logprobs of `tokens` from the first rows of `scores`, the arrays that `score_tokens` returned.

    Equally likely top tokens are in the order of their ids.
    """
    chosen, top, likely = (cast(list, each.tolist()) for each in scores)
    return tuple(
        TokenLogprobs(token, chosen[i], tuple(sorted(zip(top[i], likely[i], strict=True), key=_rank)))
        for i, token in enumerate(tokens)
    )


def _rank(entry: tuple[int, float]) -> tuple[float, int]:
    return -entry[1], entry[0]
