"""Two small packages, recorded and compared: the innermost call that differs is named."""

import re
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import pytest
from tests.lab.course.compare.two_packages import forward, reported, stream

from tiny_llm_lab.course.compare.command import (
    CallsOfTest,
    differences,
    extended_after,
    first_difference,
    num_calls,
    outer_difference,
    report,
)
from tiny_llm_lab.course.grading.run_tests import environment
from tiny_llm_lab.course.manifest import load_course
from tiny_llm_lab.runtime.checkout import repository


def test_calls_are_recorded_with_those_inside_and_the_place_of_their_object(record):
    made, called = record(forward)
    assert (made.name, [call.name for call in made.calls]) == ("Model.__init__", ["Norm.__init__"] * 3)
    assert [(call.name, call.place) for call in called.calls] == [
        *(("Norm.__call__", ".layers[0]"), ("scale", "")),
        *(("Norm.__call__", ".layers[1]"), ("scale", "")),
        *(("Norm.__call__", ".layers[2]"), ("scale", "")),
    ]
    assert (called.given, called.result) == ({"x": 1}, 22)
    assert num_calls([made, called]) == 4 + 7


def test_what_a_generator_yields_is_its_result(record):
    _, call = record(stream)[0], record(stream)[-1]
    assert (call.name, call.result) == ("Model.tokens", (0, 2, 4))
    assert [inner.name for inner in call.calls] == ["scale"] * 3


def test_the_same_code_does_not_differ(record):
    assert first_difference(record(forward), record(forward)) is None


def test_a_planted_error_is_found_in_its_layer(record):
    wanted = record(forward)
    found = first_difference(
        wanted, record(forward, "Norm(1), Norm(1), Norm(1)", "Norm(1), Norm(7), Norm(1)")
    )
    assert found is not None
    assert [(call.name, call.place) for call in found.path] == [
        ("Model.__call__", ""),
        ("Norm.__call__", ".layers[1]"),
    ]
    assert found.says.says == "the reference has 5, yours 11"
    assert found.hint == "its object was made with another eps: the reference has 1, yours 7"


@pytest.mark.parametrize(
    ("old", "new", "hint"),
    [
        (
            *("Norm(1.0)", "Norm(1.0003)"),
            "Norm.__call__ (norm) in it was made with another eps: the reference has 1, yours 1.0003",
        ),
        (
            *("return x + self.eps", "return x + self.eps * 1.0003"),
            "it begins in Norm.__call__ (norm), which gets the same input and returns slightly other numbers",
        ),
    ],
)
def test_a_call_that_makes_a_small_difference_larger_is_not_blamed(record, old, new, hint):
    def sharpened(module):
        module.Block()(mx.array([1.0, 3.0]))

    # 3 in 40,000 is taken for rounding at first; behind `sharp` it is twice as much.
    found = first_difference(record(sharpened), record(sharpened, old, new))
    assert found is not None
    assert [call.name for call in found.path] == ["Block.__call__"]
    assert found.hint == hint


def test_a_wrong_argument_is_the_callers_error(record):
    found = first_difference(record(forward), record(forward, "scale(x, 2)", "scale(x, 3)"))
    assert found is not None
    assert [call.name for call in found.path] == ["Model.__call__"]
    assert found.hint == "it calls scale with another by: the reference has 2, yours 3"


def test_a_call_left_out_is_said(record):
    found = first_difference(record(forward), record(forward, "_twice(layer(x))", "layer(x) * 3"))
    assert found is not None
    assert found.hint in (
        "the reference calls scale 3 times in it, yours not at all",
        "it calls Norm.__call__ with another x: the reference has 4, yours 6",
    )


@pytest.mark.parametrize("x", [1.0, 1.00001], ids=["results are right", "the input is off by a rounding"])
def test_a_wrong_counter_is_found_though(record, x):
    def norm_of(x):
        return lambda module: module.Norm(1)(mx.array([x]))

    got = record(norm_of(x), "self.count += 1", "self.count += 2")
    found = first_difference(record(norm_of(1.0)), got)
    assert found is not None
    assert (found.says.where, found.mine.name) == ("self.count", "Norm.__call__")


def test_the_report_names_the_test_the_path_and_the_place(record):
    wanted = {"test_a": record(forward), "test_b": record(stream)}
    wrong = ("Norm(1), Norm(1), Norm(1)", "Norm(1), Norm(1), Norm(3)")
    mine = {"test_a": record(forward, *wrong), "test_b": record(stream, *wrong)}
    lines = reported(wanted, mine)
    assert lines[:2] == ["2 tests on both packages", "1 differs; the first: test_a"]
    assert "  Norm.__call__  (layers[2])" in lines
    assert any(line.strip().startswith("at ") and "model.py:9" in line for line in lines)
    assert "the same input:  x 10" in lines


def test_unwritten_code_is_no_difference(record):
    def tried(module):
        with pytest.raises(NotImplementedError):
            module.scale(1)

    def scaled(module):
        module.scale(1)

    mine = record(tried, "return x * by", 'raise NotImplementedError("task 1.1.1")')
    assert reported({"test_a": record(scaled)}, {"test_a": mine}) == [
        "1 test on both packages, 1 of them not written yet",
        "nothing to compare yet",
    ]


def test_where_a_test_passes_only_what_it_asked_for_is_compared(record):
    def norm(module):
        module.Norm(1)(1)

    counted = record(norm), record(norm, "self.count += 1", "self.count += 2")
    assert first_difference(*counted) is not None
    assert outer_difference(*counted) is None, "a test that reads the attribute would have failed"
    one, other = ({"test_a": CallsOfTest(calls)} for calls in counted)
    assert not differences(one, other, later=())
    wrong = outer_difference(record(forward), record(forward, "scale(x, 2)", "scale(x, 3)"))
    assert wrong is not None and [call.name for call in wrong.path] == ["Model.__call__"]


def test_tests_that_fail_are_looked_at_and_no_others(record):
    wanted, mine = record(forward), record(forward, "scale(x, 2)", "scale(x, 3)")
    one = {"test_a": CallsOfTest(wanted), "test_b": CallsOfTest(wanted)}
    other = {"test_a": CallsOfTest(mine), "test_b": CallsOfTest(mine, has_failed=True)}
    found = differences(one, other, later=())
    assert [test for test, _ in found] == ["test_b"]
    other["test_b"] = CallsOfTest(wanted, has_failed=True)
    assert differences(one, other, later=()) == [], "what passes says nothing about what fails"
    lines = list(report(one, other, [], Path()))
    assert lines[-1] == "1 test failed all the same, and says why: test_b"
    assert not any("passes on yours" in line for line in report(one, other, found, Path("/")))
    other = {"test_a": CallsOfTest(mine), "test_b": CallsOfTest(wanted)}
    found = differences(one, other, later=())
    assert any("passes on yours" in line for line in report(one, other, found, Path("/")))


@pytest.mark.parametrize(
    ("later", "name"), [("Norm", "scale"), ("Norm.__call__", "scale"), ("", "Norm.__call__")]
)
def test_what_later_days_extend_is_named_last(record, later, name):
    def both(module):
        module.Norm(1)(1)
        module.scale(5)

    wanted, mine = record(both), record(both, "return x * by", "return x * by + 1")
    norm = next(call for call in mine if call.name == "Norm.__call__")
    norm.state["count"] = 9  # as an attribute that comes with a later day
    found = first_difference(wanted, mine, [later] if later else [])
    assert found is not None and found.path[-1].name == name
    alone = first_difference(wanted[:2], mine[:2], [later] if later else [])
    assert alone is not None and alone.path[-1].name == "Norm.__call__", "named where nothing else differs"


def test_the_symbols_that_later_days_extend_are_those_of_the_course():
    course = load_course()
    grown = {symbol for task in course.tasks for symbol in task.grows}
    assert extended_after(course, "1.1") == grown, "nothing is extended on the first day"
    assert extended_after(course, course.days[-1].id) == set()
    assert extended_after(course, "2.7.1") < grown


# `compare` as it is typed, on the repository itself


def compare(*words):
    command = [sys.executable, "-m", "tiny_llm_lab", "compare", *words]
    return subprocess.run(command, cwd=repository(), env=environment(), capture_output=True, text=True)


def test_both_packages_run_in_one_process():
    done = compare("1.1.1", "-k", "softmax")
    assert re.match(r"\d+ tests on both packages", done.stdout), done.stdout + done.stderr


def test_a_word_that_no_test_has_is_one_line():
    done = compare("1.1", "-k", "zzz")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "no test" in done.stderr
