"""Which sequences wait and which run, in the order of a policy."""

from bisect import bisect_left, insort
from collections import deque

from tiny_llm_lab.types import Policy

from .sequence import TokenSequence

# With policy "priority", a sequence that waits more steps than this becomes the most urgent of its class.
MAX_WAITING_STEPS = 256


def order_key(
    policy: Policy, sequence: TokenSequence, num_added: int, is_aged: bool = False
) -> tuple[float, ...]:
    """Returns the key to sort a sequence by, smallest first; `num_added` sequences were added before it.

    Five numbers: the rank of its priority class, 0 if it is aged or else 1, priority, arrival_s, num_added.
    Priority and arrival_s are 0 unless the policy is "priority" and the sequence is not aged.
    """
    if policy != "priority" or is_aged:
        return (sequence.rank, 0 if is_aged else 1, 0, 0.0, num_added)
    return (sequence.rank, 1, sequence.priority, sequence.arrival_s, num_added)


class RequestQueue:
    """Waiting and running sequences, each list in the order of a policy. Counts waiting in steps."""

    def __init__(self, policy: Policy) -> None:
        """Sets policy, and waiting = [] and running = [], which are always in order."""
        self.policy = policy
        self.waiting: list[TokenSequence] = []
        self.running: list[TokenSequence] = []
        # Keyed by `order`, because an id may be used again as soon as its request has ended.
        self._waiting_since: dict[tuple[float, ...], int] = {}
        # The same, oldest first. Sequences that no longer wait are dropped when they reach the front.
        self._queued: deque[tuple[int, TokenSequence]] = deque()
        self._num_added = self._num_steps = 0

    @property
    def ranks(self) -> range:
        """The priority classes up to the least urgent class present, most urgent first."""
        return range(1 + max((part[-1].rank for part in (self.running, self.waiting) if part), default=-1))

    def add(self, sequence: TokenSequence) -> None:
        """Let a new sequence wait, at its place in the order. Sets its `order`."""
        sequence.order = order_key(self.policy, sequence, self._num_added)
        self._num_added += 1
        self.readmit(sequence)

    def is_waiting(self, sequence: TokenSequence) -> bool:
        """Whether a sequence waits. If not, it runs or was removed."""
        return sequence.order in self._waiting_since

    def running_of(self, rank: int) -> list[TokenSequence]:
        """Returns the running sequences of one priority class, in order."""
        return _of_rank(self.running, rank)

    def candidates(self, rank: int, max_num_seqs: int) -> list[TokenSequence]:
        """Returns the waiting sequences of one priority class that fit into `max_num_seqs`, in order.

        Running sequences of less urgent classes do not count. Waiting sequences of more urgent classes are
        counted first.
        """
        num_running = _first_of(self.running, rank + 1)
        num_before = _first_of(self.waiting, rank)
        num_slots = max(0, max_num_seqs - num_running - num_before)
        return _of_rank(self.waiting, rank)[:num_slots]

    def admit(self) -> TokenSequence:
        """Move the first waiting sequence to the running sequences, and return it."""
        sequence = self.waiting.pop(0)
        del self._waiting_since[sequence.order]
        insort(self.running, sequence, key=_order)
        return sequence

    def preempt(self) -> TokenSequence:
        """Move the last running sequence back to its place among the waiting sequences, and return it."""
        sequence = self.running.pop()
        self.readmit(sequence)
        return sequence

    def readmit(self, sequence: TokenSequence) -> None:
        """Let a sequence wait again that was added before, at the place that it then had."""
        insort(self.waiting, sequence, key=_order)
        self._waiting_since[sequence.order] = self._num_steps
        if self.policy == "priority" and sequence.order[1]:
            self._queued.append((self._num_steps, sequence))

    def remove(self, sequence: TokenSequence) -> None:
        """Take a sequence out of the queue, waiting or running."""
        part = self.waiting if self.is_waiting(sequence) else self.running
        at = bisect_left(part, sequence.order, key=_order)
        if part[at : at + 1] == [sequence]:  # one that waits for the disk is in neither
            del part[at]
        self._waiting_since.pop(sequence.order, None)

    def next_step(self) -> None:
        """Count a step of policy "priority". A sequence that has waited more than MAX_WAITING_STEPS steps
        becomes the most urgent of its class."""
        self._num_steps += 1
        while self._queued and self._queued[0][0] + MAX_WAITING_STEPS < self._num_steps:
            since, sequence = self._queued.popleft()
            if self._waiting_since.get(sequence.order) == since and sequence.order[1]:
                self.remove(sequence)
                sequence.order = order_key(self.policy, sequence, int(sequence.order[-1]), is_aged=True)
                self.readmit(sequence)


def _order(sequence: TokenSequence) -> tuple[float, ...]:
    return sequence.order


def _of_rank(part: list[TokenSequence], rank: int) -> list[TokenSequence]:
    # Fast path: most queues have only one class, and a step asks several times.
    if part and part[0].rank == part[-1].rank == rank:
        return part[:]
    return part[_first_of(part, rank) : _first_of(part, rank + 1)]


def _first_of(part: list[TokenSequence], rank: int) -> int:
    """Returns the index at which the sequences of a priority class begin, or would begin."""
    return bisect_left(part, rank, key=lambda sequence: sequence.rank)
