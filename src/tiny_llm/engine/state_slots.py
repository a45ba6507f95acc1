"""Numbers for the states of running sequences."""

from heapq import heappop, heappush

from .sequence import TokenSequence


class StateSlots:
    """Gives every running sequence the smallest number that no other one holds."""

    def __init__(self) -> None:
        """All numbers are free."""
        self._freed: list[int] = []  # a heap of those below _num_used
        self._num_used = 0

    def hold(self, sequence: TokenSequence) -> None:
        """Give a sequence its `state_slot`, unless it has one."""
        if sequence.state_slot >= 0:
            return
        if not self._freed:
            heappush(self._freed, self._num_used)
            self._num_used += 1
        sequence.state_slot = heappop(self._freed)

    def free(self, sequence: TokenSequence) -> None:
        """Take the number back, if the sequence has one."""
        if sequence.state_slot >= 0:
            heappush(self._freed, sequence.state_slot)
            sequence.state_slot = -1
