"""Guessing the next tokens cheaply: by looking them up in the text so far, or with a small model."""

from collections.abc import Sequence

from tiny_llm_lab.types import Draft, DraftSampler, Model


class NgramProposer:
    """Prompt lookup: what followed the last tokens when they stood in the text before."""

    def __init__(self, max_ngram: int = 3, min_ngram: int = 1, num_tokens: int = 4) -> None:
        """Look for the last `max_ngram` tokens, or fewer, down to `min_ngram`; guess `num_tokens`.

        Raises UserError unless 1 <= min_ngram <= max_ngram and 1 <= num_tokens.
        """
        raise NotImplementedError("task 3.6.1")

    def propose(
        self,
        token_ids: Sequence[int],
        request_id: str | None = None,
        sampler: DraftSampler | None = None,
    ) -> Draft:
        """Up to `num_tokens` tokens that followed the longest n-gram at the end of `token_ids` before.

        Of several earlier occurrences the most recent one counts; it may overlap with the end itself.
        None, or only of fewer than `min_ngram` tokens: an empty draft. With a `request_id` work is
        remembered, and a call costs what the new tokens and the occurrences of the last one cost; tokens
        must then continue those of the request's last call. `sampler` is not needed.
        """
        raise NotImplementedError("task 3.6.1")

    def forget(self, request_id: str) -> None:
        """Drop what is remembered of a request; one that is not known is fine."""
        raise NotImplementedError("task 3.6.1")


class DraftModelProposer:
    """A small model speaks ahead; it has a cache of its own for every request."""

    def __init__(self, model: Model, num_tokens: int = 4, vocab_size: int | None = None) -> None:
        """Guess `num_tokens` with `model`, whose tokens must be those of the model that checks them.

        Raises UserError for `num_tokens` below 1 and when `vocab_size`, that of the large model, is
        given and differs from the draft model's.
        """
        raise NotImplementedError("task 3.6.3")

    def propose(
        self,
        token_ids: Sequence[int],
        request_id: str | None = None,
        sampler: DraftSampler | None = None,
    ) -> Draft:
        """Up to `num_tokens` tokens, each what `sampler.draft` makes of the draft model's logits.

        Without a sampler the likeliest tokens. With a `request_id` the cache is kept: only tokens
        that it does not hold are computed, and guesses that did not come true are rewound. Fewer tokens,
        or none, where the draft model's max_position_embeddings end. `probs` as the sampler gives them.
        """
        raise NotImplementedError("task 3.6.3")

    def forget(self, request_id: str) -> None:
        """Give a request's cache back; one that is not known is fine."""
        raise NotImplementedError("task 3.6.3")
