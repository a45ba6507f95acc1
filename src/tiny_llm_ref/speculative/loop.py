"""Speculative decoding for one request: draft several tokens, verify them in one forward pass."""

import time
from collections.abc import Iterator, Sequence

import mlx.core as mx

from tiny_llm_lab.types import (
    Arrival,
    Draft,
    DraftRequest,
    Event,
    Model,
    Prompt,
    Proposer,
    SamplingParams,
    Tokenizer,
    UserError,
)
from tiny_llm_lab.types.computing.paged import FIRST_SLOT, Slice

from ..engine.sequence import TokenSequence
from ..generate.request import Request
from .stats import SpecDecodeStats
from .verify import Drafter, accept, accept_with_draft_probs

# A proposer's blocks; without max_tokens an answer has drafts for so many tokens.
_BLOCK_SIZE, _LONGEST = 16, 4096


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
    and at a token outside the vocabulary. Rejected tokens are rewound; `stats` counts drafts. `proposer`
    follows each chunk, serves no other request meanwhile, and has blocks for the answer, or for its first
    4,096 tokens without max_tokens. The memory of both models is freed when the iterator ends or is closed.
    Raises UserError for a hybrid, whose states can't be rewound: an engine drafts for it.
    """
    if model.config.hybrid:
        raise UserError("the states of a hybrid can't be rewound: draft for it in an engine")
    arrival = Arrival(0, Prompt(prompt, sampling), time.perf_counter())
    request = Request(model, tokenizer, arrival, prefill_step, max_seq_len=max_seq_len)
    text = TokenSequence(f"request-{id(request)}", request.prefill_tokens, states=FIRST_SLOT)
    num_blocks = -(-(len(request.prefill_tokens) + (sampling.max_tokens or _LONGEST)) // _BLOCK_SIZE)
    proposer.create_cache(num_blocks, _BLOCK_SIZE)
    text.block_ids = list(range(num_blocks))
    drafter, counted = Drafter(request.sample, coupled), stats or SpecDecodeStats()
    try:
        while not request.answer.is_done:
            before = request.offset
            if not request.is_prefill_done:
                request.try_prefill()
                text.num_computed_tokens = request.offset
                text.output_token_ids = list(request.answer.token_ids)
            else:
                _step(request, text, proposer, drafter, counted)
            num_new = text.num_computed_tokens - before
            proposer.follow([(text, Slice(text.block_ids, before, num_new, FIRST_SLOT))])
            yield from request.answer.take_events()
    finally:
        proposer.forget(text.request_id)
        for cache in proposer.caches:
            cache.release()
        request.release()


def _step(
    request: Request, text: TokenSequence, proposer: Proposer, drafter: Drafter, stats: SpecDecodeStats
) -> None:
    draft, num_known = Draft(), text.num_tokens
    if (most := min(request.answer.max_draft_tokens, proposer.num_tokens)) > 0:
        (draft,) = proposer.propose([DraftRequest(text, most, drafter)])
    draft = draft.within(request.model.config.vocab_size)
    text.spec_token_ids = list(draft.token_ids)
    tokens = mx.array([text.tokens_between(num_known - 1, text.num_tokens_with_spec)])
    logits = request.model(tokens, request.offset, request.kv_cache)[0]
    if draft.probs is None:
        certain = accept(logits, draft.token_ids, drafter.sampler, num_known)
    else:
        certain = accept_with_draft_probs(logits, draft.token_ids, draft.probs, drafter.sampler, num_known)
    stats.observe(len(draft.token_ids), len(certain) - 1)
    stored = request.offset + tokens.shape[1]
    for token in certain:
        if not request.answer.is_done:
            request.decode_done(token)
    text.advance(tokens.shape[1], certain)
    for layer in request.kv_cache:
        layer.rewind(stored - request.offset)
