"""One step of the engine: a forward pass over the packed tokens of all requests it serves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import PagedModel, StepPlan, Wanted
from tiny_llm_lab.types.computing.paged import PagedCache, Slice
from tiny_llm_lab.types.computing.pictures import reader

from ..cache.step_layout import StepLayout
from ..generate.logprobs import PromptRows, score_tokens
from ..generate.penalties import process_rows
from ..generate.sampler import sample_rows
from .request_state import RequestState


@dataclass(frozen=True, eq=False)
class InflightStep:
    """A launched step, which the device computes while Python does other work."""

    plan: StepPlan
    requests: Sequence[RequestState]  # in the order of the plan
    start_s: float
    slices: Sequence[Slice]  # what it computes of each request
    sampled: mx.array  # [n] uint32, lazily: the tokens of all sampled rows
    # What `score_tokens` returned, lazily, for requests that want logprobs (from task 3.7.1 on; {} before).
    scores: Mapping[RequestState, Sequence[mx.array]]
    is_late: bool  # whether `sample_late` has yet to draw the tokens (from task 3.7.3 on; False before)
    _logits: mx.array  # [n, V], lazily: of all sampled rows
    _kv_cache: PagedCache
    _spans: Mapping[RequestState, slice]  # which of `sampled` are a request's, if any are
    _prompts: PromptRows

    def read(self) -> dict[RequestState, list[int]]:
        """Wait for the step; return the sampled tokens of each request whose known tokens are now computed.

        Each request has one sampled token more than draft tokens in this step.
        """
        # A step that samples nothing must still compute keys and values.
        pools = [] if self._spans else self._kv_cache.pools
        mx.eval(self.sampled, list(self.scores.values()), self._prompts.hidden, pools)
        self._prompts.read()
        sampled = cast(list[int], self.sampled.tolist())
        return {request: sampled[span] for request, span in self._spans.items()}


def launch(
    model: PagedModel,
    kv_cache: PagedCache,
    plan: StepPlan,
    requests: Sequence[RequestState],
    start_s: float,
    previous: InflightStep | None = None,
) -> InflightStep:
    """Launch one forward pass over the tokens that `plan` has for `requests`, which are in its order.

    Does not wait for the result, and does not run the model for no request. Computes logits only for rows
    that are sampled, and samples from them after the request's processors (from task 3.7.3 on). `previous`
    (from task 3.7.2 on) is the step before, which is still being computed: the input of each request is the
    token that it samples there.

    From task 3.7.3 on: with a `previous` step and processors, `sample_late` draws the tokens afterwards.
    """
    launched = previous.plan.num_scheduled_tokens if previous else {}
    num_pending = int(bool(previous))  # tokens of each request that are not known yet
    slices = _slices(requests, plan, launched)
    rows, spans = _sampled_rows(requests, slices, num_pending)
    prompts = PromptRows(
        [(r.prompt_logprobs, at.num_computed, at.num_new) for r, at in zip(requests, slices, strict=True)]
    )
    layout = StepLayout.of(kv_cache.block_size, slices)
    layers = kv_cache.begin_step(layout)
    tokens = previous.sampled.astype(mx.int32) if previous else _known_tokens(requests, slices)
    wanted = Wanted(rows=rows + prompts.rows)
    logits = mx.zeros((0, model.config.vocab_size))
    if slices:  # none if a prompt can't be cut, and takes more than the budget
        inputs, model = (tokens[:, None], layout.positions, layers), reader(model, slices)
        if prompts.rows:
            hidden = model.hidden(*inputs, wanted=wanted)[:, -1]
            logits = model.logits(hidden[: len(rows)])
            prompts.keep(hidden[len(rows) :], model.logits)
        else:
            logits = model(*inputs, wanted=wanted)[:, -1]
    is_late = bool(previous) and any(each.processors for each in spans)
    none = mx.array([], mx.uint32)
    step = InflightStep(plan, requests, start_s, slices, none, {}, is_late, logits, kv_cache, spans, prompts)
    if is_late:
        mx.async_eval(logits, prompts.hidden, kv_cache.pools)
        return step
    return _sampled(step, num_pending)


def sample_late(step: InflightStep) -> InflightStep:
    """Returns a late step with its tokens drawn, lazily, once the step before it is committed.

    A request whose answer has ended since the launch gets a token that nobody reads, without its processors.
    """
    for request in step.requests:
        if request.answer.is_done:  # a form may not be asked what follows its end
            request.processors, request.has_own_changes = (), False
    return _sampled(step, 0)


def _sampled(step: InflightStep, num_pending: int) -> InflightStep:
    sampled = _sample(step._logits, step._spans, num_pending)
    scores = _scored(step._logits, sampled, step._spans)
    mx.async_eval(sampled, list(scores.values()), step._prompts.hidden, step._kv_cache.pools)
    return replace(step, sampled=sampled, scores=scores, is_late=False)


def _slices(requests: Sequence[RequestState], plan: StepPlan, launched: Mapping[str, int]) -> list[Slice]:
    return [
        Slice(
            each.sequence.block_ids,
            each.sequence.num_computed_tokens + launched.get(name, 0),
            num_new,
            each.sequence.states,
            each.sequence.pictures,
        )
        for each, (name, num_new) in zip(requests, plan.num_scheduled_tokens.items(), strict=True)
    ]


def _sampled_rows(
    requests: Sequence[RequestState], slices: Sequence[Slice], num_pending: int
) -> tuple[list[int], dict[RequestState, slice]]:
    """Returns the rows to sample: each request's last known or pending token and all after it; its span."""
    rows: list[int] = []
    spans: dict[RequestState, slice] = {}
    num_tokens = 0
    for request, at in zip(requests, slices, strict=True):
        num_tokens += at.num_new
        num_rows = at.num_computed + at.num_new - request.sequence.num_tokens - num_pending + 1
        if num_rows > 0:
            spans[request] = slice(len(rows), len(rows) + num_rows)
            rows += range(num_tokens - num_rows, num_tokens)
    return rows, spans


def _known_tokens(requests: Sequence[RequestState], slices: Sequence[Slice]) -> mx.array:
    tokens: list[int] = []
    for request, at in zip(requests, slices, strict=True):
        tokens += request.sequence.tokens_between(at.num_computed, at.num_computed + at.num_new)
    return mx.array(tokens, mx.int32)


def _sample(logits: mx.array, spans: Mapping[RequestState, slice], num_pending: int) -> mx.array:
    """Returns what all requests sample from their rows of `logits` [n, V], after processors, lazily."""
    counts = {request: span.stop - span.start for request, span in spans.items()}
    parts = [(r.sampler, r.sequence.num_tokens + num_pending, count) for r, count in counts.items()]
    if not any(request.processors for request in counts):
        return sample_rows(logits, parts)
    processes = [(r.process if r.has_own_changes else None, count) for r, count in counts.items()]
    changes = [each for r, count in counts.items() for each in r.changes(count, logits.shape[-1])]
    return sample_rows(process_rows(logits, processes), parts, changes)


def _scored(
    logits: mx.array, sampled: mx.array, spans: Mapping[RequestState, slice]
) -> Mapping[RequestState, Sequence[mx.array]]:
    """Returns the scores of the rows of each request that wants logprobs, all found at once, lazily."""
    wanting = {request: span for request, span in spans.items() if request.sampling.logprobs is not None}
    if not wanting:
        return {}
    rows = [row for span in wanting.values() for row in range(span.start, span.stop)]
    num_top, ops = max(r.sampling.logprobs or 0 for r in wanting), next(iter(wanting)).sampler.ops
    at = mx.array(rows)
    scores, found, first = score_tokens(logits[at], sampled[at], num_top, ops), {}, 0
    for request, span in wanting.items():
        last = first + span.stop - span.start
        found[request], first = [part[first:last] for part in scores], last
    return found
