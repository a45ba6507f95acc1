"""Drafting the next tokens cheaply: by looking them up in the text so far, or with a small model."""

from collections.abc import Sequence

from tiny_llm_lab.types import Draft, DraftSampler, Model


class NgramProposer:
    """Prompt lookup: drafts what followed the last tokens where they occurred before."""

    def __init__(self, max_ngram: int = 3, min_ngram: int = 1, num_tokens: int = 4) -> None:
        """Look for the last `max_ngram` tokens, or fewer, down to `min_ngram`; draft `num_tokens`.

        Raises UserError unless 1 <= min_ngram <= max_ngram and 1 <= num_tokens.
        """
        raise NotImplementedError("task 3.9.1")

    def propose(
        self,
        token_ids: Sequence[int],
        request_id: str | None = None,
        sampler: DraftSampler | None = None,
    ) -> Draft:
        """Up to `num_tokens` tokens that followed an earlier occurrence of the n-gram at the end of the text.

        The longest n-gram that occurs earlier counts, and of its occurrences the most recent one, which may
        overlap with the end. The draft is empty when none of `min_ngram` tokens or more does, and has one
        token when the n-gram has one. With a `request_id` an index of the text is kept: `token_ids` must
        continue those of the request's previous call, which then takes time for the new tokens and for the
        earlier places of the last one only. `sampler` is not used.
        """
        raise NotImplementedError("task 3.9.1")

    def forget(self, request_id: str) -> None:
        """Drop what is remembered of a request; one that is not known is fine."""
        raise NotImplementedError("task 3.9.1")


class DraftModelProposer:
    """A small model drafts; it keeps a KV cache for every request."""

    def __init__(self, model: Model, num_tokens: int = 4, vocab_size: int | None = None) -> None:
        """Draft `num_tokens` with `model`; `vocab_size` is that of the model that verifies (None = the same).

        Vocabularies may differ by padding: logits are cut, or continued with -inf, to `vocab_size`. Raises
        UserError for `num_tokens` below 1, and when the sizes differ by 1,024 or more.
        """
        raise NotImplementedError("task 3.9.3")

    def propose(
        self,
        token_ids: Sequence[int],
        request_id: str | None = None,
        sampler: DraftSampler | None = None,
    ) -> Draft:
        """Up to `num_tokens` tokens, each drawn by `sampler.draft` from the draft model's logits.

        Without a sampler the likeliest tokens. With a `request_id` the cache is kept: only tokens that it
        does not hold are computed, and rejected tokens are rewound. The draft ends where the draft model's
        max_position_embeddings end, and is empty for a text with a token outside its vocabulary. `probs`
        has the distributions that the sampler returns.
        """
        raise NotImplementedError("task 3.9.3")

    def forget(self, request_id: str) -> None:
        """Give a request's cache back; one that is not known is fine."""
        raise NotImplementedError("task 3.9.3")
