"""How a request's sampling parameters change logits: biases, penalties, a minimum length."""

from collections.abc import Callable, Collection, Sequence

import mlx.core as mx

from tiny_llm_lab.types import RowChanges, SamplingParams


class Penalties:
    """The `RowProcessor` of a request's min_tokens, logit_bias and penalties, in this order."""

    def __init__(
        self, sampling: SamplingParams, prompt: Sequence[int], end_token_ids: Collection[int] = ()
    ) -> None:
        """`end_token_ids` end the answer, and are not allowed before its min_tokens-th token."""
        raise NotImplementedError("task 3.7.3")

    def __call__(self, logits: mx.array, prompt: Sequence[int], answer: Sequence[int]) -> mx.array:
        """logits [V] of the token after `answer` -> [V] float32, lazily.

        The logit of a token in `prompt` or `answer` is divided by repetition_penalty if it is positive, and
        otherwise multiplied by it. A token that occurs n times in `answer` loses presence_penalty plus n
        times frequency_penalty.
        """
        raise NotImplementedError("task 3.7.3")

    def changes(self, answer: Sequence[int], vocab_size: int) -> RowChanges:
        """Returns what `__call__` changes after `answer`, a list that may grow once you have returned.

        Counts only what differs from the last call's.
        """
        raise NotImplementedError("task 3.7.3")


def process_rows(
    logits: mx.array, parts: Sequence[tuple[Callable[[mx.array], mx.array] | None, int]]
) -> mx.array:
    """logits [n, V] of several requests -> [n, V], lazily; the same array if none has processors.

    `parts` has (function that changes the rows or None, number of rows), in the order of the rows.
    """
    raise NotImplementedError("task 3.7.3")
