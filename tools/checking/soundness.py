"""Checks that the starter is all TODO."""

from tiny_llm_lab.course.grading.sandbox import Trial, run_trials, settled
from tiny_llm_lab.course.manifest import Course
from tiny_llm_lab.course.starter.stubs import starter

_LIMIT_S = 600.0


def starter_faults(course: Course) -> list[str]:
    """Tests that are not TODO on the pristine starter, and so would grade nothing."""
    args = (*course.test_files(course.tasks), "--solution", "mine", "--full")
    trial = Trial(course.root, course.reference, course.starter.name, starter(course), args)
    (result,) = run_trials([trial], _LIMIT_S)
    found = settled(result, _LIMIT_S)
    if found.error is not None:
        return [found.error]
    wrong = [test for test in found.tests if test.outcome != "todo"]
    faults = [f"{test.test}: {test.outcome} instead of todo: {test.headline}" for test in wrong]
    return faults if found.tests else ["no test is marked with a task"]
