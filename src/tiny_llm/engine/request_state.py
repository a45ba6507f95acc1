"""One request of the engine: the sequence that the scheduler counts, and the answer that its user sees."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import EngineOutput, KernelOps, LogitsProcessor, RowChanges, SamplingParams

from ..generate.answer import Answer
from .sequence import TokenSequence


class RequestState:
    """A sequence and its answer. Its keys and values are in the engine's blocks."""

    def __init__(
        self,
        sequence: TokenSequence,
        answer: Answer,
        ops: KernelOps | None = None,
        processors: Sequence[LogitsProcessor] = (),
    ) -> None:
        """Sets sequence, answer, has_output = False (whether a token came since the last `output`), and
        sampler, the `Sampler` of the answer's sampling parameters on the model's operators `ops`.

        Sets prompt_logprobs (from task 3.7.1 on): the `PromptLogprobs` if the request asked for them, or
        None. Sets processors (from task 3.7.3 on): the request's `Penalties`, if its sampling parameters
        change logits, followed by the `processors` given; and has_own_changes, whether `process` must change
        the logits, because operators can't.
        """
        raise NotImplementedError("task 3.6.1")

    @property
    def sampling(self) -> SamplingParams:
        """The sampling parameters of the request."""
        raise NotImplementedError("task 3.6.1")

    def process(self, logits: mx.array) -> mx.array:
        """Returns logits [n, V], the rows of this step, after the processors (from task 3.7.3 on), lazily.

        Row i follows the answer so far and the first i tokens of the draft.
        """
        raise NotImplementedError("task 3.7.3")

    def changes(self, num_rows: int, vocab_size: int) -> list[RowChanges]:
        """Returns what operators change in each of `num_rows` rows of this step (from task 3.7.3 on).

        Row i follows the answer so far and the first i tokens of the draft. No row changes if
        `has_own_changes`, because `process` has changed them.
        """
        raise NotImplementedError("task 3.7.3")

    def accept(self, tokens: Sequence[int], scores: Sequence[mx.array] = ()) -> None:
        """Append the tokens of one step to the answer, up to the token that ends it.

        `scores` (from 3.7.1 on) is what `score_tokens` returned for them. Does not change the sequence; the
        scheduler's `commit` does that.
        """
        raise NotImplementedError("task 3.6.1")

    def committed(self) -> None:
        """Report how much of the prompt is computed, after the scheduler's `commit` of a step."""
        raise NotImplementedError("task 3.6.1")

    def output(self) -> EngineOutput:
        """Returns what is new for the user since the last call: tokens, text, logprobs, events, the end."""
        raise NotImplementedError("task 3.6.1")
