"""Speculative decoding for one request: guess several tokens, check them in one forward pass."""

from collections.abc import Iterator, Sequence

from tiny_llm_lab.types import Event, Model, Proposer, SamplingParams, Tokenizer


class SpecDecodeStats:
    """How many guesses were made and how many stood; the counters have vLLM's names."""

    def __init__(self) -> None:
        """Set num_drafts, num_draft_tokens, num_accepted_tokens to 0, num_accepted_tokens_per_pos to []."""
        raise NotImplementedError("task 3.6.4")

    def observe(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        """Count one draft; an empty one is none. The bonus or replacement token is no accepted one.

        Entry i of num_accepted_tokens_per_pos counts the drafts whose guess i stood; the list is as long
        as the longest draft. Raises ValueError when more were accepted than drafted.
        """
        raise NotImplementedError("task 3.6.4")

    @property
    def acceptance_rate(self) -> float | None:
        """The share of guesses that stood; None without guesses."""
        raise NotImplementedError("task 3.6.4")

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens that a step with a draft brings, the bonus or replacement included; None without drafts."""
        raise NotImplementedError("task 3.6.4")


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
    raise NotImplementedError("task 3.6.4")
