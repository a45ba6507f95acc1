"""Who has which state: running sequences, and snapshots by the prefix that they have seen. No arrays."""

from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from tiny_llm_lab.types.scheduling.no_states import NoSnapshots


@dataclass
class _Snapshot:
    number: int
    is_passing: bool  # the newest of a running sequence, which its next one replaces
    num_holds: int = 0


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
        self.capacity, self.every = capacity, every
        self.num_added = self.num_used = self.num_evicted = 0
        # For a disk, as in `PrefixCache`: called with the arguments of each `add` that adds one.
        self.on_add: Callable[[Hashable, int, bool], None] | None = None
        self._free = list(range(capacity - 1, -1, -1))
        self._stored: OrderedDict[Hashable, _Snapshot] = OrderedDict()
        self._asked: dict[int, Hashable] = {}
        self._wanted: Counter[Hashable] = Counter()

    def __len__(self) -> int:
        """As in `NoSnapshots`."""
        return len(self._stored)

    def has(self, key: Hashable) -> bool:
        """Whether there is a snapshot after the block of `key`."""
        return key in self._stored

    def ask(self, owner: int, key: Hashable) -> None:
        """As in `NoSnapshots`: what an owner asked before is forgotten."""
        if self._asked.get(owner) != key:
            self.withdraw(owner)
            self._asked[owner] = key
            self._wanted[key] += 1

    def withdraw(self, owner: int) -> None:
        """As in `NoSnapshots`."""
        if (key := self._asked.pop(owner, None)) is not None:
            self._wanted[key] -= 1
            if not self._wanted[key]:
                del self._wanted[key]

    def is_wanted(self, key: Hashable) -> bool:
        """Whether someone has asked for a snapshot after the block of `key`, and there is none yet."""
        return key in self._wanted and key not in self._stored

    @property
    def num_free(self) -> int:
        """How many numbers `take` has."""
        return len(self._free) + sum(not each.num_holds for each in self._stored.values())

    def is_free(self, key: Hashable) -> bool:
        """Whether the snapshot of `key` is among them, because nobody is about to go on from it."""
        return key in self._stored and not self._stored[key].num_holds

    def take(self) -> int:
        """A number for a state, if need be that of the least recently used snapshot; -1 if there is none.

        Held ones, and numbers that were taken and not added, stay.
        """
        if not self._free:
            unheld = (key for key, each in self._stored.items() if not each.num_holds)
            if (oldest := next(unheld, None)) is None:
                return -1
            self._free.append(self._stored.pop(oldest).number)
            self.num_evicted += 1
        return self._free.pop()

    def give_back(self, number: int) -> None:
        """Free a number that was taken and not added."""
        self._free.append(number)

    def add(self, key: Hashable, number: int, is_passing: bool) -> None:
        """From now on the snapshot is found after the block of `key`.

        `is_passing`: the newest of a running answer, which `drop_passing` may take away. If there is one
        already it stays, passing only if both are, and the number is free again.
        """
        if key in self._stored:
            self._stored.move_to_end(key)
            self._stored[key].is_passing &= is_passing
            self._free.append(number)
            return
        self._stored[key] = _Snapshot(number, is_passing)
        self.num_added += 1
        if self.on_add is not None:
            self.on_add(key, number, is_passing)

    def drop_passing(self, key: Hashable) -> None:
        """Free the snapshot of `key`, if it is still there, passing, and nobody has gone on from it."""
        if (found := self._stored.get(key)) and found.is_passing and not found.num_holds:
            self._free.append(self._stored.pop(key).number)

    def forget(self, key: Hashable) -> None:
        """As in `NoSnapshots`: free it, unless somebody is about to go on from it."""
        if self.is_free(key):
            self._free.append(self._stored.pop(key).number)
            self.num_evicted += 1

    def hold(self, key: Hashable) -> int:
        """The number of the snapshot of `key`, which is used now, and stays until `let_go`."""
        found = self._stored[key]
        self._stored.move_to_end(key)
        found.num_holds += 1
        found.is_passing = False
        self.num_used += 1
        return found.number

    def let_go(self, key: Hashable) -> None:
        """End a `hold`."""
        self._stored[key].num_holds -= 1
