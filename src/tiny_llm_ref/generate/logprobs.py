"""How likely the tokens of an answer or of a prompt were."""

from collections.abc import Callable, Sequence
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import KernelOps, TokenLogprobs

Head = Callable[[mx.array], mx.array]  # hidden [n, E] -> logits [n, V]

# Logits of a whole chunk, and what scoring makes of them, would take more memory than a step is given.
_ROWS = 16


def score_tokens(
    logits: mx.array, tokens: mx.array, num_top: int, ops: KernelOps | None = None
) -> Sequence[mx.array]:
    """logits [n, V], tokens [n] -> logprobs [n], top_tokens [n, num_top], top_logprobs [n, num_top], lazily.

    A logprob is the natural logarithm of the softmax of `logits`, in float32. top_tokens are the likeliest
    tokens of each row, in any order. With operators `ops.score` computes all of it.
    """
    if ops is not None:
        return ops.score(logits, tokens, num_top)
    scores = logits.astype(mx.float32)
    # Numbers near 0 keep more digits.
    scores = scores - mx.max(scores, axis=-1, keepdims=True)
    scores = scores - mx.logsumexp(scores, axis=-1, keepdims=True)
    chosen = mx.take_along_axis(scores, tokens[:, None], axis=-1)[:, 0]
    top = mx.zeros((len(tokens), 0), mx.uint32)
    if num_top > 0:
        # Finding the few largest takes one pass over the vocabulary; sorting takes many.
        top = mx.argpartition(-scores, min(num_top, scores.shape[-1]) - 1, axis=-1)[:, :num_top]
    return chosen, top, mx.take_along_axis(scores, top, axis=-1)


def read_logprobs(
    tokens: Sequence[int], scores: Sequence[mx.array], num_top: int | None = None
) -> tuple[TokenLogprobs, ...]:
    """Returns the logprobs of `tokens` from the first rows of `scores`, what `score_tokens` returned.

    Each has the `num_top` likeliest tokens of its row, None = all that were scored. Equally likely ones are
    in the order of their ids.
    """
    chosen, top, likely = (cast(list, each.tolist()) for each in scores)
    return tuple(
        TokenLogprobs(
            token, chosen[i], tuple(sorted(zip(top[i], likely[i], strict=True), key=_rank)[:num_top])
        )
        for i, token in enumerate(tokens)
    )


class PromptLogprobs:
    """How likely each token of a prompt was, given the tokens before it. Found chunk by chunk."""

    def __init__(self, prompt: Sequence[int], num_top: int, ops: KernelOps | None = None) -> None:
        """Sets found = [None], because the first token has no logprob. `ops` are the model's operators."""
        self.found: list[TokenLogprobs | None] = [None]
        self._prompt, self._num_top, self._ops = prompt, num_top, ops

    def places(self, num_computed: int, num_new: int) -> range:
        """Returns the places, of `num_new` starting at `num_computed`, whose next token is not scored yet."""
        first = max(num_computed, len(self.found) - 1)
        return range(first, max(first, min(num_computed + num_new, len(self._prompt) - 1)))

    def score(self, hidden: mx.array, head: Head) -> None:
        """Append to `found` how likely each next token is by what `head` makes of hidden [n, E].

        Row i is that of place i of their `places`. Computes it, with a part of the logits [n, V] at a time.
        """
        for start in range(0, len(hidden), _ROWS):
            logits, first = head(hidden[start : start + _ROWS]), len(self.found)
            tokens = self._prompt[first : first + len(logits)]
            scores = score_tokens(logits, mx.array(list(tokens), mx.uint32), self._num_top, self._ops)
            self.found += read_logprobs(tokens, scores)


class PromptRows:
    """The rows of a step after which tokens of prompts are scored."""

    def __init__(self, parts: Sequence[tuple[PromptLogprobs | None, int, int]]) -> None:
        """`parts` has (its `PromptLogprobs` or None, num_computed_tokens, num_new_tokens) of each request.

        Sets rows, in the order of `parts`, and hidden, of no row.
        """
        self.rows: list[int] = []
        self.hidden = mx.array([])
        self._prompts: list[tuple[PromptLogprobs, int]] = []
        first = 0
        for prompt, num_computed, num_new in parts:
            if prompt is not None and (places := prompt.places(num_computed, num_new)):
                self._prompts.append((prompt, len(places)))
                self.rows += [first + place - num_computed for place in places]
            first += num_new

    def keep(self, hidden: mx.array, head: Head) -> None:
        """Keep the rows' hidden [n, E] and their `head` for `read`."""
        self.hidden, self._head = hidden, head

    def read(self) -> None:
        """Score the tokens that follow `rows`, for each prompt."""
        hidden = self.hidden
        for prompt, num_rows in self._prompts:
            prompt.score(hidden[:num_rows], self._head)
            hidden = hidden[num_rows:]


def _rank(entry: tuple[int, float]) -> tuple[float, int]:
    return -entry[1], entry[0]
