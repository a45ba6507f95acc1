"""How a request's sampling parameters change logits: biases, penalties, a minimum length."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence

import mlx.core as mx

from tiny_llm_lab.types import EditTable, RowChanges, SamplingParams, num_common

# Softmax turns this into 0, but it is above -inf. So if a grammar allows nothing but the end of the answer,
# the answer ends too early.
_BARRED = -1e30


class Penalties:
    """The `RowProcessor` of a request's min_tokens, logit_bias and penalties, in this order."""

    def __init__(
        self, sampling: SamplingParams, prompt: Sequence[int], end_token_ids: Collection[int] = ()
    ) -> None:
        """`end_token_ids` end the answer, and are not allowed before its min_tokens-th token."""
        self.sampling = sampling
        self._ends = list(end_token_ids)
        self._prompt = frozenset(prompt) if sampling.repetition_penalty != 1 else frozenset()
        self._biases = dict(sampling.logit_bias_pairs)
        self._counted: list[int] = []  # the tokens of the answer that are in the counts
        self._counts = Counter[int]()
        self._table = EditTable()
        for token in {*self._prompt, *self._biases}:
            self._set(token, 0)

    def __call__(self, logits: mx.array, prompt: Sequence[int], answer: Sequence[int]) -> mx.array:
        """logits [V] of the token after `answer` -> [V] float32, lazily.

        The logit of a token in `prompt` or `answer` is divided by repetition_penalty if it is positive, and
        otherwise multiplied by it. A token that occurs n times in `answer` loses presence_penalty plus n
        times frequency_penalty.
        """
        edits = self.changes(answer, len(logits)).edits
        assert edits is not None
        tokens, (bias, factor, loss) = mx.array(edits.tokens), mx.array(edits.changes).T
        logits = logits.astype(mx.float32)
        scores = logits[tokens] + bias
        scores = mx.where(scores > 0, scores / factor, scores * factor) - loss
        return mx.put_along_axis(logits, tokens, scores, axis=0)

    def changes(self, answer: Sequence[int], vocab_size: int) -> RowChanges:
        """Returns what `__call__` changes after `answer`, a list that may grow once you have returned.

        Counts only what differs from the last call's.
        """
        known = num_common(self._counted, answer)
        removed, added = self._counted[known:], answer[known:]
        self._counts.subtract(removed)
        self._counts.update(added)
        self._counted[known:] = added
        barred = self._ends if len(answer) < self.sampling.min_tokens else []
        for token in {*removed, *added, *self._ends}:
            self._set(token, _BARRED if token in barred else 0)
        return RowChanges(self._table.edits(vocab_size))

    def _set(self, token: int, bar: float) -> None:
        count, s = self._counts[token], self.sampling
        factor = s.repetition_penalty if count or token in self._prompt else 1
        loss = s.presence_penalty + s.frequency_penalty * count if count else 0
        self._table.set(token, bar + self._biases.get(token, 0), factor, loss)


def process_rows(
    logits: mx.array, parts: Sequence[tuple[Callable[[mx.array], mx.array] | None, int]]
) -> mx.array:
    """logits [n, V] of several requests -> [n, V], lazily; the same array if none has processors.

    `parts` has (function that changes the rows or None, number of rows), in the order of the rows.
    """
    changed: list[mx.array] = []
    done = first = 0
    for process, num_rows in parts:
        if process is not None:
            changed += [logits[done:first], process(logits[first : first + num_rows])]
            done = first + num_rows
        first += num_rows
    return mx.concatenate([*changed, logits[done:]]) if changed else logits
