"""How likely the tokens of an answer or of a prompt were."""

from collections.abc import Callable, Sequence

import mlx.core as mx

from tiny_llm_lab.types import KernelOps, TokenLogprobs

Head = Callable[[mx.array], mx.array]  # hidden [n, E] -> logits [n, V]


def score_tokens(
    logits: mx.array, tokens: mx.array, num_top: int, ops: KernelOps | None = None
) -> Sequence[mx.array]:
    """logits [n, V], tokens [n] -> logprobs [n], top_tokens [n, num_top], top_logprobs [n, num_top], lazily.

    A logprob is the natural logarithm of the softmax of `logits`, in float32. top_tokens are the likeliest
    tokens of each row, in any order. With operators `ops.score` computes all of it.
    """
    raise NotImplementedError("task 3.7.1")


def read_logprobs(
    tokens: Sequence[int], scores: Sequence[mx.array], num_top: int | None = None
) -> tuple[TokenLogprobs, ...]:
    """Returns the logprobs of `tokens` from the first rows of `scores`, what `score_tokens` returned.

    Each has the `num_top` likeliest tokens of its row, None = all that were scored. Equally likely ones are
    in the order of their ids.
    """
    raise NotImplementedError("task 3.7.1")


class PromptLogprobs:
    """How likely each token of a prompt was, given the tokens before it. Found chunk by chunk."""

    def __init__(self, prompt: Sequence[int], num_top: int, ops: KernelOps | None = None) -> None:
        """Sets found = [None], because the first token has no logprob. `ops` are the model's operators."""
        raise NotImplementedError("task 3.7.1")

    def places(self, num_computed: int, num_new: int) -> range:
        """Returns the places, of `num_new` starting at `num_computed`, whose next token is not scored yet."""
        raise NotImplementedError("task 3.7.1")

    def score(self, hidden: mx.array, head: Head) -> None:
        """Append to `found` how likely each next token is by what `head` makes of hidden [n, E].

        Row i is that of place i of their `places`. Computes it, with a part of the logits [n, V] at a time.
        """
        raise NotImplementedError("task 3.7.1")


class PromptRows:
    """The rows of a step after which tokens of prompts are scored."""

    def __init__(self, parts: Sequence[tuple[PromptLogprobs | None, int, int]]) -> None:
        """`parts` has (its `PromptLogprobs` or None, num_computed_tokens, num_new_tokens) of each request.

        Sets rows, in the order of `parts`, and hidden, of no row.
        """
        raise NotImplementedError("task 3.7.1")

    def keep(self, hidden: mx.array, head: Head) -> None:
        """Keep the rows' hidden [n, E] and their `head` for `read`."""
        raise NotImplementedError("task 3.7.1")

    def read(self) -> None:
        """Score the tokens that follow `rows`, for each prompt."""
        raise NotImplementedError("task 3.7.1")
