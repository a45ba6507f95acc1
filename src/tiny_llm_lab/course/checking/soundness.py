"""Does the course hold together? The starter must be all TODO, and no day may need a later one."""

from collections.abc import Iterator

from tiny_llm_lab.course.checking.early_calls import with_early_calls
from tiny_llm_lab.course.checking.mistakes import files_testing
from tiny_llm_lab.course.checking.sandbox import run_trials
from tiny_llm_lab.course.checking.worker import Result, Trial
from tiny_llm_lab.course.cutting import cut_bodies, cut_kernels
from tiny_llm_lab.course.growth import growths
from tiny_llm_lab.course.manifest import Course, Day
from tiny_llm_lab.course.source import reference_sources
from tiny_llm_lab.course.stubs import starter

_LIMIT_S = 600.0


def starter_faults(course: Course) -> list[str]:
    """Tests that are anything but TODO on the pristine starter: they would grade nothing."""
    args = (*files_testing(course, course.tasks), "--solution", "mine", "--full")
    trial = Trial(course.root, course.reference, course.starter.name, starter(course), args)
    (result,) = run_trials([trial], _LIMIT_S)
    faults = _failures(result)
    if not faults and isinstance(result, Result):
        wrong = [test for test in result.tests if test.outcome != "todo"]
        faults = [f"{test.test}: {test.outcome} instead of todo: {test.headline}" for test in wrong]
        faults += [] if result.tests else ["no test is marked with a task"]
    return faults


def later_day_faults(course: Course) -> Iterator[str]:
    """Tests of a day that do not pass while the tasks of all later days are unwritten."""
    trials = [_trial_without_later_days(course, day) for day in course.days]
    for day, result in zip(course.days, run_trials(trials, _LIMIT_S), strict=True):
        yield from (f"day {day.id}: {fault}" for fault in _failures(result))
        if isinstance(result, Result):
            for test in result.tests:
                if test.outcome in ("failed", "todo"):
                    yield f"day {day.id}: {test.test}: {test.headline}"


def _trial_without_later_days(course: Course, day: Day) -> Trial:
    later = {task.id for each in course.days if course.is_later(each.id, day.id) for task in each.tasks}
    grown = [growth for growth in growths(course) if growth.task in later]
    changed = {}
    for name, source in reference_sources(course).items():
        ids = source.task_ids()
        text = cut_bodies(source.text, {symbol: id_ for symbol, id_ in ids.items() if id_ in later})
        there = [symbol for symbol, id_ in ids.items() if id_ not in later]
        changed[name] = with_early_calls(text, there, grown, course.root / "tests")
    kernels = cut_kernels(course.reference / "kernels", cut=later.__contains__)
    changed |= {f"kernels/{name}": text for name, text in kernels.items()}
    args = (*files_testing(course, day.tasks), "--solution", "ref", "--day", day.id)
    return Trial(course.root, course.reference, course.reference.name, changed, args)


def _failures(result: Result | TimeoutError) -> list[str]:
    if isinstance(result, TimeoutError):
        return [f"its tests take more than {_LIMIT_S:.0f} s"]
    return [] if result.error is None else [result.error]
