"""Which guesses stand: drafts are checked so that the answer keeps its distribution, and its seed."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import SamplingParams

from ..generate.sampler import make_sampler, truncated_logits


class PositionSampler:
    """The sampler of one request that can be asked for any position again, in any order."""

    def __init__(self, sampling: SamplingParams, num_prompt_tokens: int, coupled: bool = True) -> None:
        """Position 0 is the prompt's first token, so the answer's first one has `num_prompt_tokens`.

        `coupled` says how `draft` draws: with the key that `draw` will use, or with one of its own.
        """
        self.sampling = sampling
        self.coupled = coupled
        self._start = num_prompt_tokens
        self._most_likely = make_sampler()
        self._next = mx.random.key(sampling.seed)
        self._keys: list[mx.array] = []

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is taken always."""
        return self.sampling.temperature == 0

    def scores(self, logits: mx.array) -> mx.array:
        """What is drawn from: `truncated_logits` [..., V] of logits [..., V] by this request's settings.

        Raises ValueError when greedy.
        """
        s = self.sampling
        return truncated_logits(logits, s.temperature, s.top_p, s.top_k, s.min_p)

    def key(self, position: int) -> mx.array:
        """The key of `position`; for the n-th token of the answer that of `make_sampler`'s n-th call.

        Raises ValueError for a position inside the prompt.
        """
        if position < self._start:
            raise ValueError(f"position {position} is in the prompt of {self._start} tokens")
        while len(self._keys) <= position - self._start:
            self._next, draw = mx.random.split(self._next)
            self._keys.append(draw)
        return self._keys[position - self._start]

    def draw(self, logits: mx.array, position: int) -> int:
        """The token at `position`, from logits [1, V]: a function of these, the seed and the position."""
        return cast(int, self.lazy_draws(logits, position).item())

    def draws(self, logits: mx.array, position: int) -> Iterator[int]:
        """`draw` for logits [n, V] of the positions from `position` on, each when it is asked for."""
        if self.is_greedy:
            yield from cast(list[int], self._most_likely(logits).tolist())
            return
        for i in range(logits.shape[0]):
            yield self.draw(logits[i : i + 1], position + i)

    def lazy_draws(self, logits: mx.array, position: int) -> mx.array:
        """What `draws` would yield for logits [n, V], as an array [n] that is not computed yet."""
        if self.is_greedy:
            return self._most_likely(logits)
        scores = self.scores(logits)
        return mx.concatenate(
            [
                mx.random.categorical(scores[i : i + 1], key=self.key(position + i))
                for i in range(logits.shape[0])
            ]
        )

    def draft(self, logits: mx.array, position: int) -> tuple[int, mx.array | None]:
        """A guess for `position` from the logits [1, V] of a draft model, cut as those of the model are.

        Coupled, or greedy: what `draw` makes of these logits, and None. Otherwise drawn with a key that
        nothing else uses, and the distribution [V] float32 that it was drawn from.
        """
        if self.coupled or self.is_greedy:
            return self.draw(logits, position), None
        scores = self.scores(logits)
        token = mx.random.categorical(scores, key=self._parts(position)[2])
        return cast(int, token.item()), mx.softmax(scores[0], axis=-1)

    def _parts(self, position: int) -> mx.array:
        """Keys [3] of `position` for the verdict on its draft, for what replaces it, and for the draft."""
        return mx.random.split(self.key(position), 3)


def accept(logits: mx.array, draft: Sequence[int], sampler: PositionSampler, position: int) -> list[int]:
    """Check K guesses against logits [K + 1, V]; return the 1 to K + 1 tokens that are certain now.

    Row i predicts `position` + i, where guess i stands; the last row follows the last guess. Each token is
    the one that `sampler` draws there from its row, and they end with the first that was not guessed. So
    guesses change how many tokens a step brings, never which; a guess d stands with probability p(d).
    Raises ValueError unless there is one row more than guesses.
    """
    _reject_shape(logits, draft)
    return standing_tokens(sampler.draws(logits, position), draft)


def standing_tokens(drawn: Iterable[int], draft: Sequence[int]) -> list[int]:
    """The first of the tokens `drawn`, up to and with the one that differs from its guess in `draft`.

    There is one more drawn than guessed: when all guesses stand, all of them. No more are taken from `drawn`.
    """
    tokens = []
    for token, guess in zip_longest(drawn, draft):
        tokens.append(token)
        if token != guess:
            break
    return tokens


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
    _reject_shape(logits, draft)
    if draft_probs.shape != (len(draft), logits.shape[1]):
        raise ValueError(
            f"draft_probs {draft_probs.shape} for {len(draft)} guesses and logits {logits.shape}"
        )
    if sampler.is_greedy:
        return accept(logits, draft, sampler, position)
    for i, guess in enumerate(draft):
        p, q = mx.softmax(sampler.scores(logits[i]), axis=-1), draft_probs[i]
        verdict, replacement, _ = sampler._parts(position + i)
        # u < p / q, without a division that q = 0 would spoil.
        if (mx.random.uniform(key=verdict) * q[guess] < p[guess]).item():
            continue
        return [*draft[:i], _drawn_from_rest(p, q, replacement)]
    return [*draft, sampler.draw(logits[-1:], position + len(draft))]


def _drawn_from_rest(p: mx.array, q: mx.array, key: mx.array) -> int:
    rest = mx.maximum(p - q, 0)
    # Of p = q rounding can leave a rejection but no rest.
    rest = mx.where(mx.sum(rest) > 0, rest, p)
    return cast(int, mx.random.categorical(mx.log(rest), key=key).item())


def _reject_shape(logits: mx.array, draft: Sequence[int]) -> None:
    if logits.ndim != 2 or logits.shape[0] != len(draft) + 1:
        raise ValueError(f"logits {logits.shape} for {len(draft)} guesses: give [{len(draft) + 1}, V]")
