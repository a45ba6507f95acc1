"""What a failing comparison of arrays shows: the numbers around the largest difference, in a few lines."""

import numpy as np
import pytest
from tests.helpers.timelines import assert_steps
from tests.helpers.tolerance import EXACT, F32, assert_close


def said(got, want, tolerance=F32):
    with pytest.raises(AssertionError) as caught:
        assert_close(got, want, tolerance)
    return str(caught.value).splitlines()


def test_the_window_lies_around_the_largest_difference():
    want = np.arange(2 * 3 * 9 * 8, dtype=np.float64).reshape(2, 3, 9, 8)
    got = want.copy()
    got[0, 0, 0, 0] += 1.0
    got[1, 2, 4, 0] += 5.0
    lines = said(got, want)
    assert lines[1].startswith("max |delta| 5 at [1, 2, 4, 0]: expected 392, got 397")
    assert lines[3] == "expected | yours, rows 3 to 6, columns 0 to 3 of [1, 2]:"
    left, right = (line.split() for line in lines[5].split("|"))
    assert left == ["392", "393", "394", "395"]
    assert right == ["397", "393", "394", "395"]
    assert len(lines) == 8


WINDOWS = [
    ((9, 8), (8, 7), "rows 5 to 8, columns 4 to 7"),
    ((2, 9, 8), (0, 0, 3), "rows 0 to 3, columns 2 to 5 of [0]"),
    ((3, 2), (2, 1), "rows 0 to 2, columns 0 to 1"),
    ((7, 1, 6), (6, 0, 2), "row 0, columns 1 to 4 of [6]"),
    ((10,), (5,), "columns 4 to 7"),
]


@pytest.mark.parametrize(("shape", "index", "place"), WINDOWS)
def test_the_window_ends_where_the_array_ends(shape, index, place):
    want = np.zeros(shape)
    got = want.copy()
    got[index] = 3.0
    lines = said(got, want)
    assert lines[3] == f"expected | yours, {place}:"
    assert "3" in "\n".join(lines[4:]).replace("|", " ").split()


def test_two_windows_never_look_the_same():
    want = np.full((2, 2), 1.0)
    lines = said(want + np.array([[0.0, 1e-5], [0.0, 0.0]]), want, EXACT)
    left, right = lines[4].split("|")
    assert left.split() == ["1", "1"]
    assert right.split() == ["1", "1.00001"]
    # No number of digits tells one "not a number" from another.
    nothing = np.full((2, 2), np.nan)
    assert len(said(nothing, nothing)) == 3


@pytest.mark.parametrize(("size", "columns"), [(10.0, 4), (-1.2345e-5, 3), (-1.2345e18, 3)])
def test_the_window_is_as_wide_as_a_report_of_80_characters(size, columns):
    want = size * (1 + np.arange(6 * 8).reshape(6, 8) / 1000)
    got = want.copy()
    got[4, 6] *= 3
    lines = said(got, want, EXACT)
    assert max(map(len, lines)) <= 72
    left, right = (line.split() for line in lines[6].split("|"))
    assert len(left) == len(right) == columns
    assert float(right[left.index(f"{want[4, 6]:.4g}")]) == pytest.approx(got[4, 6], rel=1e-3)


def test_numbers_stand_below_numbers():
    want = np.array([[1.0, 1000.5], [-0.25, 3.0]])
    assert said(want + 7.0, want)[4:6] == ["    1  1000 |     8  1008", "-0.25     3 |  6.75    10"]


def test_a_lone_number_needs_no_window():
    assert len(said(np.array(1.0), np.array(2.0))) == 3


PARTS = [
    (np.s_[:, 1:], "[B, H, L, S]", "H at 1 to 5 of 0 to 5"),
    (np.s_[1, :, :, 6:], "[B, H, L, S]", "B at 1 of 0 to 1; S at 6 of 0 to 6"),
    (np.s_[:, ::2, 2:], "[..., L, S]", "axis 1 at 0, 2, 4 of 0 to 5; axis 2 at 2 to 4 of 0 to 4"),
]


@pytest.mark.parametrize(
    ("part", "legend", "line"), PARTS, ids=["heads", "last-column-of-a-row", "every-second-head"]
)
def test_a_part_that_is_wrong_as_a_whole_is_named(part, legend, line):
    want = np.zeros((2, 6, 5, 7))
    got = want.copy()
    got[part] = 1.0
    with pytest.raises(AssertionError) as caught:
        assert_close(got, want, legend=legend)
    assert str(caught.value).splitlines()[-1] == f"all that differ: {line}"


def test_no_part_is_named_where_numbers_differ_here_and_there():
    want = np.zeros((6, 8))
    for wrong in (np.ones((6, 8)), np.eye(6, 8), np.eye(1, 48).reshape(6, 8)):
        assert "all that differ" not in said(want + wrong, want)[-1]


# What a failing comparison of two schedules shows


def test_the_first_step_that_differs_is_marked():
    with pytest.raises(AssertionError) as caught:
        assert_steps([{"a": 60}, {"c": 10, "b": 40}, {}], [{"a": 60}, {"b": 50, "c": 10}], "b waits")
    assert str(caught.value).splitlines() == [
        "the schedule differs from step 1 on (2 steps expected, 3 made): b waits",
        "step  expected     | yours",
        "  0   a: 60        | a: 60",
        "> 1   b: 50, c: 10 | b: 40, c: 10",
        "  2   (no step)    | -",
    ]


def test_a_long_schedule_is_cut_around_the_difference():
    want = [{"a": i} for i in range(40)]
    with pytest.raises(AssertionError) as caught:
        assert_steps([*want[:20], {"a": 0}, *want[21:]], want)
    steps = [line.split()[:2] for line in str(caught.value).splitlines()[2:]]
    assert [step[0] for step in steps] == ["17", "18", "19", ">", "21", "22", "23"]
