"""Which prompt starts next: two classes, a limit on waiting, and rows that one class leaves free."""

from collections import deque
from typing import Final

from tiny_llm_lab.types import Arrival, PriorityClass

_OVERDUE, _INTERACTIVE, _BATCH = range(3)  # the most urgent first
MAX_WAIT_S: Final = 10.0


def urgency(arrival: Arrival, now_s: float, max_wait_s: float = MAX_WAIT_S) -> tuple[int, float, int]:
    """Returns a key to sort prompts by. The smallest key is the most urgent.

    First come overdue prompts: class "batch", and at `now_s` they have waited longer than `max_wait_s`
    seconds. Then come "interactive" prompts, then the other "batch" prompts. Within each group the earliest
    arrival is first, and for equal arrivals the smaller prompt_idx.
    """
    if arrival.prompt.priority_class == "interactive":
        group = _INTERACTIVE
    else:
        group = _OVERDUE if now_s - arrival.arrival_s > max_wait_s else _BATCH
    return group, arrival.arrival_s, arrival.prompt_idx


def is_overdue(arrival: Arrival, now_s: float, max_wait_s: float = MAX_WAIT_S) -> bool:
    """Whether a prompt has class "batch" and has waited longer than `max_wait_s` seconds at `now_s`."""
    return urgency(arrival, now_s, max_wait_s)[0] == _OVERDUE


class PriorityScheduler:
    """Prompts that have arrived but not started: interactive before batch, each in order of arrival."""

    def __init__(self, max_wait_s: float = MAX_WAIT_S) -> None:
        """Nothing waits. A batch prompt that has waited longer than `max_wait_s` seconds goes first."""
        self.max_wait_s = max_wait_s
        self._queues: dict[PriorityClass, deque[Arrival]] = {"interactive": deque(), "batch": deque()}

    def __len__(self) -> int:
        """The number of waiting prompts."""
        return sum(map(len, self._queues.values()))

    def push(self, arrival: Arrival) -> None:
        """Add a prompt that has arrived. Push prompts in the order of their arrival."""
        self._queues[arrival.prompt.priority_class].append(arrival)

    def peek(self, now_s: float) -> Arrival | None:
        """Returns the most urgent prompt by `urgency`, which `pop` would return, or None if nothing waits."""
        heads = [queue[0] for queue in self._queues.values() if queue]
        return min(heads, key=lambda head: urgency(head, now_s, self.max_wait_s), default=None)

    def pop(self, now_s: float) -> Arrival | None:
        """Remove and return the most urgent prompt, or None if nothing waits. Takes O(1)."""
        head = self.peek(now_s)
        return head and self._queues[head.prompt.priority_class].popleft()


def may_start(
    priority_class: PriorityClass,
    num_decoding: int,
    batch_size: int,
    *,
    reserved_rows: int = 0,
    is_overdue: bool = False,
) -> bool:
    """Whether a prefill of this class may start or continue while `num_decoding` rows are taken.

    An interactive or overdue prompt needs one free row of `batch_size`. Any other prompt must leave
    `reserved_rows` free in addition to its own, so that an interactive prompt finds a row. If nothing
    decodes, it may start anyway.
    """
    num_free = batch_size - num_decoding
    if priority_class == "interactive" or is_overdue:
        return num_free > 0
    return num_decoding == 0 or num_free > reserved_rows
