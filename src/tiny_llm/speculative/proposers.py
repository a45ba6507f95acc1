"""Drafting the next tokens cheaply: by looking them up in the text so far, or with a small model."""

from collections.abc import Sequence

from tiny_llm_lab.types import Draft, DraftSampler, Model


class NgramProposer:
    """Prompt lookup: what followed the last tokens when they stood in the text before."""

    def __init__(self, max_ngram: int = 3, min_ngram: int = 1, num_tokens: int = 4) -> None:
        """Look for the last `max_ngram` tokens, or fewer, down to `min_ngram`; draft `num_tokens`.

        Raises UserError unless 1 <= min_ngram <= max_ngram and 1 <= num_tokens.
        """
        raise NotImplementedError("task 3.8.1")

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
        raise NotImplementedError("task 3.8.1")

    def forget(self, request_id: str) -> None:
        """Drop what is remembered of a request; one that is not known is fine."""
        raise NotImplementedError("task 3.8.1")


class DraftModelProposer:
    """A small model drafts; it keeps a KV cache for every request."""

    def __init__(self, model: Model, num_tokens: int = 4, vocab_size: int | None = None) -> None:
        """Draft `num_tokens` with `model`; `vocab_size` is that of the model that verifies (None = the same).

        Vocabularies may differ by padding: logits are cut, or continued with -inf, to `vocab_size`. Raises
        UserError for `num_tokens` below 1, and when the sizes differ by 1,024 or more.
        """
        raise NotImplementedError("task 3.8.3")

    def propose(
        self,
        token_ids: Sequence[int],
        request_id: str | None = None,
        sampler: DraftSampler | None = None,
    ) -> Draft:
        """Up to `num_tokens` tokens, each what `sampler.draft` makes of the draft model's logits.

        Without a sampler the likeliest tokens. With a `request_id` the cache is kept: only tokens
        that it does not hold are computed, and rejected tokens are rewound. Fewer tokens, or none, where
        the draft model's max_position_embeddings end; none for a text with a token that the draft model
        does not know. `probs` as the sampler gives them.
        """
        raise NotImplementedError("task 3.8.3")

    def forget(self, request_id: str) -> None:
        """Give a request's cache back; one that is not known is fine."""
        raise NotImplementedError("task 3.8.3")
