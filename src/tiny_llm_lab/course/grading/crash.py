"""A crash in a learner's C++ ends the process of pytest: another one says in one line which test it was."""

import os
import signal
import sys
import tempfile
from collections.abc import Mapping, MutableMapping
from types import FrameType
from typing import Final

import pytest

from tiny_llm_lab.course.grading.selection import Selection

# The descriptor of a file in which pytest notes what it runs; the process that waits for it reads the file.
VARIABLE: Final = "TINY_LLM_RUNNING"
_STOPPED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class RunningTest:
    """A pytest plugin that notes the test that runs, for the process that `outlived` has left behind."""

    def __init__(self, selection: Selection, file: int) -> None:
        self._selection, self._file = selection, file

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        task = self._selection.task_of(item)
        self._note(f"{item.nodeid}{f' of task {task.id}' if task else ''}")

    def pytest_sessionfinish(self) -> None:
        self._note("the end of the tests")

    def _note(self, text: str) -> None:
        noted = text.encode()
        os.pwrite(self._file, noted, 0)
        os.ftruncate(self._file, len(noted))


def running_file(environment: MutableMapping[str, str]) -> int | None:
    """The descriptor that `outlived` put into the environment. It is taken out: other children lack it."""
    said = environment.pop(VARIABLE, "")
    return int(said) if said else None


def outlived(environment: Mapping[str, str]) -> dict[str, str]:
    """Fork, and return in the child, with the environment that it is to hand on; the parent never returns.

    The parent waits, says how the child ended if that was by a signal, and ends with its exit code. A second
    Python that only waits would take longer to start than many tests to run.
    """
    # One that comes before both know what to do waits until they do.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _STOPPED)
    with tempfile.TemporaryFile() as file:
        child = os.fork()
        if child:

            def pass_on(number: int, frame: FrameType | None) -> None:
                os.kill(child, number)

            # The terminal tells both of Ctrl-C, and the child knows what to say.
            for number in _STOPPED:
                signal.signal(number, signal.SIG_IGN if number == signal.SIGINT else pass_on)
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            os._exit(_wait(child, file.fileno()))
        kept = os.dup(file.fileno())
    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    os.set_inheritable(kept, True)
    return {**environment, VARIABLE: str(kept)}


def _wait(child: int, file: int) -> int:
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status >= 0:
        return status
    where = os.pread(file, 10_000, 0).decode(errors="replace") or "the start of the tests"
    print(f"\n{_last_words(-status, where)}", file=sys.stderr, flush=True)
    return 1


def _last_words(number: int, where: str) -> str:
    if number == signal.SIGKILL:
        return f"{where} was killed: when memory runs out, Linux does that"
    if number in _STOPPED:
        return f"{where} was stopped"
    return (
        f"{where} crashed ({signal.strsignal(number) or number}): in C++ an index out of range does that. "
        "TINY_LLM_ISA=plain before the command makes vectors four floats wide; -k runs one test alone"
    )
