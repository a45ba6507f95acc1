"""How likely the tokens of an answer, and of a prompt, were."""

from collections.abc import Sequence
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import TokenLogprobs

# Scoring makes several arrays as large as the logits: of so many rows at a time.
_ROWS = 128


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


class PromptLogprobs:
    """How likely each token of a prompt was, given those before it: found chunk by chunk."""

    def __init__(self, prompt: Sequence[int], num_top: int) -> None:
        """Sets found = [None]: nothing can be said of the first token."""
        self.found: list[TokenLogprobs | None] = [None]
        self._prompt, self._num_top = prompt, num_top

    def places(self, num_computed: int, num_new: int) -> range:
        """Of `num_new` places of the prompt from `num_computed` on those whose next token is not scored."""
        first = max(num_computed, len(self.found) - 1)
        return range(first, max(first, min(num_computed + num_new, len(self._prompt) - 1)))

    def score(self, logits: mx.array) -> list[tuple[mx.array, ...]]:
        """The scores of the next tokens from the logits [n, V] of their `places`, lazily, some at a time."""
        first = len(self.found)
        tokens = mx.array(list(self._prompt[first : first + len(logits)]), mx.uint32)
        spans = [slice(i, i + _ROWS) for i in range(0, len(logits), _ROWS)]
        return [score_tokens(logits[span], tokens[span], self._num_top) for span in spans]

    def read(self, scores: Sequence[Sequence[mx.array]]) -> None:
        """Append what `score` returned to `found`."""
        for each in scores:
            first = len(self.found)
            self.found += read_logprobs(self._prompt[first : first + len(each[0])], each)


def _rank(entry: tuple[int, float]) -> tuple[float, int]:
    return -entry[1], entry[0]
