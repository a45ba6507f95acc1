"""Two small packages, recorded and compared: the innermost call that differs is named."""

from collections.abc import Callable

import mlx.core as mx
import pytest
from tests.lab.course.compare.two_packages import Record, forward, reported, stream

from tiny_llm_lab.course.compare.search import first_difference


def test_the_same_code_does_not_differ(record: Record) -> None:
    assert first_difference(record(forward), record(forward)) is None


def test_a_planted_error_is_found_in_its_layer(record: Record) -> None:
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
            "it begins in Norm.__call__ (norm), which is given the same and gives a little else",
        ),
    ],
)
def test_a_call_that_makes_a_small_difference_larger_is_not_blamed(
    record: Record, old: str, new: str, hint: str
) -> None:
    def sharpened(module: object) -> None:
        module.Block()(mx.array([1.0, 3.0]))  # type: ignore[attr-defined]

    # 3 in 40,000 is taken for rounding at first; behind `sharp` it is twice as much.
    found = first_difference(record(sharpened), record(sharpened, old, new))
    assert found is not None
    assert [call.name for call in found.path] == ["Block.__call__"]
    assert found.hint == hint


def test_a_wrong_argument_is_the_callers_error(record: Record) -> None:
    found = first_difference(record(forward), record(forward, "scale(x, 2)", "scale(x, 3)"))
    assert found is not None
    assert [call.name for call in found.path] == ["Model.__call__"]
    assert found.hint == "it calls scale with another by: the reference has 2, yours 3"


def test_a_call_left_out_is_said(record: Record) -> None:
    found = first_difference(record(forward), record(forward, "_twice(layer(x))", "layer(x) * 3"))
    assert found is not None
    assert found.hint in (
        "the reference calls scale 3 times in it, yours not at all",
        "it calls Norm.__call__ with another x: the reference has 4, yours 6",
    )


def test_a_wrong_counter_is_found_though_results_are_right(record: Record) -> None:
    def norm(module: object) -> None:
        module.Norm(1)(1)  # type: ignore[attr-defined]

    found = first_difference(record(norm), record(norm, "self.count += 1", "self.count += 2"))
    assert found is not None
    assert (found.says.where, found.mine.name) == ("self.count", "Norm.__call__")


def test_a_wrong_counter_is_found_though_the_input_is_off_by_a_rounding(record: Record) -> None:
    def norm_of(x: float) -> Callable[[object], None]:
        return lambda module: module.Norm(1)(mx.array([x]))  # type: ignore[attr-defined]

    got = record(norm_of(1.00001), "self.count += 1", "self.count += 2")
    found = first_difference(record(norm_of(1.0)), got)
    assert found is not None
    assert (found.says.where, found.mine.name) == ("self.count", "Norm.__call__")


def test_the_report_names_the_test_the_path_and_the_place(record: Record) -> None:
    wanted = {"test_a": record(forward), "test_b": record(stream)}
    wrong = ("Norm(1), Norm(1), Norm(1)", "Norm(1), Norm(1), Norm(3)")
    mine = {"test_a": record(forward, *wrong), "test_b": record(stream, *wrong)}
    lines = reported(wanted, mine)
    assert lines[:2] == ["2 tests on both packages", "1 differs; the first: test_a"]
    assert "  Norm.__call__  (layers[2])" in lines
    assert any(line.strip().startswith("at ") and "model.py:9" in line for line in lines)
    assert "the same input:  x 10" in lines


def test_unwritten_code_is_no_difference(record: Record) -> None:
    def tried(module: object) -> None:
        with pytest.raises(NotImplementedError):
            module.scale(1)  # type: ignore[attr-defined]

    def scaled(module: object) -> None:
        module.scale(1)  # type: ignore[attr-defined]

    mine = record(tried, "return x * by", 'raise NotImplementedError("task 1.1.1")')
    assert reported({"test_a": record(scaled)}, {"test_a": mine}) == [
        "1 test on both packages, 1 of them not written yet",
        "nothing to compare yet",
    ]
