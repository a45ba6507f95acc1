"""Prints sections as tables, or with --json as one line."""

import sys
from collections.abc import Iterable

from tiny_llm_lab.measure.bench.host import host_facts
from tiny_llm_lab.measure.bench.report import Report, Section


def show(name: str, sections: Iterable[Section]) -> None:
    """Print what a measurement found, with the facts of this machine."""
    report = Report("--json" in sys.argv)
    for section in sections:
        report.add(section)
    report.end(name, {}, host_facts())
