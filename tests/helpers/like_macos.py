"""Tries forms where poll and setpriority do as on macOS: `python -m tests.helpers.like_macos DESCRIPTOR`.

On macOS it changes nothing.
"""

import errno
import os
import select
import sys
from typing import Final

from tiny_llm_lab.runtime.structured import trial_process

_READ: Final = select.POLLIN | select.POLLRDNORM | select.POLLPRI | select.POLLRDBAND | select.POLLHUP
_POLL: Final = select.poll


class Poll:
    """Says nothing of a descriptor for which no event of reading is asked for."""

    def __init__(self) -> None:
        self._poll = _POLL()

    def register(self, descriptor: int, events: int) -> None:
        """As of select.poll."""
        if events & _READ:
            # It also wakes up for what can be read, whichever of these events is asked for.
            self._poll.register(descriptor, events | select.POLLIN)

    def poll(self, timeout_ms: int | None) -> list[tuple[int, int]]:
        """As of select.poll."""
        return self._poll.poll(timeout_ms)


def set_priority(which: int, pid: int, priority: int) -> None:
    """os.setpriority at the worst moment, when the child `pid` has ended and nobody has waited for it."""
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    raise ProcessLookupError(errno.ESRCH, os.strerror(errno.ESRCH))


def main() -> int:
    """As of the module that tries forms."""
    if sys.platform != "darwin":
        select.poll, os.setpriority = Poll, set_priority  # type: ignore[assignment, misc]
    return trial_process.main()


if __name__ == "__main__":
    sys.exit(main())
