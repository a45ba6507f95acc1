"""How likely the tokens of an answer, and of a prompt, were."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import TokenLogprobs


def score_tokens(logits: mx.array, tokens: mx.array, num_top: int) -> tuple[mx.array, ...]:
    """logits [n, V], tokens [n] -> logprobs [n], top_tokens [n, num_top], top_logprobs [n, num_top], lazily.

    A logprob is the natural logarithm of the softmax of `logits`, in float32. top_tokens are the likeliest
    of each row, in any order.
    """
    raise NotImplementedError("task 3.7.1")


def read_logprobs(tokens: Sequence[int], scores: Sequence[mx.array]) -> tuple[TokenLogprobs, ...]:
    """The logprobs of `tokens` from the first rows of `scores`, the arrays that `score_tokens` returned.

    Equally likely top tokens are in the order of their ids.
    """
    raise NotImplementedError("task 3.7.1")


class PromptLogprobs:
    """How likely each token of a prompt was, given those before it: found chunk by chunk."""

    def __init__(self, prompt: Sequence[int], num_top: int) -> None:
        """Sets found = [None]: nothing can be said of the first token."""
        raise NotImplementedError("task 3.7.1")

    def places(self, num_computed: int, num_new: int) -> range:
        """Of `num_new` places of the prompt from `num_computed` on those whose next token is not scored."""
        raise NotImplementedError("task 3.7.1")

    def score(self, logits: mx.array) -> list[tuple[mx.array, ...]]:
        """The scores of the next tokens from the logits [n, V] of their `places`, lazily, some at a time."""
        raise NotImplementedError("task 3.7.1")

    def read(self, scores: Sequence[Sequence[mx.array]]) -> None:
        """Append what `score` returned to `found`."""
        raise NotImplementedError("task 3.7.1")


class PromptRows:
    """The rows of a step behind which tokens of prompts are scored."""

    def __init__(self, parts: Sequence[tuple[PromptLogprobs | None, int, int]]) -> None:
        """`parts` are (what is to be found or None, num_computed_tokens, num_new_tokens) of each request.

        Sets rows, in the order of `parts`; and scores = [], which has to be evaluated before `read`.
        """
        raise NotImplementedError("task 3.7.1")

    def score(self, logits: mx.array) -> None:
        """Score what follows `rows`, of which `logits` [n, V] are, lazily."""
        raise NotImplementedError("task 3.7.1")

    def read(self) -> None:
        """Append what was scored to what the prompts have `found`."""
        raise NotImplementedError("task 3.7.1")
