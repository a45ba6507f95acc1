"""Speculative decoding for one request: draft several tokens, verify them in one forward pass."""

import time
from collections.abc import Iterator, Sequence

import mlx.core as mx

from tiny_llm_lab.types import Arrival, Event, Model, Prompt, Proposer, SamplingParams, Tokenizer

from ..generate.request import Request
from .stats import SpecDecodeStats
from .verify import Drafter, accept, accept_with_draft_probs


def speculative_generate(
    model: Model,
    tokenizer: Tokenizer,
    prompt: str | Sequence[int],
    proposer: Proposer,
    sampling: SamplingParams = SamplingParams(),
    *,
    prefill_step: int = 128,
    max_seq_len: int | None = None,
    coupled: bool = True,
    stats: SpecDecodeStats | None = None,
) -> Iterator[Event]:
    """Like `stream_generate`, and each step verifies a draft of `proposer` in one forward pass.

    The tokens are the same as without drafts, at every temperature. If `coupled` is False and the drafts have
    probs, they are not the same but have the same distribution. Drafts are cut at max_tokens or max_seq_len,
    and at a token outside the vocabulary. Rejected tokens are rewound; `stats` counts drafts. The caches of
    both models are freed when the iterator ends or is closed.
    """
    arrival = Arrival(0, Prompt(prompt, sampling), time.perf_counter())
    request = Request(model, tokenizer, arrival, prefill_step, max_seq_len=max_seq_len)
    drafter = Drafter(request.sample, coupled)
    counted = stats or SpecDecodeStats()
    request_id = f"request-{id(request)}"
    try:
        while not request.answer.is_done:
            if not request.is_prefill_done:
                request.try_prefill()
            else:
                _step(request, proposer, request_id, drafter, counted)
            yield from request.answer.take_events()
    finally:
        proposer.forget(request_id)
        request.release()


def _step(
    request: Request, proposer: Proposer, request_id: str, drafter: Drafter, stats: SpecDecodeStats
) -> None:
    known = [*request.prefill_tokens, *request.answer.token_ids]
    draft = proposer.propose(known, request_id, drafter).cut(request.answer.max_draft_tokens)
    draft = draft.within(request.model.config.vocab_size)
    tokens = mx.array([[known[-1], *draft.token_ids]])
    logits = request.model(tokens, request.offset, request.kv_cache)[0]
    if draft.probs is None:
        certain = accept(logits, draft.token_ids, drafter.sampler, len(known))
    else:
        certain = accept_with_draft_probs(logits, draft.token_ids, draft.probs, drafter.sampler, len(known))
    stats.observe(len(draft.token_ids), len(certain) - 1)
    stored = request.offset + tokens.shape[1]
    for token in certain:
        if not request.answer.is_done:
            request.decode_done(token)
    for layer in request.kv_cache:
        layer.rewind(stored - request.offset)
