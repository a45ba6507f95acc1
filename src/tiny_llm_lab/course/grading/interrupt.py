"""Ctrl-C during grading ends with the exit code that it has in every command."""

import pytest

from tiny_llm_lab.runtime.console.talk import EXIT_INTERRUPTED


class Interrupt:
    """A pytest plugin: pytest's own code for Ctrl-C is also that of errors of collection."""

    def __init__(self) -> None:
        self._came = False

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self._came = excinfo.type is KeyboardInterrupt  # and not one of pytest's own, derived from it

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._came:
            session.exitstatus = EXIT_INTERRUPTED
