"""Who has which state: running sequences, and snapshots by the prefix that they have seen. No arrays."""

from collections.abc import Hashable

from tiny_llm_lab.types.scheduling.no_states import NoSnapshots


class StateSnapshots(NoSnapshots):
    """Memory for `capacity` states, numbers 0 to capacity - 1; a new one replaces an old snapshot if need be.

    Who needs a state takes a number: a sequence while it runs, a step for a snapshot that it makes. A
    snapshot has the states of all layers after the last token of a full block. Once it is made it is added,
    and can be found; all other numbers are given back.
    """

    def __init__(self, capacity: int, every: int) -> None:
        """No states. Sets capacity, every (the tokens after which a long text has one more, whole blocks),
        and the counters num_added, num_used (calls of `hold`) and num_evicted = 0.
        """
        raise NotImplementedError("task 4.4.2")

    def __len__(self) -> int:
        """As in `NoSnapshots`."""
        raise NotImplementedError("task 4.4.2")

    def has(self, key: Hashable) -> bool:
        """Whether there is a snapshot after the block of `key`."""
        raise NotImplementedError("task 4.4.2")

    def ask(self, owner: int, key: Hashable) -> None:
        """As in `NoSnapshots`: what an owner asked before is forgotten."""
        raise NotImplementedError("task 4.4.2")

    def withdraw(self, owner: int) -> None:
        """As in `NoSnapshots`."""
        raise NotImplementedError("task 4.4.2")

    def is_wanted(self, key: Hashable) -> bool:
        """Whether someone has asked for a snapshot after the block of `key`, and there is none yet."""
        raise NotImplementedError("task 4.4.2")

    @property
    def num_free(self) -> int:
        """How many numbers `take` has."""
        raise NotImplementedError("task 4.4.2")

    def is_free(self, key: Hashable) -> bool:
        """Whether the snapshot of `key` is among them, because nobody is about to go on from it."""
        raise NotImplementedError("task 4.4.2")

    def take(self) -> int:
        """A number for a state, if need be that of the least recently used snapshot; -1 if there is none.

        Held ones, and numbers that were taken and not added, stay.
        """
        raise NotImplementedError("task 4.4.2")

    def give_back(self, number: int) -> None:
        """Free a number that was taken and not added."""
        raise NotImplementedError("task 4.4.2")

    def add(self, key: Hashable, number: int, is_passing: bool) -> None:
        """From now on the snapshot is found after the block of `key`.

        `is_passing`: the newest of a running answer, which `drop_passing` may take away. If there is one
        already it stays, passing only if both are, and the number is free again.
        """
        raise NotImplementedError("task 4.4.2")

    def drop_passing(self, key: Hashable) -> None:
        """Free the snapshot of `key`, if it is still there, passing, and nobody has gone on from it."""
        raise NotImplementedError("task 4.4.2")

    def forget(self, key: Hashable) -> None:
        """As in `NoSnapshots`: free it, unless somebody is about to go on from it."""
        raise NotImplementedError("task 4.4.2")

    def hold(self, key: Hashable) -> int:
        """The number of the snapshot of `key`, which is used now, and stays until `let_go`."""
        raise NotImplementedError("task 4.4.2")

    def let_go(self, key: Hashable) -> None:
        """End a `hold`."""
        raise NotImplementedError("task 4.4.2")
