"""What the plugins of this course write below pytest's report."""

import pytest

from tiny_llm_lab.runtime.console.wrapping import wrapped_lines


def reporter_width(reporter: pytest.TerminalReporter) -> int | None:
    """The width of the terminal that pytest reports to; None where it is none."""
    return reporter.config.get_terminal_writer().fullwidth if reporter.isatty else None


def write_line(reporter: pytest.TerminalReporter, line: str, **markup: bool) -> None:
    """Write a line, broken between words where the terminal ends; `markup` as in pytest: `yellow=True`."""
    for part in wrapped_lines(line, reporter_width(reporter)):
        reporter.line(part, **markup)
