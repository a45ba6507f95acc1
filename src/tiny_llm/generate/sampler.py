"""From logits to a token: greedy, or drawn from a truncated distribution."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import SamplingParams


class Sampler:
    """Picks the tokens of one request: a draw depends on the logits, the seed and the position alone.

    So it does not matter in which step a token is drawn, in which company, or whether it was drafted.
    """

    def __init__(self, sampling: SamplingParams = SamplingParams()) -> None:
        """Sets sampling, of which temperature, top_k, top_p, min_p and seed count."""
        raise NotImplementedError("task 1.7.2")

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is always taken: temperature 0."""
        raise NotImplementedError("task 1.7.2")

    def __call__(self, logits: mx.array, position: int) -> mx.array:
        """Draw from logits [n, V] -> tokens [n] uint32, lazily; row i is for the token at `position` + i.

        A token's position is the number of tokens before it, prompt included. Greedy: the likeliest tokens.
        Otherwise row i is drawn from the softmax of `scores(logits)[i]` with `key(position + i)`.
        """
        raise NotImplementedError("task 1.7.2")

    def scores(self, logits: mx.array) -> mx.array:
        """`truncated_logits` [..., V] of logits [..., V] by this request's settings.

        Raises ValueError when greedy.
        """
        raise NotImplementedError("task 1.7.2")

    def key(self, position: int) -> mx.array:
        """The random key of one position: no two positions and, in practice, no two seeds share one."""
        raise NotImplementedError("task 1.7.2")


def sample_rows(logits: mx.array, parts: Sequence[tuple[Sampler, int, int]]) -> mx.array:
    """Draw for several requests from their rows of logits [n, V] -> tokens [n] uint32, lazily.

    `parts` are (sampler, position of its first row, number of rows), in the order of the rows. All greedy
    requests share one pass over the logits.
    """
    raise NotImplementedError("task 1.7.2")


def most_likely(logits: mx.array) -> mx.array:
    """The likeliest token of each row of logits [n, V] -> [n] uint32; of equal ones the lowest."""
    raise NotImplementedError("task 1.7.2")


def truncated_logits(
    logits: mx.array, temp: float, top_p: float = 1.0, top_k: int = 0, min_p: float = 0.0
) -> mx.array:
    """What a sampler draws from: logits [..., V] / temp -> scores [..., V] float32, -inf where cut.

    top-k comes first, then top-p, then min-p; each sees what those before it have left. The softmax of a
    row is the distribution. Raises ValueError unless `temp` is positive.
    """
    raise NotImplementedError("task 1.7.2")


def apply_top_k(scores: mx.array, top_k: int) -> mx.array:
    """Keep the `top_k` highest scores [..., V] of each row, set the others to -inf; 0 keeps all.

    Scores that tie with the k-th highest are kept as well.
    """
    raise NotImplementedError("task 1.7.1")


def apply_top_p(scores: mx.array, top_p: float) -> mx.array:
    """Keep the smallest set of likeliest tokens whose probabilities reach `top_p`; others -inf.

    Nucleus sampling (arXiv 1904.09751, section 3.1): the token that crosses `top_p` is kept, so at
    least one always is. `scores` [..., V] are logits; 1 keeps all.
    """
    raise NotImplementedError("task 1.7.1")


def apply_min_p(scores: mx.array, min_p: float) -> mx.array:
    """Keep tokens at least `min_p` times as likely as the likeliest one; others -inf; 0 keeps all.

    `scores` [..., V] are logits (arXiv 2407.01082).
    """
    raise NotImplementedError("task 1.7.1")
