"""Which states sequences have: a slot for each that runs, and snapshots. Only numbers, no arrays."""

from collections.abc import Hashable

from tiny_llm_lab.types.computing.paged import StateUse
from tiny_llm_lab.types.scheduling.no_states import Borders, NoStates, Planned

from ..cache.prefix_match import PrefixMatch
from ..cache.snapshots import StateSnapshots
from .sequence import TokenSequence

_SPARE = -1


class SequenceStates(NoStates):
    """Slots and snapshots of the sequences of a hybrid model."""

    def __init__(self, snapshots: StateSnapshots) -> None:
        """No sequences. Sets snapshots, which the prefix cache must have too."""
        self.snapshots = self._snapshots = snapshots
        self._held: dict[TokenSequence, tuple[Hashable, int]] = {}  # the snapshot to go on from
        # By the tokens of a snapshot that a step makes; by _SPARE for the states from before a draft.
        self._taken: dict[TokenSequence, dict[int, int]] = {}
        self._newest: dict[TokenSequence, Hashable] = {}  # of the snapshot behind the answer so far

    def num_needed(self, match: PrefixMatch | None, num_found: int) -> int:
        """As in `NoStates`."""
        return 1 + (match is not None and self._snapshots.is_free(match.found_key(num_found)))

    def start(self, sequence: TokenSequence) -> None:
        """As in `NoStates`."""
        if sequence.states.slot < 0:
            sequence.states = StateUse(self._snapshots.take())

    def may_draft(self, sequence: TokenSequence) -> bool:
        """As in `NoStates`."""
        taken = self._taken.setdefault(sequence, {})
        if _SPARE not in taken and (number := self._snapshots.take()) >= 0:
            taken[_SPARE] = number
        return _SPARE in taken

    def ask(self, match: PrefixMatch) -> None:
        """As in `NoStates`."""
        match.ask()

    def resume(self, sequence: TokenSequence, match: PrefixMatch) -> None:
        """As in `NoStates`."""
        self._let_go(sequence)
        self._held[sequence] = match.last_key, self._snapshots.hold(match.last_key)

    def plan(self, planned: Planned, borders: Borders) -> None:
        """As in `NoStates`."""
        for sequence, before, new in planned:
            taken = self._taken.setdefault(sequence, {})
            kept = tuple((n, self._snapshots.take()) for n in borders(sequence, before, before + new))
            kept = tuple((n, number) for n, number in kept if number >= 0)
            taken.update(kept)
            _, snapshot = self._held.get(sequence, (None, -1))
            drafted = max(0, before + new - max(sequence.num_tokens, before + 1))
            sequence.states = StateUse(sequence.states.slot, snapshot, kept, drafted)
        for sequence, _, _ in planned:  # not before all have taken theirs
            self._let_go(sequence)

    def keep(self, sequence: TokenSequence, num_tokens: int, match: PrefixMatch) -> None:
        """As in `NoStates`. Of an answer the newest stays, those after each `every` tokens of the snapshots,
        and what somebody went on from.
        """
        number = self._taken[sequence].pop(num_tokens, -1)
        if number < 0:
            return
        is_answer = num_tokens >= len(sequence.prompt_token_ids)
        is_passing = is_answer and num_tokens % self._snapshots.every > 0
        key = match.last_key
        self._snapshots.add(key, number, is_passing)
        if is_passing:
            self._snapshots.drop_passing(self._newest.get(sequence))
            self._newest[sequence] = key

    def settle(self, sequence: TokenSequence) -> None:
        """As in `NoStates`."""
        if _SPARE in self._taken.get(sequence, {}):
            self._give_back(sequence)

    def release(self, sequence: TokenSequence) -> None:
        """As in `NoStates`. Snapshots that can be found stay."""
        self._let_go(sequence)
        self._give_back(sequence)
        self._taken.pop(sequence, None)
        self._newest.pop(sequence, None)
        if sequence.states.slot >= 0:
            self._snapshots.give_back(sequence.states.slot)
        sequence.states = StateUse()

    def _let_go(self, sequence: TokenSequence) -> None:
        if sequence in self._held:
            self._snapshots.let_go(self._held.pop(sequence)[0])

    def _give_back(self, sequence: TokenSequence) -> None:
        for number in self._taken.get(sequence, {}).values():
            self._snapshots.give_back(number)
        self._taken[sequence] = {}
