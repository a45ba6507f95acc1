"""Where the commands for an engine wait for the time between two steps."""

import queue
from collections.abc import Sequence

from tiny_llm_lab.serving.async_engine.messages import Command
from tiny_llm_lab.serving.async_engine.wire import Wire


class Inbox:
    """Commands from any thread."""

    is_shared = False  # whether other ranks do the same before the same step
    leads = True  # whether this rank says what they do

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[Command] = queue.SimpleQueue()

    def put(self, command: Command) -> None:
        """Add a command."""
        self._queue.put(command)

    def take(self, waits: bool, timeout_s: float | None) -> Sequence[Command]:
        """All commands so far. If it `waits`, the first one may take `timeout_s` (None: any time) to come."""
        results = []
        try:
            if waits:
                results.append(self._queue.get(timeout=timeout_s))
            while True:
                results.append(self._queue.get_nowait())
        except queue.Empty:
            return results


class LeadingInbox(Inbox):
    """Of rank 0, which tells the others what it takes: they take as much at the same step."""

    is_shared = True

    def __init__(self, followers: Sequence[Wire]) -> None:
        super().__init__()
        self._followers = followers

    def take(self, waits: bool, timeout_s: float | None) -> Sequence[Command]:
        result = super().take(waits, timeout_s)
        for each in self._followers:
            each.send(result)
        return result


class FollowingInbox(Inbox):
    """Of another rank."""

    is_shared = True
    leads = False

    def __init__(self, leader: Wire) -> None:
        super().__init__()
        self._leader = leader

    def put(self, command: Command) -> None:
        """Rank 0 says it to all."""

    def take(self, waits: bool, timeout_s: float | None) -> Sequence[Command]:
        """What rank 0 took. Raises EOFError when it is gone."""
        result: Sequence[Command] = self._leader.receive()
        return result
