"""Known mistakes and small changes, tried on tests in one process."""

from tiny_llm_lab.course.grading.screening import Fit, Variant, screened
from tiny_llm_lab.course.manifest import load_course

TWICE, COUNT = (f"tests/week_1/test_day_1.py::{name}" for name in ("test_twice", "test_counter"))
WANTED = {TWICE: "assert 5 == 4\n +  where 5 = twice(2)".partition("\n")[0], COUNT: ""}

NONE, FIRST = frozenset(), frozenset({0})  # which of the failing tests are alike


def fits(tree, *changes, wanted=WANTED, limit_s=60.0, counts=False):
    """Of changes of sums.py, in words, in a symbol, and from old to new code."""
    course = load_course(tree)
    text = (course.reference / "sums.py").read_text()
    variants = [Variant(says, "sums.py", symbol, text.replace(*swap)) for says, symbol, *swap in changes]
    return screened(course, variants, wanted, limit_s, counts)


def test_what_says_the_same_fits_and_the_reference_is_as_before(tree):
    added, tripled = ("added", "twice", "2 * x", "2 * x + 1"), ("tripled", "twice", "2 * x", "3 * x")
    no, yes = Fit("tripled", "some", NONE), Fit("added", "all", FIRST)
    assert fits(tree, tripled, added, tripled, added) == [no, yes, no, yes]


def test_one_that_fails_what_passes_is_no_whole_fit(tree):
    change = ("all of it", "Counter", "self.n += 1", "self.n += 2")
    wanted = {COUNT: "assert 2 == 1", TWICE: ""}
    assert fits(tree, change, wanted=wanted) == [Fit("all of it", "all", FIRST)]
    assert fits(tree, change, wanted=wanted | {TWICE: "assert 5 == 4"}, counts=True) == [
        Fit("all of it", "some", FIRST)
    ]


def test_loops_crashes_and_no_code_cost_no_other_its_fit(tree):
    changes = [
        ("a loop", "twice", "return 2 * x", "while True: pass"),
        ("a crash", "twice", "return 2 * x", "import os; os.abort()"),
        ("no code", "twice", "return 2 * x", "return 2 *"),
        ("added", "twice", "2 * x", "2 * x + 1"),
    ]
    assert fits(tree, *changes)[-1] == Fit("added", "all", FIRST)


def test_a_file_that_is_no_module_has_processes_of_its_own(tree):
    """As C++ has: nothing is exchanged, and the package has the changed file."""
    course = load_course(tree)
    text = (course.reference / "sums.py").read_text().replace("2 * x", "2 * x + 1")
    variants = [Variant("words", "kernels/words.cpp", "", "//"), Variant("added", "sums.py", "", text)]
    assert screened(course, variants, WANTED, 60.0, True) == [
        Fit("words", "some", NONE),
        Fit("added", "all", FIRST),
    ]


def test_what_there_is_no_time_for_has_no_fit(tree):
    assert fits(tree, ("added", "twice", "2 * x", "2 * x + 1"), limit_s=0.0) == []
