"""Operations in any order, on an object and on a simple model of it, which must agree after each."""

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test


def check_in_any_order(
    make: Callable[[], RuleBasedStateMachine], examples: int = 60, steps: int = 30
) -> None:
    """Sequences of up to `steps` operations, the same in every run.

    Short ones come first, so that a failure is told by a short one: making a long one shorter takes minutes.
    """
    for length in (5, 12, steps):
        chosen = settings(
            max_examples=examples,
            stateful_step_count=length,
            phases=[Phase.generate],
            derandomize=True,
            database=None,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
        run_state_machine_as_test(make, settings=chosen)


def result_of(call: Callable[[], Any], *errors: type[Exception]) -> Any:
    """What `call` returns, or the class of the error that it raises, if it is one of `errors`."""
    try:
        return call()
    except errors as error:
        return next(each for each in errors if isinstance(error, each))


class PoolModel:
    """A pool of blocks in lists: free blocks that store nothing, the next one first, and cached ones."""

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.holders = [0] * num_blocks
        self.empty, self.kept = list(range(num_blocks)), []
        self.cached: set[int] = set()
        self.evicted: list[int] = []

    def allocate(self, count: int) -> list[int]:
        blocks = (self.empty + self.kept)[:count]
        self.empty, self.kept = self.empty[count:], self.kept[max(0, count - len(self.empty)) :]
        for block in blocks:
            self.holders[block] = 1
            if block in self.cached:
                self.evicted.append(block)
                self.cached.remove(block)
        return blocks

    def may_share(self, blocks: Sequence[int]) -> bool:
        return all(0 <= b < self.num_blocks and (self.holders[b] or b in self.cached) for b in blocks)

    def share(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self.holders[block] += 1
            if block in self.kept:
                self.kept.remove(block)

    def may_free(self, blocks: Sequence[int]) -> bool:
        return all(0 <= b < self.num_blocks and blocks.count(b) <= self.holders[b] for b in blocks)

    def free(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            self.holders[block] -= 1
            if self.holders[block] == 0 and block in self.cached:
                self.kept.append(block)
            elif self.holders[block] == 0:
                self.empty.insert(0, block)
