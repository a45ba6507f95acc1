"""One step of the engine: a forward pass over the packed tokens of all requests it serves."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import PagedModel, StepPlan
from tiny_llm_lab.types.computing.paged import PagedCache

from ..cache.step_layout import StepLayout
from ..generate.logprobs import PromptRows
from ..generate.penalties import process_rows
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
        processors of a request (from task 3.6.9 on) make of its rows; and scores (from task 3.6.7 on), by
        request, what `score_tokens` found for requests that asked for logprobs.
        """
        self.plan, self.requests, self.start_s = plan, requests, start_s
        self.parts = _parts(plan, requests, None if previous is None else previous.plan)
        self.scores: dict[RequestState, tuple[mx.array, ...]] = {}
        self._kv_cache = kv_cache
        self._num_pending = 0 if previous is None else 1  # tokens of each request not yet known
        rows = self._choose_rows()
        self._prompts = PromptRows(
            [(each.prompt_logprobs, *part[1:]) for each, part in zip(requests, self.parts, strict=True)]
        )
        layout = StepLayout.of(kv_cache.block_size, self.parts)
        layers = kv_cache.begin_step(layout)
        tokens = self._known_tokens() if previous is None else previous.sampled.astype(mx.int32)
        logits = model(tokens[:, None], layout.positions, layers, rows=rows + self._prompts.rows)[:, -1]
        if self._prompts.rows:
            self._prompts.score(logits[len(rows) :])
            logits = logits[: len(rows)]
        self.sampled: mx.array = self._sample(logits)
        self._score(logits)
        mx.async_eval(self.sampled, list(self.scores.values()), self._prompts.scores, kv_cache.pools)

    def read(self) -> dict[RequestState, list[int]]:
        """Wait for the step; return the sampled tokens of each request whose known tokens are computed now.

        These are one token more than the request has draft tokens in this step.
        """
        # A step that samples nothing still has keys and values to compute.
        pools = [] if self._samplers else self._kv_cache.pools
        mx.eval(self.sampled, list(self.scores.values()), self._prompts.scores, pools)
        self._prompts.read()
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

    def _rows_of_samplers(self) -> Iterator[tuple[RequestState, tuple[int, int]]]:
        return zip(self._samplers, pairwise(self._bounds), strict=True)

    def _known_tokens(self) -> mx.array:
        tokens: list[int] = []
        for request, (_, computed, new) in zip(self.requests, self.parts, strict=True):
            tokens += request.sequence.tokens_between(computed, computed + new)
        return mx.array(tokens, mx.int32)

    def _sample(self, logits: mx.array) -> mx.array:
        """What all requests sample from their rows of `logits` [n, V], processed, lazily."""
        parts = [
            (request.sampler, request.sequence.num_tokens + self._num_pending, end - first)
            for request, (first, end) in self._rows_of_samplers()
        ]
        changes = [
            (request.process if request.processors else None, end - first)
            for request, (first, end) in self._rows_of_samplers()
        ]
        return sample_rows(process_rows(logits, changes), parts)

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
