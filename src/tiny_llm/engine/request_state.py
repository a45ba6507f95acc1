"""One request of the engine: the sequence that the scheduler counts, and the answer that its user sees."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import EngineOutput, KernelOps, LogitsProcessor, SamplingParams

from ..generate.answer import Answer
from .sequence import TokenSequence


class RequestState:
    """A sequence and its answer, side by side; keys and values lie in the engine's blocks."""

    def __init__(
        self,
        sequence: TokenSequence,
        answer: Answer,
        ops: KernelOps | None = None,
        processors: Sequence[LogitsProcessor] = (),
    ) -> None:
        """Sets sequence, answer, has_output = False (whether a token came since the last `output`), and
        sampler, the `Sampler` of the answer's sampling parameters on the model's operators `ops`.

        Sets prompt_logprobs (from task 3.7.1 on), the `PromptLogprobs` of a request that asked for them or
        None; and processors (from task 3.7.3 on): the request's `Penalties`, if its sampling parameters
        change logits, and those given.
        """
        raise NotImplementedError("task 3.6.1")

    @property
    def sampling(self) -> SamplingParams:
        """The sampling parameters of the request."""
        raise NotImplementedError("task 3.6.1")

    def score(self, logits: mx.array, drawn: mx.array) -> tuple[mx.array, ...]:
        """The logprobs of the tokens `drawn` [n] from logits [n, V], as `score_tokens` returns them, lazily.

        Empty unless the request asked for them (from task 3.7.1 on).
        """
        raise NotImplementedError("task 3.6.1")

    def process(self, logits: mx.array) -> mx.array:
        """What the processors (from task 3.7.3 on) make of logits [n, V], the rows of this step, lazily.

        Row i follows the answer so far and the first i tokens of the draft.
        """
        raise NotImplementedError("task 3.7.3")

    def accept(self, tokens: Sequence[int], scores: Sequence[mx.array] = ()) -> None:
        """Append the tokens of one step to the answer, up to the one that ends it.

        `scores` (from 3.7.1 on) is what `score` returned for them. The sequence is not changed: the
        scheduler's `commit` does that.
        """
        raise NotImplementedError("task 3.6.1")

    def committed(self) -> None:
        """Report how much of the prompt is computed, after the scheduler's `commit` of a step."""
        raise NotImplementedError("task 3.6.1")

    def output(self) -> EngineOutput:
        """What is new for the user since the last call: tokens, text, logprobs, events, the end."""
        raise NotImplementedError("task 3.6.1")
