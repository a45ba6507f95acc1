"""Drafts of few lengths, for CUDA: cuDNN makes a plan for every number of rows, which takes about 20 ms."""

from collections.abc import Sequence

from tiny_llm_lab.types import Draft, Proposer
from tiny_llm_lab.types.scheduling.draft import DraftSampler


class EvenDrafts:
    """The drafts of a proposer, cut to a power of two: a step that verifies one has 2, 3, 5 or 9 rows."""

    def __init__(self, proposer: Proposer) -> None:
        self._proposer = proposer

    def propose(
        self, token_ids: Sequence[int], request_id: str | None = None, sampler: DraftSampler | None = None
    ) -> Draft:
        """As `Proposer`."""
        draft = self._proposer.propose(token_ids, request_id, sampler)
        length = len(draft.token_ids)
        return draft.cut(1 << length.bit_length() - 1) if length else draft

    def forget(self, request_id: str) -> None:
        """As `Proposer`."""
        self._proposer.forget(request_id)
