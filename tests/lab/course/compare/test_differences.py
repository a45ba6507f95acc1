"""Which tests are looked at first, how deep, and what is named last."""

from pathlib import Path

import pytest
from tests.lab.course.compare.two_packages import Record, forward

from tiny_llm_lab.course.compare.command import CallsOfTest, differences, extended_after, report
from tiny_llm_lab.course.compare.search import first_difference, outer_difference
from tiny_llm_lab.course.manifest import load_course


def test_where_a_test_passes_only_what_it_asked_for_is_compared(record: Record) -> None:
    def norm(module: object) -> None:
        module.Norm(1)(1)  # type: ignore[attr-defined]

    counted = record(norm), record(norm, "self.count += 1", "self.count += 2")
    assert first_difference(*counted) is not None
    assert outer_difference(*counted) is None, "a test that reads the attribute would have failed"
    one, other = ({"test_a": CallsOfTest(calls)} for calls in counted)
    assert not differences(one, other, later=())
    wrong = outer_difference(record(forward), record(forward, "scale(x, 2)", "scale(x, 3)"))
    assert wrong is not None and [call.name for call in wrong.path] == ["Model.__call__"]


def test_tests_that_fail_come_first(record: Record) -> None:
    wanted, mine = record(forward), record(forward, "scale(x, 2)", "scale(x, 3)")
    one = {"test_a": CallsOfTest(wanted), "test_b": CallsOfTest(wanted)}
    other = {"test_a": CallsOfTest(mine), "test_b": CallsOfTest(mine, has_failed=True)}
    found = differences(one, other, later=())
    assert [test for test, _ in found] == ["test_b", "test_a"]
    assert not any("passes on yours" in line for line in report(one, other, found, Path("/")))
    assert list(report(one, other, found[1:], Path("/")))[-1].startswith("this test passes on yours")


@pytest.mark.parametrize(
    ("later", "name"), [("Norm", "scale"), ("Norm.__call__", "scale"), ("", "Norm.__call__")]
)
def test_what_later_days_extend_is_named_last(record: Record, later: str, name: str) -> None:
    def both(module: object) -> None:
        module.Norm(1)(1)  # type: ignore[attr-defined]
        module.scale(5)  # type: ignore[attr-defined]

    wanted, mine = record(both), record(both, "return x * by", "return x * by + 1")
    norm = next(call for call in mine if call.name == "Norm.__call__")
    norm.state["count"] = 9  # as an attribute that comes with a later day
    found = first_difference(wanted, mine, [later] if later else [])
    assert found is not None and found.path[-1].name == name
    alone = first_difference(wanted[:2], mine[:2], [later] if later else [])
    assert alone is not None and alone.path[-1].name == "Norm.__call__", "named where nothing else differs"


def test_the_symbols_that_later_days_extend_are_those_of_the_course() -> None:
    course = load_course()
    grown = {symbol for task in course.tasks for symbol in task.grows}
    assert extended_after(course, "1.1") == grown, "nothing is extended on the first day"
    assert extended_after(course, course.days[-1].id) == set()
    assert extended_after(course, "2.7.1") < grown
