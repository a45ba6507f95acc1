"""One step of the engine: a forward pass over the packed tokens of all requests it serves."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import PagedModel, StepPlan
from tiny_llm_lab.types.paged import PagedCache

from ..cache.step_layout import StepLayout
from ..generate.sampler import sample_rows
from .request_state import RequestState


class EngineStep:
    """A planned step, which the device computes from its construction on."""

    def __init__(
        self,
        model: PagedModel,
        kv_cache: PagedCache,
        plan: StepPlan,
        requests: Sequence[RequestState],
        start_s: float,
        previous: "EngineStep | None" = None,
    ) -> None:
        """Launch one forward pass over the tokens that `plan` has for `requests`, which are in its order.

        Does not wait for the result; logits are computed only for rows that are sampled. `previous` (from
        task 3.6.8 on) is the step before, which is still being computed: the input of each request is the
        one token that it samples there. Sets plan, requests, start_s; parts, (block_ids,
        num_computed_tokens, num_new_tokens) of each request; sampled [n] uint32, lazily, drawn from what the
        processors of a request (from task 3.6.9 on) make of its rows; scores, by request, what
        `score_tokens` found for requests that asked for logprobs; and prompt_scores (from task 3.6.7 on)
        likewise what `PromptLogprobs.score` found.
        """
        self.plan, self.requests, self.start_s = plan, requests, start_s
        self.parts = _parts(plan, requests, None if previous is None else previous.plan)
        self.scores: dict[RequestState, tuple[mx.array, ...]] = {}
        self.prompt_scores: dict[RequestState, list[tuple[mx.array, ...]]] = {}
        self._kv_cache = kv_cache
        self._num_pending = 0 if previous is None else 1  # tokens of each request not yet known
        rows, prompt_rows = self._choose_rows(), self._choose_prompt_rows()
        layout = StepLayout.of(kv_cache.block_size, self.parts)
        layers = kv_cache.begin_step(layout)
        tokens = self._known_tokens() if previous is None else previous.sampled.astype(mx.int32)
        logits = model(tokens[:, None], layout.positions, layers, rows=[*rows, *prompt_rows])[:, -1]
        if prompt_rows:
            self._score_prompts(logits[len(rows) :])
            logits = logits[: len(rows)]
        self.sampled: mx.array = self._sample(self._process(logits))
        self._score(logits)
        mx.async_eval(self.sampled, *self._all_scores(), kv_cache.pools)

    def read(self) -> dict[RequestState, list[int]]:
        """Wait for the step; return the sampled tokens of each request whose known tokens are computed now.

        These are one token more than the request has draft tokens in this step.
        """
        # A step that samples nothing still has keys and values to compute.
        mx.eval(self.sampled, *self._all_scores(), [] if self._samplers else self._kv_cache.pools)
        sampled = cast(list[int], self.sampled.tolist())
        return {request: sampled[first:end] for request, (first, end) in self._rows_of_samplers()}

    def _choose_rows(self) -> list[int]:
        """The rows to sample from: of a request all those at or behind its last known or pending token."""
        self._samplers: list[RequestState] = []
        self._bounds = [0]  # rows of the i-th sampling request: from the i-th bound to the next
        rows: list[int] = []
        num_tokens = 0
        for request, (_, computed, new) in zip(self.requests, self.parts, strict=True):
            num_tokens += new
            num_rows = computed + new - request.sequence.num_tokens - self._num_pending + 1
            if num_rows > 0:
                rows += range(num_tokens - num_rows, num_tokens)
                self._samplers.append(request)
                self._bounds.append(len(rows))
        return rows

    def _choose_prompt_rows(self) -> list[int]:
        """The rows behind which a token of a prompt is to be scored, request by request."""
        self._prompt_bounds: list[tuple[RequestState, int, int]] = []
        rows: list[int] = []
        num_tokens = 0
        for request, (_, computed, new) in zip(self.requests, self.parts, strict=True):
            if request.prompt_logprobs is not None:
                first = len(rows)
                rows += [
                    num_tokens + place - computed for place in request.prompt_logprobs.places(computed, new)
                ]
                if len(rows) > first:
                    self._prompt_bounds.append((request, first, len(rows)))
            num_tokens += new
        return rows

    def _score_prompts(self, logits: mx.array) -> None:
        for request, first, end in self._prompt_bounds:
            assert request.prompt_logprobs is not None
            self.prompt_scores[request] = request.prompt_logprobs.score(logits[first:end])

    def _all_scores(self) -> list[object]:
        return [*self.scores.values(), *self.prompt_scores.values()]

    def _process(self, logits: mx.array) -> mx.array:
        """logits [n, V] as processors change them; without any the same array."""
        if not any(request.processors for request in self._samplers):
            return logits
        parts, done = [], 0
        for request, (first, end) in self._rows_of_samplers():
            if request.processors:
                parts += [logits[done:first], request.process(logits[first:end])]
                done = end
        return mx.concatenate([*parts, logits[done:]])

    def _rows_of_samplers(self) -> Iterator[tuple[RequestState, tuple[int, int]]]:
        return zip(self._samplers, pairwise(self._bounds), strict=True)

    def _known_tokens(self) -> mx.array:
        tokens: list[int] = []
        for request, (_, computed, new) in zip(self.requests, self.parts, strict=True):
            tokens += request.sequence.tokens_between(computed, computed + new)
        return mx.array(tokens, mx.int32)

    def _sample(self, logits: mx.array) -> mx.array:
        """What all requests sample from their rows of `logits` [n, V], lazily."""
        parts = [
            (request.sampler, request.sequence.num_tokens + self._num_pending, end - first)
            for request, (first, end) in self._rows_of_samplers()
        ]
        return sample_rows(logits, parts)

    def _score(self, logits: mx.array) -> None:
        for request, (first, end) in self._rows_of_samplers():
            # A slice costs its node in the graph even when it is never read.
            if request.sampling.logprobs is not None:
                self.scores[request] = request.score(logits[first:end], self.sampled[first:end])


def _parts(
    plan: StepPlan, requests: Sequence[RequestState], previous: StepPlan | None
) -> list[tuple[Sequence[int], int, int]]:
    parts: list[tuple[Sequence[int], int, int]] = []
    for request, (name, new) in zip(requests, plan.num_scheduled_tokens.items(), strict=True):
        sequence, launched = request.sequence, 0 if previous is None else previous.num_scheduled_tokens[name]
        parts.append((sequence.block_ids, sequence.num_computed_tokens + launched, new))
    return parts
