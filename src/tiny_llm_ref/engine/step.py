"""One step of the engine: a forward pass over the packed tokens of all that it serves."""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import PagedModel, StepPlan

from ..cache.paged_kv_cache import PagedKvCache
from ..cache.step_layout import StepLayout
from ..generate.sampler import make_sampler
from .request_state import EngineRequest


class EngineStep:
    """A planned step, which the device computes from its construction on."""

    def __init__(
        self,
        model: PagedModel,
        kv_cache: PagedKvCache,
        plan: StepPlan,
        requests: Sequence[EngineRequest],
        start_s: float,
        behind: "EngineStep | None" = None,
    ) -> None:
        """Begin one forward pass over the tokens that `plan` has for `requests`, which are in its order.

        Nobody waits for the result, and the head computes only the rows that are drawn from. `behind`
        (from task 3.4.10 on) is the step before, which is still being computed: each request takes the
        one token that it draws there. Sets plan, requests, start_s; parts, (block_ids, num_computed_tokens,
        num_new_tokens) of each request; drawn [n] uint32, lazily; and scores, by request, what
        `score_tokens` found for those that asked for logprobs.
        """
        self.plan, self.requests, self.start_s = plan, requests, start_s
        self.parts = _parts(plan, requests, None if behind is None else behind.plan)
        self.scores: dict[EngineRequest, tuple[mx.array, ...]] = {}
        self._kv_cache = kv_cache
        rows = self._choose_rows(num_due=0 if behind is None else 1)
        layout = StepLayout.of(kv_cache.block_size, self.parts)
        layers = kv_cache.begin_step(layout)
        tokens = self._known_tokens() if behind is None else behind.drawn.astype(mx.int32)
        logits = model(tokens[:, None], layout.positions, layers, rows=rows)[:, -1]
        self.drawn: mx.array = self._draw(logits)
        self._score(logits)
        mx.async_eval(self.drawn, list(self.scores.values()), kv_cache.pools)

    def read(self) -> dict[EngineRequest, list[int]]:
        """Wait for the step; the tokens drawn for each request whose known tokens are all computed now.

        One for each of its rows: one without a guess.
        """
        # Without a draw, keys and values are all that it computes.
        mx.eval(self.drawn, list(self.scores.values()), [] if self._askers else self._kv_cache.pools)
        drawn = cast(list[int], self.drawn.tolist())
        return {request: drawn[first:end] for request, (first, end) in self._drawing()}

    def _choose_rows(self, num_due: int) -> list[int]:
        """The rows to draw from, of requests that have `num_due` tokens more than they know."""
        self._askers: list[EngineRequest] = []
        self._bounds = [0]  # the i-th asker's rows are those from the i-th to the next
        rows: list[int] = []
        num_tokens = 0
        for request, (_, computed, new) in zip(self.requests, self.parts, strict=True):
            num_tokens += new
            num_rows = computed + new - request.scheduled.num_tokens - num_due + 1
            if num_rows > 0:
                rows += range(num_tokens - num_rows, num_tokens)
                self._askers.append(request)
                self._bounds.append(len(rows))
        return rows

    def _drawing(self) -> Iterator[tuple[EngineRequest, tuple[int, int]]]:
        return zip(self._askers, pairwise(self._bounds), strict=True)

    def _known_tokens(self) -> mx.array:
        tokens: list[int] = []
        for request, (_, computed, new) in zip(self.requests, self.parts, strict=True):
            tokens += request.scheduled.tokens_between(computed, computed + new)
        return mx.array(tokens, mx.int32)

    def _draw(self, logits: mx.array) -> mx.array:
        """What all draw from their rows of `logits` [n, V], lazily."""
        if not self._askers:
            return mx.array([], mx.uint32)
        # One pass over all rows serves the greedy ones together.
        likeliest = make_sampler()(logits)
        if all(request.answer.sampling.temperature == 0 for request in self._askers):
            return likeliest
        draws = []
        for request, (first, end) in self._drawing():
            is_greedy = request.answer.sampling.temperature == 0
            draws.append(likeliest[first:end] if is_greedy else request.draws(logits[first:end]))
        return mx.concatenate(draws)

    def _score(self, logits: mx.array) -> None:
        for request, (first, end) in self._drawing():
            # A slice costs its node in the graph, also when nobody reads it.
            if request.answer.sampling.logprobs is not None:
                self.scores[request] = request.score(logits[first:end], self.drawn[first:end])


def _parts(
    plan: StepPlan, requests: Sequence[EngineRequest], behind: StepPlan | None
) -> list[tuple[Sequence[int], int, int]]:
    parts: list[tuple[Sequence[int], int, int]] = []
    for request, (name, new) in zip(requests, plan.num_scheduled_tokens.items(), strict=True):
        scheduled, under_way = request.scheduled, 0 if behind is None else behind.num_scheduled_tokens[name]
        parts.append((scheduled.block_ids, scheduled.num_computed_tokens + under_way, new))
    return parts
