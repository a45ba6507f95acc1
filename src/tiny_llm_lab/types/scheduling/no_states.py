"""What a model without states puts where a hybrid one has slots and snapshots."""

from __future__ import annotations

import sys
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:  # a solution's own classes: types follow the reference
    from collections.abc import Callable

    from tiny_llm_ref.cache.prefix_match import PrefixMatch
    from tiny_llm_ref.engine.sequence import TokenSequence

# Tokens computed before a step, and its new ones.
Planned: TypeAlias = "Sequence[tuple[TokenSequence, int, int]]"
# Of a sequence's tokens between two numbers of them: after which to keep a snapshot, rising.
Borders: TypeAlias = "Callable[[TokenSequence, int, int], Sequence[int]]"


class NoSnapshots:
    """Of a model without states, which can go on wherever it has keys and values."""

    capacity = 0  # the most snapshots
    every = 1  # tokens between them
    num_added = num_used = num_evicted = 0

    @property
    def num_free(self) -> int:
        """How many numbers can be taken."""
        return sys.maxsize

    def __len__(self) -> int:
        """The number of snapshots that can be found."""
        return 0

    def has(self, key: Hashable) -> bool:
        """Whether a request that has the blocks up to that of `key` can go on there: True."""
        return True

    def ask(self, owner: int, key: Hashable) -> None:
        """Ask whoever computes the block of `key` for a snapshot after it; one at a time for an owner."""

    def withdraw(self, owner: int) -> None:
        """Forget what an owner has asked for, if it has."""

    def is_wanted(self, key: Hashable) -> bool:
        """Whether someone has asked for a snapshot after the block of `key`, and there is none yet: False."""
        return False

    def forget(self, key: Hashable) -> None:
        """The block of `key` is evicted, so that nobody can find a snapshot after it."""


NO_SNAPSHOTS: Final = NoSnapshots()


class NoStates:
    """Of a model whose layers remember keys and values only."""

    def __init__(self) -> None:
        """Sets snapshots, whose numbers sequences take; a running one has one, its slot."""
        self.snapshots = NO_SNAPSHOTS

    def num_needed(self, match: PrefixMatch | None, num_found: int) -> int:
        """How many free numbers a sequence takes that starts: its slot, and the snapshot it goes on from.

        That is the one after the `num_found` blocks that its match has found.
        """
        return 1

    def start(self, sequence: TokenSequence) -> None:
        """A sequence runs, maybe since long: give it a slot, unless it has one."""

    def may_draft(self, sequence: TokenSequence) -> bool:
        """Take a number for the states that a draft keeps until it is verified; False if there is none."""
        return True

    def ask(self, match: PrefixMatch) -> None:
        """A sequence looks for its prefix: it may ask for a snapshot to go on from."""

    def resume(self, sequence: TokenSequence, match: PrefixMatch) -> None:
        """A running sequence goes on from the snapshot of match.last_key, which stays until it is read."""

    def plan(self, planned: Planned, borders: Borders) -> None:
        """Set `states` of the sequences of a step, each with snapshots at its `borders`, if there is room."""

    def keep(self, sequence: TokenSequence, num_tokens: int, match: PrefixMatch) -> None:
        """The block of match.last_key, up to `num_tokens`, is computed: its snapshot can be found."""

    def settle(self, sequence: TokenSequence) -> None:
        """A step has been committed: give back the snapshots after rejected draft tokens."""

    def release(self, sequence: TokenSequence) -> None:
        """A sequence runs no more: take back its slot, and what it has not kept."""


NO_STATES: Final = NoStates()
