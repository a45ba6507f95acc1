"""One request of the engine: the sequence that the scheduler counts, and the answer that its user sees."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab.types import (
    UNCHANGED,
    EngineOutput,
    KernelOps,
    LogitsProcessor,
    RowChanges,
    SamplingParams,
    TokenEvent,
    TokenLogprobs,
    are_rows,
    changes_of,
)

from ..generate.answer import Answer
from ..generate.logprobs import PromptLogprobs, read_logprobs
from ..generate.penalties import Penalties
from ..generate.sampler import Sampler
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
        self.sequence = sequence
        self.answer = answer
        self.sampler = Sampler(answer.sampling, ops)
        sampling, prompt = answer.sampling, sequence.prompt_token_ids
        num_top = sampling.prompt_logprobs
        self.prompt_logprobs = None if num_top is None else PromptLogprobs(prompt, num_top, ops)
        own = [Penalties(sampling, prompt, answer.end_token_ids)] if sampling.changes_logits else []
        self.processors: tuple[LogitsProcessor, ...] = (*own, *processors)
        self.has_own_changes = bool(self.processors) and not (ops and are_rows(self.processors))
        self.has_output = False
        self._num_prefilled = 0  # tokens of the prompt that were reported as computed
        self._logprobs: list[TokenLogprobs] = []

    @property
    def sampling(self) -> SamplingParams:
        """The sampling parameters of the request."""
        return self.answer.sampling

    def process(self, logits: mx.array) -> mx.array:
        """Returns logits [n, V], the rows of this step, after the processors (from task 3.7.3 on), lazily.

        Row i follows the answer so far and the first i tokens of the draft.
        """
        rows = []
        for i in range(len(logits)):
            row = logits[i]
            for processor in self.processors:
                row = processor(row, self.sequence.prompt_token_ids, self._answer(i))
            rows.append(row)
        return mx.stack(rows)

    def changes(self, num_rows: int, vocab_size: int) -> list[RowChanges]:
        """Returns what operators change in each of `num_rows` rows of this step (from task 3.7.3 on).

        Row i follows the answer so far and the first i tokens of the draft. No row changes if
        `has_own_changes`, because `process` has changed them.
        """
        if self.has_own_changes or not self.processors:
            return [UNCHANGED] * num_rows
        return [changes_of(self.processors, self._answer(i), vocab_size) for i in range(num_rows)]

    def _answer(self, num_drafted: int) -> list[int]:
        # Not copied for a row without a draft: after a long answer that takes longer than its penalties.
        answer = self.sequence.output_token_ids
        return [*answer, *self.sequence.spec_token_ids[:num_drafted]] if num_drafted else answer

    def accept(self, tokens: Sequence[int], scores: Sequence[mx.array] = ()) -> None:
        """Append the tokens of one step to the answer, up to the token that ends it.

        `scores` (from 3.7.1 on) is what `score_tokens` returned for them. Does not change the sequence; the
        scheduler's `commit` does that.
        """
        num_before = len(self.answer.token_ids)
        self.has_output = True
        self._report_prefill(len(self.sequence.prompt_token_ids))
        for token in tokens:
            if not self.answer.is_done:
                self.answer.accept(token)
        if scores:
            new = self.answer.token_ids[num_before:]
            self._logprobs += read_logprobs(new, scores, self.sampling.logprobs)

    def committed(self) -> None:
        """Report how much of the prompt is computed, after the scheduler's `commit` of a step."""
        self._report_prefill(min(self.sequence.num_computed_tokens, len(self.sequence.prompt_token_ids)))

    def output(self) -> EngineOutput:
        """Returns what is new for the user since the last call: tokens, text, logprobs, events, the end."""
        events = tuple(self.answer.take_events())
        token_events = [event for event in events if isinstance(event, TokenEvent)]
        logprobs, self._logprobs = tuple(self._logprobs), []
        prompt_logprobs: list[TokenLogprobs | None] = []
        if self.prompt_logprobs is not None:
            prompt_logprobs, self.prompt_logprobs = self.prompt_logprobs.found, None
        self.has_output = False
        return EngineOutput(
            self.sequence.request_id,
            tuple(event.token_id for event in token_events if event.token_id is not None),
            "".join(event.text for event in token_events),
            self.answer.completion() if self.answer.is_done else None,
            logprobs,
            events,
            self.sequence.num_cached_tokens,
            tuple(prompt_logprobs),
        )

    def _report_prefill(self, num_computed: int) -> None:
        # A preempted sequence computes part of its prompt again. That was reported before.
        if num_computed > self._num_prefilled:
            self._num_prefilled = num_computed
            self.answer.prefilled(num_computed)
