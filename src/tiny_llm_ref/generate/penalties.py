"""How a request's sampling parameters change logits: biases, penalties, a minimum length."""

from collections import Counter
from collections.abc import Callable, Collection, Sequence

import mlx.core as mx

from tiny_llm_lab.types import SamplingParams

# Softmax turns this into 0, but it is above -inf. So if a grammar allows nothing but the end of the answer,
# the answer ends too early.
_BARRED = -1e30


class Penalties:
    """The `LogitsProcessor` of a request's min_tokens, logit_bias and penalties, in this order."""

    def __init__(
        self, sampling: SamplingParams, prompt: Sequence[int], end_token_ids: Collection[int] = ()
    ) -> None:
        """`end_token_ids` end the answer, and are not allowed before its min_tokens-th token."""
        self.sampling = sampling
        self._ends = sorted(end_token_ids)
        self._prompt = frozenset(prompt) if sampling.repetition_penalty != 1 else frozenset()
        self._prompt_ids = mx.array(sorted(self._prompt), mx.uint32)
        pairs = sampling.logit_bias_pairs
        self._biased = mx.array([token for token, _ in pairs], mx.uint32)
        self._biases = mx.array([bias for _, bias in pairs], mx.float32)

    def __call__(self, logits: mx.array, prompt: Sequence[int], answer: Sequence[int]) -> mx.array:
        """logits [V] of the token after `answer` -> [V] float32, lazily.

        The logit of a token in `prompt` or `answer` is divided by repetition_penalty if it is positive, and
        otherwise multiplied by it. A token that occurs n times in `answer` loses presence_penalty plus n
        times frequency_penalty. The time depends on the number of tokens of `answer`, not of `prompt`.
        """
        s = self.sampling
        logits = logits.astype(mx.float32)
        ends = mx.array([token for token in self._ends if token < len(logits)], mx.uint32)
        if len(answer) < s.min_tokens and len(ends):
            logits = mx.put_along_axis(logits, ends, mx.full(ends.shape, _BARRED), axis=0)
        if len(self._biased):
            logits = logits.at[self._biased].add(self._biases)
        counts = Counter(answer)
        if s.repetition_penalty != 1:
            fresh = mx.array([token for token in counts if token not in self._prompt], mx.uint32)
            seen = mx.concatenate([self._prompt_ids, fresh])
            scores = logits[seen]
            penalized = mx.where(scores > 0, scores / s.repetition_penalty, scores * s.repetition_penalty)
            logits = mx.put_along_axis(logits, seen, penalized, axis=0)
        if counts and (s.presence_penalty or s.frequency_penalty):
            times = mx.array(list(counts.values()), mx.float32)
            loss = s.presence_penalty + s.frequency_penalty * times
            logits = logits.at[mx.array(list(counts), mx.uint32)].subtract(loss)
        return logits


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
