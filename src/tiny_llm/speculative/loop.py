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
    """Like `stream_generate`, and each step verifies a draft of `proposer` in one forward pass.

    The tokens are the same as without drafts, at every temperature. If `coupled` is False and the drafts have
    probs, they are not the same but have the same distribution. Drafts are cut at max_tokens or max_seq_len,
    and at a token outside the vocabulary. Rejected tokens are rewound; `stats` counts drafts. `proposer`
    follows each chunk, serves no other request meanwhile, and has blocks for the answer, or for its first
    4,096 tokens without max_tokens. The memory of both models is freed when the iterator ends or is closed.
    Raises UserError for a hybrid, whose states can't be rewound: an engine drafts for it.
    """
    raise NotImplementedError("task 3.9.4")
