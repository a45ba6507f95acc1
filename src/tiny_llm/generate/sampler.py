"""From logits to a token: greedy, or drawn from a truncated distribution."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import SamplingParams


class Sampler:
    """Picks the tokens of one request. A draw depends only on the logits, the seed and the position.

    So it does not matter in which step a token is drawn, with which other tokens, or whether it was drafted.
    """

    def __init__(self, sampling: SamplingParams = SamplingParams()) -> None:
        """Sets sampling. Of its fields only temperature, top_k, top_p, min_p and seed are used."""
        raise NotImplementedError("task 1.7.2")

    @property
    def is_greedy(self) -> bool:
        """Whether the temperature is 0, so that the likeliest token is always picked."""
        raise NotImplementedError("task 1.7.2")

    def __call__(self, logits: mx.array, position: int) -> mx.array:
        """Draw from logits [n, V] -> tokens [n] uint32, lazily; row i is for the token at `position` + i.

        A token's position is the number of tokens before it, prompt included. If greedy, returns the
        likeliest tokens. Otherwise row i is drawn from the softmax of `scores(logits)[i]`: the token is the
        place of its largest sum with the row that `gumbel` returns for `key(position + i)`.
        """
        raise NotImplementedError("task 1.7.2")

    def drawn(self, logits: mx.array, keys: Sequence[int]) -> mx.array:
        """Returns the tokens [n] of logits [n, V] as a call does, with the key of each row."""
        raise NotImplementedError("task 1.7.2")

    def scores(self, logits: mx.array) -> mx.array:
        """Returns `truncated_logits` [..., V] of logits [..., V] with this request's settings.

        Raises ValueError if greedy.
        """
        raise NotImplementedError("task 1.7.2")

    def key(self, position: int) -> int:
        """Returns the key of a position, 0 to 2**64 - 1. In practice no two seeds or positions share one."""
        raise NotImplementedError("task 1.7.2")


def sample_rows(logits: mx.array, parts: Sequence[tuple[Sampler, int, int]]) -> mx.array:
    """Draw for several requests from their rows of logits [n, V] -> tokens [n] uint32, lazily.

    `parts` has (sampler, position of its first row, number of rows), in the order of the rows. If all
    requests are greedy they share one pass over the logits.
    """
    raise NotImplementedError("task 1.7.2")


def most_likely(logits: mx.array) -> mx.array:
    """Returns the likeliest token of each row: logits [n, V] -> [n] uint32. For equal logits, the lowest."""
    raise NotImplementedError("task 1.7.2")


def truncated_logits(
    logits: mx.array, temp: float, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0
) -> mx.array:
    """Returns what a sampler draws from: logits [..., V] / temp -> scores [..., V] float32, -inf where cut.

    top-k comes first, then top-p, then min-p. Each sees what the previous steps have left, and keeps every
    token whose score reaches a threshold, equal scores included. The softmax of a row is the distribution.
    Raises ValueError unless `temp` is positive.
    """
    raise NotImplementedError("task 1.7.2")


def apply_top_k(scores: mx.array, top_k: int) -> mx.array:
    """Returns `scores` [..., V] with all that don't reach the `top_k`-th highest set to -inf; 0 keeps all."""
    raise NotImplementedError("task 1.7.1")


def apply_top_p(scores: mx.array, top_p: float) -> mx.array:
    """Returns `scores` [..., V], which are logits, with all outside the nucleus set to -inf; 1 keeps all.

    The nucleus (arXiv 1904.09751, section 3.1) has every token whose score reaches a threshold, the highest
    at which the kept probabilities add up to `top_p` or more. The token that crosses `top_p` is kept, so
    there is always at least one.
    """
    raise NotImplementedError("task 1.7.1")


def apply_min_p(scores: mx.array, min_p: float) -> mx.array:
    """Returns `scores` with tokens less than `min_p` times as likely as the likeliest set to -inf.

    `scores` [..., V] are logits; 0 keeps all (arXiv 2407.01082).
    """
    raise NotImplementedError("task 1.7.1")
