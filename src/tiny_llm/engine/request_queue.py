"""Which sequences wait and which run, in the order of a policy."""

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
    raise NotImplementedError("task 3.4.4")


class RequestQueue:
    """Waiting and running sequences, each list in the order of a policy. Counts waiting in steps."""

    def __init__(self, policy: Policy) -> None:
        """Sets policy, and waiting = [] and running = [], which are always in order."""
        raise NotImplementedError("task 3.4.4")

    @property
    def ranks(self) -> range:
        """The priority classes up to the least urgent class present, most urgent first."""
        raise NotImplementedError("task 3.4.4")

    def add(self, sequence: TokenSequence) -> None:
        """Let a new sequence wait, at its place in the order. Sets its `order`."""
        raise NotImplementedError("task 3.4.4")

    def is_waiting(self, sequence: TokenSequence) -> bool:
        """Whether a sequence waits. If not, it runs or was removed."""
        raise NotImplementedError("task 3.4.4")

    def running_of(self, rank: int) -> list[TokenSequence]:
        """Returns the running sequences of one priority class, in order."""
        raise NotImplementedError("task 3.4.4")

    def candidates(self, rank: int, max_num_seqs: int) -> list[TokenSequence]:
        """Returns the waiting sequences of one priority class that fit into `max_num_seqs`, in order.

        Running sequences of less urgent classes do not count. Waiting sequences of more urgent classes are
        counted first.
        """
        raise NotImplementedError("task 3.4.4")

    def admit(self) -> TokenSequence:
        """Move the first waiting sequence to the running sequences, and return it."""
        raise NotImplementedError("task 3.4.4")

    def preempt(self) -> TokenSequence:
        """Move the last running sequence back to its place among the waiting sequences, and return it."""
        raise NotImplementedError("task 3.4.4")

    def readmit(self, sequence: TokenSequence) -> None:
        """Let a sequence wait again that was added before, at the place that it then had."""
        raise NotImplementedError("task 3.4.4")

    def remove(self, sequence: TokenSequence) -> None:
        """Take a sequence out of the queue, waiting or running."""
        raise NotImplementedError("task 3.4.4")

    def next_step(self) -> None:
        """Count a step of policy "priority". A sequence that has waited more than MAX_WAITING_STEPS steps
        becomes the most urgent of its class."""
        raise NotImplementedError("task 3.5.3")
