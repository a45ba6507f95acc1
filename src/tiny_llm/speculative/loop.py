"""Speculative decoding for one request: draft several tokens, verify them in one forward pass."""

from collections.abc import Iterator, Sequence

from tiny_llm_lab.types import Event, Model, Proposer, SamplingParams, Tokenizer

from .stats import SpecDecodeStats


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
    """As `stream_generate`, with the drafts of `proposer` verified in one forward pass a step.

    The same tokens come as without drafts, at every temperature, unless `coupled` is False and the drafts
    have probs: then they have the same distribution. Drafts are cut where max_tokens or max_seq_len
    end, and at a token outside the vocabulary. Rejected tokens are rewound; `stats` counts. The caches of
    both models are given back when the iterator ends or is closed.
    """
    raise NotImplementedError("task 3.9.4")
