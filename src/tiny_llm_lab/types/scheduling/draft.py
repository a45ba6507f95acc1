"""Draft tokens, which a step may compute ahead of the certain tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

import mlx.core as mx

from tiny_llm_lab.types.computing.paged import PagedCache, Slice

if TYPE_CHECKING:  # a solution's own classes: types follow the reference
    from tiny_llm_ref.engine.sequence import TokenSequence
    from tiny_llm_ref.speculative.verify import Drafter


@dataclass(frozen=True)
class Draft:
    """Draft tokens for the next K positions. `probs` [K, V] float32 has the distribution of each draw.

    None means tokens without a distribution: looked up, the likeliest, or drawn with a shared key.
    """

    token_ids: tuple[int, ...] = ()
    probs: mx.array | None = None

    def cut(self, num_tokens: int) -> Draft:
        """Returns the first `num_tokens` draft tokens, or all if there are fewer."""
        kept = max(0, num_tokens)
        return Draft(self.token_ids[:kept], None if self.probs is None else self.probs[:kept])

    def within(self, vocab_size: int) -> Draft:
        """Returns the draft tokens before the first token outside a vocabulary of `vocab_size` tokens."""
        outside = (i for i, token in enumerate(self.token_ids) if not 0 <= token < vocab_size)
        return self.cut(next(outside, len(self.token_ids)))


class DraftRequest(NamedTuple):
    """A request to draft for: what is known of it, the most draft tokens, and what draws them."""

    sequence: TokenSequence
    num_tokens: int
    drafter: Drafter


class Proposer:
    """Drafts how sequences continue. What it knows of the sequences decides how good its drafts are, no more.

    A proposer with a model stores keys and values in blocks: those of a token are in a block of the same
    number, at the same place, as those of the model that verifies. One that needs nothing but the text has
    no blocks, and only overrides `look_up`.
    """

    num_tokens = 64  # the most of a draft
    keeps_blocks = False  # whether a draft needs blocks for its tokens before it is made
    caches: Sequence[PagedCache] = ()  # the blocks
    is_stored = bytearray()  # by number of a block: 1 if all of the proposer's part is there
    may_lag = False  # whether it can store later what it has left out

    def create_cache(self, num_blocks: int, block_size: int = 16, kv_bits: int | None = None) -> None:
        """Create empty blocks in place of any there are."""

    def follow(self, computed: Sequence[tuple[TokenSequence, Slice]]) -> int:
        """After a step is committed: the model has computed these slices, so the proposer may store them too.

        One that may lag stores none of a sequence beyond its num_readable_tokens.
        Returns how many tokens it computes, which may take longer than this call.
        """
        return 0

    def propose(self, asked: Sequence[DraftRequest]) -> list[Draft]:
        """Returns a draft for each request of `asked`, of at most its num_tokens. A draft may be empty."""
        return [
            self.look_up(self._text_of(each.sequence), each.sequence.request_id).cut(each.num_tokens)
            for each in asked
        ]

    def look_up(self, token_ids: Sequence[int], request_id: str | None = None) -> Draft:
        """Returns a draft of what follows `token_ids`, which is the text of `request_id` so far.

        `token_ids` is only lent: it may have more tokens after the call.
        """
        raise NotImplementedError

    def forget(self, request_id: str) -> None:
        """Forget a request. It may be unknown."""

    def _text_of(self, sequence: TokenSequence) -> list[int]:
        # Kept, because a text of 262k tokens takes half a millisecond to copy. It only ever grows.
        text = self._texts.setdefault(sequence, [])
        text += sequence.tokens_between(len(text), sequence.num_tokens)
        return text

    @cached_property  # a subclass may not call our __init__
    def _texts(self) -> WeakKeyDictionary[TokenSequence, list[int]]:
        return WeakKeyDictionary()


class AllDrafts:
    """Chooses how long drafts are: as long as they can be. A `DraftGate` (task 3.9.7) looks at their cost."""

    def begin_step(self, num_requests: int) -> None:
        """Start to choose the drafts of a step, also one launched early, in which `num_requests` decode."""

    def length(self, request_id: str, most: int) -> int:
        """Returns how many tokens to draft for a request in the step that began, 0 to `most`.

        Changes nothing, and may be called often or never.
        """
        return most

    def observe_draft(self, request_id: str, num_draft_tokens: int, num_accepted_tokens: int) -> float:
        """Learn how many tokens of a draft were accepted: once for every decode. 0, 0: it had no draft.

        Returns the seconds that drafts may lose more than before, below 0 for less.
        """
        return 0.0

    def observe_step(self, num_rows: int, seconds: float) -> None:
        """Learn how long a step of decodes and drafts, `num_rows` in all, took after its drafts were made."""

    def observe_drafting(self, num_passes: int, num_rows: int, seconds: float) -> None:
        """Learn how long the drafts of a step took: `num_passes` passes, `num_rows` rows in total.

        A draft of k tokens has a row in each of k passes, and one that is looked up has one row in one pass.
        """

    def forget(self, request_id: str) -> None:
        """Forget what is known about a request. It may be unknown."""
