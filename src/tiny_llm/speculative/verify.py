"""Which guesses stand: drafts are checked so that the answer keeps its distribution, and its seed."""

from collections.abc import Iterable, Iterator, Sequence

import mlx.core as mx

from tiny_llm_lab.types import SamplingParams


class PositionSampler:
    """The sampler of one request that can be asked for any position again, in any order."""

    def __init__(self, sampling: SamplingParams, num_prompt_tokens: int, coupled: bool = True) -> None:
        """Position 0 is the prompt's first token, so the answer's first one has `num_prompt_tokens`.

        `coupled` says how `draft` draws: with the key that `draw` will use, or with one of its own.
        """
        raise NotImplementedError("task 3.6.2")

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken always."""
        raise NotImplementedError("task 3.6.2")

    def scores(self, logits: mx.array) -> mx.array:
        """What is drawn from: `truncated_logits` [..., V] of logits [..., V] by this request's settings.

        Raises ValueError when greedy.
        """
        raise NotImplementedError("task 3.6.2")

    def key(self, position: int) -> mx.array:
        """The key of `position`; for the n-th token of the answer that of `make_sampler`'s n-th call.

        Raises ValueError for a position inside the prompt.
        """
        raise NotImplementedError("task 3.6.2")

    def draw(self, logits: mx.array, position: int) -> int:
        """The token at `position`, from logits [1, V]: a function of these, the seed and the position."""
        raise NotImplementedError("task 3.6.2")

    def draws(self, logits: mx.array, position: int) -> Iterator[int]:
        """`draw` for logits [n, V] of the positions from `position` on, each when it is asked for."""
        raise NotImplementedError("task 3.6.2")

    def lazy_draws(self, logits: mx.array, position: int) -> mx.array:
        """What `draws` would yield for logits [n, V], as an array [n] that is not computed yet."""
        raise NotImplementedError("task 3.6.2")

    def draft(self, logits: mx.array, position: int) -> tuple[int, mx.array | None]:
        """A guess for `position` from the logits [1, V] of a draft model, cut as those of the model are.

        Coupled, or greedy: what `draw` makes of these logits, and None. Otherwise drawn with a key that
        nothing else uses, and the distribution [V] float32 that it was drawn from.
        """
        raise NotImplementedError("task 3.6.2")


def accept(logits: mx.array, draft: Sequence[int], sampler: PositionSampler, position: int) -> list[int]:
    """Check K guesses against logits [K + 1, V]; return the 1 to K + 1 tokens that are certain now.

    Row i predicts `position` + i, where guess i stands; the last row follows the last guess. Each token is
    the one that `sampler` draws there from its row, and they end with the first that was not guessed. So
    guesses change how many tokens a step brings, never which; a guess d stands with probability p(d).
    Raises ValueError unless there is one row more than guesses.
    """
    raise NotImplementedError("task 3.6.2")


def standing_tokens(drawn: Iterable[int], draft: Sequence[int]) -> list[int]:
    """The first of the tokens `drawn`, up to and with the one that differs from its guess in `draft`.

    There is one more drawn than guessed: when all guesses stand, all of them. No more are taken from `drawn`.
    """
    raise NotImplementedError("task 3.6.2")


def accept_with_draft_probs(
    logits: mx.array, draft: Sequence[int], draft_probs: mx.array, sampler: PositionSampler, position: int
) -> list[int]:
    """As `accept`, for guesses that were drawn from draft_probs [K, V] (Leviathan et al., arXiv 2211.17192).

    With p the distribution of the sampler and q that of the draft: a guess d stands with probability
    min(1, p(d) / q(d)); the first that falls is replaced by a draw from max(p - q, 0), normalised, and
    ends the step; when all stand, the last row brings one more token. Every token has distribution p,
    and more guesses stand than with `accept`; which token comes depends on the guess. Greedy sampling
    needs no q. Raises ValueError unless draft_probs has a row per guess and V columns.
    """
    raise NotImplementedError("task 3.6.2")
