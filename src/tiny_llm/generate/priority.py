"""Which prompt begins next: two classes, a limit on waiting, and rows that one class leaves free."""

from typing import Final

from tiny_llm_lab.types import Arrival, PriorityClass

MAX_WAIT_S: Final = 10.0


def urgency(arrival: Arrival, now_s: float, max_wait_s: float = MAX_WAIT_S) -> tuple[int, float, int]:
    """A key to sort prompts by: the smallest is the most urgent.

    First come overdue prompts, which are of class "batch" and have waited longer than `max_wait_s` seconds at
    `now_s`; then "interactive" ones, then other "batch" ones. Within each, the first arrival is first, and of
    equal arrivals the smaller prompt_idx.
    """
    raise NotImplementedError("task 2.8.1")


def is_overdue(arrival: Arrival, now_s: float, max_wait_s: float = MAX_WAIT_S) -> bool:
    """Whether a prompt is of class "batch" and has waited longer than `max_wait_s` seconds at `now_s`."""
    raise NotImplementedError("task 2.8.1")


class PriorityScheduler:
    """Prompts that have arrived and not begun: interactive before batch, each in order of arrival."""

    def __init__(self, max_wait_s: float = MAX_WAIT_S) -> None:
        """Nothing waits. A batch prompt that has waited longer than `max_wait_s` seconds goes first."""
        raise NotImplementedError("task 2.8.1")

    def __len__(self) -> int:
        """How many prompts wait."""
        raise NotImplementedError("task 2.8.1")

    def push(self, arrival: Arrival) -> None:
        """A prompt has arrived; prompts are pushed in the order of their arrival."""
        raise NotImplementedError("task 2.8.1")

    def peek(self, now_s: float) -> Arrival | None:
        """The most urgent prompt by `urgency`, which `pop` would return; None when nothing waits."""
        raise NotImplementedError("task 2.8.1")

    def pop(self, now_s: float) -> Arrival | None:
        """Take the most urgent prompt out; None when nothing waits. Takes the same time for any number."""
        raise NotImplementedError("task 2.8.1")


def may_start(
    priority_class: PriorityClass,
    num_decoding: int,
    batch_size: int,
    *,
    reserved_rows: int = 0,
    is_overdue: bool = False,
) -> bool:
    """Whether the prefill of a prompt of this class may begin or go on while `num_decoding` rows are taken.

    An interactive or overdue prompt needs one free row of `batch_size`. Any other leaves `reserved_rows` free
    besides its own, so that an interactive one finds a row, unless nothing decodes: then it may start too.
    """
    raise NotImplementedError("task 2.8.2")
