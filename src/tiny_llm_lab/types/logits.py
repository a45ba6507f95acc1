"""What changes a request's logits before a token is drawn from them, and which requests may use it."""

from collections.abc import Sequence
from functools import reduce
from typing import Final, Protocol, cast, runtime_checkable

import mlx.core as mx

from tiny_llm_lab.types.computing.draw import UNCHANGED, RowChanges
from tiny_llm_lab.types.errors import UserError
from tiny_llm_lab.types.sampling import SamplingParams

_COMPARED: Final = 4096  # tokens at once; Python looks only through the ones that have the first difference


class LogitsProcessor(Protocol):
    """Penalties, bans, a grammar: anything that depends on the text so far."""

    def __call__(self, logits: mx.array, prompt: Sequence[int], answer: Sequence[int]) -> mx.array:
        """logits [V] of the token that follows `prompt` and `answer` -> logits [V], lazily.

        Called for tokens in any order: a rejected draft token is in `answer` in one call and not in the next.
        `answer` is only lent: it may have more tokens after the call, so copy what you keep of it.
        Must not raise, because the step that calls it also serves other requests.
        """


@runtime_checkable
class RowProcessor(LogitsProcessor, Protocol):
    """A processor that can also say what it changes, so that operators change and draw in one pass."""

    def changes(self, answer: Sequence[int], vocab_size: int) -> RowChanges:
        """What it changes in logits [V] of the token that follows `answer`. Must not raise."""


def are_rows(processors: Sequence[LogitsProcessor]) -> bool:
    """Returns whether all of them can say what they change."""
    return all(isinstance(each, RowProcessor) for each in processors)


def changes_of(processors: Sequence[LogitsProcessor], answer: Sequence[int], vocab_size: int) -> RowChanges:
    """Returns what processors that can say it change in logits [V] of the token that follows `answer`."""
    able = cast(Sequence[RowProcessor], processors)
    return reduce(RowChanges.then, (each.changes(answer, vocab_size) for each in able), UNCHANGED)


def num_common(one: Sequence[int], other: Sequence[int]) -> int:
    """Returns how many first tokens two texts have in common; quick for lists that share their numbers."""
    length = min(len(one), len(other))
    for start in range(0, length, _COMPARED):
        end = min(start + _COMPARED, length)
        if one[start:end] != other[start:end]:
            for i in range(start, end):  # all may be equal: a list and a tuple never are
                if one[i] != other[i]:
                    return i
    return length


def require_usable(sampling: SamplingParams, processors: Sequence[LogitsProcessor], vocab_size: int) -> None:
    """Raises UserError for a token outside the vocabulary, and for what no processor enforces."""
    if any(token >= vocab_size for token, _ in sampling.logit_bias_pairs):
        raise UserError(f"logit_bias has a token id outside the vocabulary: use 0 to {vocab_size - 1}")
    if any(token >= vocab_size for token in sampling.stop_token_ids):
        raise UserError(f"stop_token_ids has a token id outside the vocabulary: use 0 to {vocab_size - 1}")
    if sampling.pooling and not processors:
        raise UserError("pooling needs a model that gives vectors: serve it with --task embed or score")
    if sampling.structured_outputs is not None and not processors:
        raise UserError("structured_outputs needs a processor: call LLM.generate, or add processors_for(...)")
    if sampling.thinking_budget is not None and not processors:
        raise UserError("thinking_budget needs a processor: call LLM.generate, or add processors_for(...)")


def refuse_processors(sampling: SamplingParams, processors: Sequence[LogitsProcessor] = ()) -> None:
    """Raises UserError for what only an engine can do: processors, penalties, forms, prompt logprobs."""
    has_form = sampling.structured_outputs is not None or sampling.thinking_budget is not None
    has_more = has_form or sampling.prompt_logprobs is not None or sampling.pooling
    if processors or sampling.changes_logits or has_more:
        raise UserError(
            "penalties, logit_bias, min_tokens, structured_outputs, thinking_budget, prompt_logprobs, "
            "pooling and processors need the engine: use --engine or LLM, or leave them out"
        )
