"""Tables of measured numbers: they come from results/, or say why they do not."""

from pathlib import Path

import pytest

from tiny_llm_lab.course.book.page import Page
from tiny_llm_lab.course.book.results import measured_problems

TABLE = "| rows | {} |\n| --- | --: |\n| 1 | 3.2 |\n"


@pytest.mark.parametrize(
    "unit", ["ms", "gap p95 ms", "TTFT, s", "out tok/s", "rate (GB/s)", "times faster", "×"]
)
def test_a_time_or_a_rate_in_a_header_needs_its_results(unit: str) -> None:
    (found,) = measured_problems(Page(Path("one.md"), f"text\n\n{TABLE.format(unit)}"))
    assert found.startswith(f"one.md:3: a table of measured numbers ({unit})")


@pytest.mark.parametrize("header", ["tokens", "forms", "stops", "x times the weight", "`ms`", "B × L"])
def test_a_header_without_a_unit_is_a_table_like_others(header: str) -> None:
    assert list(measured_problems(Page(Path("one.md"), TABLE.format(header)))) == []


@pytest.mark.parametrize(
    "text",
    [
        f"<!-- results: ladder -->\n\n{TABLE.format('ms')}\n<!-- end of results -->\n",
        f"<!-- by hand: from a paper -->\n{TABLE.format('ms')}",
        f"<!-- by hand: from a paper -->\n\n{TABLE.format('ms')}",
    ],
)
def test_a_generated_table_and_one_with_a_reason_pass(text: str) -> None:
    assert list(measured_problems(Page(Path("one.md"), text))) == []


@pytest.mark.parametrize("text", ["<!-- by hand: -->", "<!-- by hand: x -->\n\ntext"])
def test_a_reason_stands_right_above_and_is_not_empty(text: str) -> None:
    assert len(list(measured_problems(Page(Path("one.md"), f"{text}\n\n{TABLE.format('ms')}")))) == 1
