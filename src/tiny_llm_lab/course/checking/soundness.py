"""Checks that the starter is all TODO and that no task needs a later one."""

from collections.abc import Iterator

from tiny_llm_lab.course.checking.early_calls import with_early_calls
from tiny_llm_lab.course.checking.mistakes import files_testing
from tiny_llm_lab.course.checking.sandbox import Trial, run_trials, settled
from tiny_llm_lab.course.cutting import cut_bodies, cut_kernels
from tiny_llm_lab.course.exercises import called_by, reference_sources
from tiny_llm_lab.course.growth import growths
from tiny_llm_lab.course.manifest import Course, Task
from tiny_llm_lab.course.starter.stubs import starter

_LIMIT_S = 600.0


def starter_faults(course: Course) -> list[str]:
    """Tests that are not TODO on the pristine starter, and so would grade nothing."""
    args = (*files_testing(course, course.tasks), "--solution", "mine", "--full")
    trial = Trial(course.root, course.reference, course.starter.name, starter(course), args)
    (result,) = run_trials([trial], _LIMIT_S)
    found = settled(result, _LIMIT_S)
    if found.error is not None:
        return [found.error]
    wrong = [test for test in found.tests if test.outcome != "todo"]
    faults = [f"{test.test}: {test.outcome} instead of todo: {test.headline}" for test in wrong]
    return faults if found.tests else ["no test is marked with a task"]


def later_day_faults(course: Course) -> Iterator[str]:
    """Tests of a task that do not pass while all later tasks are unwritten."""
    trials = [_trial_without_later_tasks(course, task) for task in course.tasks]
    for task, result in zip(course.tasks, run_trials(trials, _LIMIT_S), strict=True):
        yield from (f"task {task.id}: {fault}" for fault in settled(result, _LIMIT_S).faults())


def _trial_without_later_tasks(course: Course, task: Task) -> Trial:
    order = [each.id for each in course.tasks]
    later = set(order[order.index(task.id) + 1 :])
    of_later_days = {each.id for each in course.tasks if course.is_later(each.day_id, task.day_id)}
    present = [each for each in course.tasks if each.id not in later]
    grown = [growth for growth in growths(course) if growth.task in later]
    changed = {}
    for name, source in reference_sources(course).items():
        ids = source.task_ids()
        called = called_by(present, source)
        cut = {symbol: id_ for symbol, id_ in ids.items() if id_ in later and symbol not in called}
        there = [symbol for symbol, id_ in ids.items() if id_ not in later]
        changed[name] = with_early_calls(cut_bodies(source.text, cut), there, grown, course.root / "tests")
    # Those of the same day stay: each file that is cut in another way is compiled once more.
    kernels = cut_kernels(course.reference / "kernels", cut=of_later_days.__contains__)
    changed |= {f"kernels/{name}": text for name, text in kernels.items()}
    args = (*files_testing(course, [task]), "--solution", "ref", "--task", task.id)
    return Trial(course.root, course.reference, course.reference.name, changed, args)
