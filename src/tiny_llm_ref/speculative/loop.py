"""Speculative decoding for one request: guess several tokens, check them in one forward pass."""

from collections.abc import Iterator, Sequence

import mlx.core as mx

from tiny_llm_lab.types import Event, Model, Proposer, SamplingParams, Tokenizer

from ..generate.request import Request
from .verify import PositionSampler, accept, accept_with_draft_probs


class SpecDecodeStats:
    """How many guesses were made and how many stood; the counters have vLLM's names."""

    def __init__(self) -> None:
        """Set num_drafts, num_draft_tokens, num_accepted_tokens to 0, num_accepted_tokens_per_pos to []."""
        self.num_drafts = 0
        self.num_draft_tokens = 0
        self.num_accepted_tokens = 0
        self.num_accepted_tokens_per_pos: list[int] = []

    def observe(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Count one draft; an empty one is none. The bonus or replacement token is no accepted one.

        Entry i of num_accepted_tokens_per_pos counts the drafts whose guess i stood; the list is as long
        as the longest draft. Raises ValueError when more were accepted than drafted.
        """
        if not 0 <= num_accepted_tokens <= num_draft_tokens:
            raise ValueError(f"{num_accepted_tokens} of {num_draft_tokens} guesses cannot be accepted")
        if num_draft_tokens == 0:
            return
        self.num_drafts += 1
        self.num_draft_tokens += num_draft_tokens
        self.num_accepted_tokens += num_accepted_tokens
        per_pos = self.num_accepted_tokens_per_pos
        per_pos += [0] * (num_draft_tokens - len(per_pos))
        for i in range(num_accepted_tokens):
            per_pos[i] += 1

    @property
    def acceptance_rate(self) -> float | None:
        """The share of guesses that stood; None without guesses."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens that a step with a draft brings, the bonus or replacement included; None without drafts."""
        return 1 + self.num_accepted_tokens / self.num_drafts if self.num_drafts else None


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
    """As `stream_generate`, with the drafts of `proposer` checked in one forward pass a step.

    The same tokens come as without drafts, at every temperature, unless `coupled` is False and the drafts
    have probs: then they have the same distribution. Drafts are cut where max_tokens or max_seq_len
    end. Rejected guesses are rewound; `stats` counts. The caches of both models are given back when the
    iterator ends or is closed.
    """
    request = Request(model, tokenizer, prompt, prefill_step, max_seq_len=max_seq_len, sampling=sampling)
    sampler = PositionSampler(sampling, len(request.prefill_tokens), coupled)
    counted = SpecDecodeStats() if stats is None else stats
    request_id = f"request-{id(request)}"
    try:
        while not request.is_done:
            if not request.is_prefill_done:
                request.try_prefill()
            else:
                _step(request, proposer, request_id, sampler, counted)
            yield from request.take_events()
    finally:
        proposer.forget(request_id)
        request.release()


def _step(
    request: Request, proposer: Proposer, request_id: str, sampler: PositionSampler, stats: SpecDecodeStats
) -> None:
    known = [*request.prefill_tokens, *request.token_ids]
    draft = proposer.propose(known, request_id, sampler).cut(_room(request))
    tokens = mx.array([[known[-1], *draft.token_ids]])
    logits = request.model(tokens, request.offset, request.kv_cache)[0]
    if draft.probs is None:
        certain = accept(logits, draft.token_ids, sampler, len(known))
    else:
        certain = accept_with_draft_probs(logits, draft.token_ids, draft.probs, sampler, len(known))
    stats.observe(len(draft.token_ids), len(certain) - 1)
    stored = request.offset + tokens.shape[1]
    for token in certain:
        if not request.is_done:
            request.decode_done(token)
    for layer in request.kv_cache:
        layer.rewind(stored - request.offset)


def _room(request: Request) -> int:
    """How many guesses have a use and a place: each step brings one token more than stand."""
    most = request.sampling.max_tokens
    left = request.max_seq_len - request.offset
    return (left if most is None else min(left, most - len(request.token_ids))) - 1
