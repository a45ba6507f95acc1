"""Which prompt starts next: two classes, a limit on waiting, and rows that one class leaves free."""

from typing import Final

from tiny_llm_lab.types import Arrival, PriorityClass

MAX_WAIT_S: Final = 10.0


def urgency(arrival: Arrival, now_s: float, max_wait_s: float = MAX_WAIT_S) -> tuple[int, float, int]:
    """Returns a key to sort prompts by. The smallest key is the most urgent.

    First come overdue prompts: class "batch", and at `now_s` they have waited longer than `max_wait_s`
    seconds. Then come "interactive" prompts, then the other "batch" prompts. Within each group the earliest
    arrival is first, and for equal arrivals the smaller prompt_idx.
    """
    raise NotImplementedError("task 2.8.1")


def is_overdue(arrival: Arrival, now_s: float, max_wait_s: float = MAX_WAIT_S) -> bool:
    """Whether a prompt has class "batch" and has waited longer than `max_wait_s` seconds at `now_s`."""
    raise NotImplementedError("task 2.8.1")


class PriorityScheduler:
    """Prompts that have arrived but not started: interactive before batch, each in order of arrival."""

    def __init__(self, max_wait_s: float = MAX_WAIT_S) -> None:
        """Nothing waits. A batch prompt that has waited longer than `max_wait_s` seconds goes first."""
        raise NotImplementedError("task 2.8.1")

    def __len__(self) -> int:
        """The number of waiting prompts."""
        raise NotImplementedError("task 2.8.1")

    def push(self, arrival: Arrival) -> None:
        """Add a prompt that has arrived. Push prompts in the order of their arrival."""
        raise NotImplementedError("task 2.8.1")

    def peek(self, now_s: float) -> Arrival | None:
        """Returns the most urgent prompt by `urgency`, which `pop` would return, or None if nothing waits."""
        raise NotImplementedError("task 2.8.1")

    def pop(self, now_s: float) -> Arrival | None:
        """Remove and return the most urgent prompt, or None if nothing waits. Takes O(1)."""
        raise NotImplementedError("task 2.8.1")


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
    raise NotImplementedError("task 2.8.2")
