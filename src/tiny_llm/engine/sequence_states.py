"""Which states sequences have: a slot for each that runs, and snapshots. Only numbers, no arrays."""

from tiny_llm_lab.types.scheduling.no_states import Borders, NoStates, Planned

from ..cache.prefix_match import PrefixMatch
from ..cache.snapshots import StateSnapshots
from .sequence import TokenSequence


class SequenceStates(NoStates):
    """Slots and snapshots of the sequences of a hybrid model."""

    def __init__(self, snapshots: StateSnapshots) -> None:
        """No sequences. Sets snapshots, which the prefix cache must have too."""
        raise NotImplementedError("task 4.4.4")

    def num_needed(self, match: PrefixMatch | None, num_found: int) -> int:
        """As in `NoStates`."""
        raise NotImplementedError("task 4.4.4")

    def start(self, sequence: TokenSequence) -> None:
        """As in `NoStates`."""
        raise NotImplementedError("task 4.4.4")

    def may_draft(self, sequence: TokenSequence) -> bool:
        """As in `NoStates`."""
        raise NotImplementedError("task 4.4.4")

    def ask(self, match: PrefixMatch) -> None:
        """As in `NoStates`."""
        raise NotImplementedError("task 4.4.4")

    def resume(self, sequence: TokenSequence, match: PrefixMatch) -> None:
        """As in `NoStates`."""
        raise NotImplementedError("task 4.4.4")

    def plan(self, planned: Planned, borders: Borders) -> None:
        """As in `NoStates`."""
        raise NotImplementedError("task 4.4.4")

    def keep(self, sequence: TokenSequence, num_tokens: int, match: PrefixMatch) -> None:
        """As in `NoStates`. Of an answer the newest stays, those after each `every` tokens of the snapshots,
        and what somebody went on from.
        """
        raise NotImplementedError("task 4.4.4")

    def settle(self, sequence: TokenSequence) -> None:
        """As in `NoStates`."""
        raise NotImplementedError("task 4.4.4")

    def release(self, sequence: TokenSequence) -> None:
        """As in `NoStates`. Snapshots that can be found stay."""
        raise NotImplementedError("task 4.4.4")
