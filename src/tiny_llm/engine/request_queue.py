"""Which sequences wait and which run, both in the order of a policy."""

from tiny_llm_lab.types import Policy

from .sequence import TokenSequence

# With policy "priority": after this many steps of waiting a sequence is the most urgent of its class.
MAX_WAITING_STEPS = 256


def order_key(
    policy: Policy, sequence: TokenSequence, num_added: int, is_aged: bool = False
) -> tuple[float, ...]:
    """The key that sequences are sorted by, smallest first; `num_added` were added before this one.

    Five numbers: the rank of its priority class, 0 if it is aged or else 1, priority, arrival_s, num_added.
    Only policy "priority" sorts by priority and arrival_s, and only sequences that are not aged: otherwise
    both are 0.
    """
    raise NotImplementedError("task 3.4.4")


class RequestQueue:
    """Waiting and running sequences, each list in the order of a policy; waiting is counted in steps."""

    def __init__(self, policy: Policy) -> None:
        """Sets policy, waiting = [] and running = [], which are always in order."""
        raise NotImplementedError("task 3.4.4")

    @property
    def ranks(self) -> range:
        """The priority classes up to the least urgent one present, most urgent first."""
        raise NotImplementedError("task 3.4.4")

    def add(self, sequence: TokenSequence) -> None:
        """Let a new sequence wait, in its place in the order; sets its `order`."""
        raise NotImplementedError("task 3.4.4")

    def is_waiting(self, sequence: TokenSequence) -> bool:
        """Whether a sequence of this queue waits; otherwise it runs."""
        raise NotImplementedError("task 3.4.4")

    def running_of(self, rank: int) -> list[TokenSequence]:
        """The running sequences of one priority class, in order."""
        raise NotImplementedError("task 3.4.4")

    def candidates(self, rank: int, max_num_seqs: int) -> list[TokenSequence]:
        """The waiting sequences of one priority class that find a slot, in order.

        Slots of running sequences of less urgent classes count as free; waiting sequences of more urgent
        classes take theirs first.
        """
        raise NotImplementedError("task 3.4.4")

    def admit(self) -> TokenSequence:
        """Move the first waiting sequence to the running ones."""
        raise NotImplementedError("task 3.4.4")

    def preempt(self) -> TokenSequence:
        """Move the last running sequence to the waiting ones, in its old place in the order."""
        raise NotImplementedError("task 3.4.4")

    def remove(self, sequence: TokenSequence) -> None:
        """Take a sequence out of the queue, waiting or running."""
        raise NotImplementedError("task 3.4.4")

    def next_step(self) -> None:
        """Count a step of policy "priority": a sequence that has waited more than MAX_WAITING_STEPS steps
        becomes the most urgent of its class."""
        raise NotImplementedError("task 3.5.3")
