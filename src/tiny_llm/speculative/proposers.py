"""Cheap drafts of the next tokens: looked up in the text so far, or from a small model."""

from collections.abc import Sequence

from tiny_llm_lab.types import Draft, DraftRequest, PagedModel, Proposer

from .draft_blocks import DraftBlocks


class NgramProposer(Proposer):
    """Prompt lookup: drafts the tokens that followed an earlier occurrence of the last tokens."""

    def __init__(self, max_ngram: int = 3, min_ngram: int = 1, num_tokens: int = 4) -> None:
        """Look for the last `max_ngram` tokens, or fewer, down to `min_ngram`; draft `num_tokens`.

        Raises UserError unless 1 <= min_ngram <= max_ngram and 1 <= num_tokens.
        """
        raise NotImplementedError("task 3.9.1")

    def look_up(self, token_ids: Sequence[int], request_id: str | None = None) -> Draft:
        """Returns up to `num_tokens` tokens that followed an earlier occurrence of the text's last n-gram.

        It uses the longest n-gram that occurs earlier, and its most recent earlier occurrence, which may
        overlap with the end. Of the earlier places of the last token only the 256 most recent ones count.
        The draft is empty if no n-gram of `min_ngram` tokens or more occurs earlier, and has one token if
        the n-gram has one token. With a `request_id` an index of the text is kept: `token_ids` must continue
        the tokens of the request's previous call, and a call takes time only for the new tokens and for
        those places.
        """
        raise NotImplementedError("task 3.9.1")

    def forget(self, request_id: str) -> None:
        """Forget a request. It may be unknown."""
        raise NotImplementedError("task 3.9.1")


class DraftModelProposer(DraftBlocks):
    """Drafts with a small model, whose keys and values are in blocks of the same numbers as the model's."""

    def __init__(self, model: PagedModel, num_tokens: int = 4, vocab_size: int | None = None) -> None:
        """Draft `num_tokens` with `model`. `vocab_size` is the verifying model's (None = the same).

        Vocabularies may differ in padding: logits are cut, or padded with -inf, to `vocab_size`. Raises
        UserError for `num_tokens` below 1, and if the sizes differ by 1,024 or more. Sets vocab_size and
        num_tokens.
        """
        raise NotImplementedError("task 3.9.3")

    def propose(self, asked: Sequence[DraftRequest]) -> list[Draft]:
        """As `Proposer`: each token is drawn by the request's drafter from the draft model's logits.

        All requests share a forward pass for each position, and the first pass computes what is not stored
        too. A draft ends at the draft model's max_position_embeddings, and with the sequence's blocks. For a
        token outside its vocabulary the draft model gets its last one. `probs` has the distributions that the
        drafters return.
        """
        raise NotImplementedError("task 3.9.3")
