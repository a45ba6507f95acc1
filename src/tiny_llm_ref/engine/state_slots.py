"""Numbers for the states of running sequences."""

from .sequence import TokenSequence


class StateSlots:
    """Gives every running sequence the smallest number that no other one holds."""

    def __init__(self) -> None:
        """All numbers are free."""
        self._held: set[int] = set()

    def hold(self, sequence: TokenSequence) -> None:
        """Give a sequence its `state_slot`, unless it has one."""
        if sequence.state_slot < 0:
            sequence.state_slot = next(i for i in range(len(self._held) + 1) if i not in self._held)
            self._held.add(sequence.state_slot)

    def free(self, sequence: TokenSequence) -> None:
        """Take the number back, if the sequence has one."""
        self._held.discard(sequence.state_slot)
        sequence.state_slot = -1
