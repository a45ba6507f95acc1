"""What giving earlier days' answers means for the rest: tasks that come along, and a learner's own code."""

from collections.abc import Collection, Iterator

from tiny_llm_lab.course.exercises import called_by, exercises
from tiny_llm_lab.course.growth import growths
from tiny_llm_lab.course.manifest import Course
from tiny_llm_lab.course.source import is_of
from tiny_llm_lab.course.starter.passed_parameters import calls_in, with_passed
from tiny_llm_lab.runtime.task_names import modules


def come_along(course: Course, day: str, names: Collection[str]) -> Iterator[str]:
    """A line for each task of `day` that extends given functions in the files `names`, final as these are."""
    sources = exercises(course)
    given = {
        function
        for name in names
        for function, owner in (sources[name].task_of if name in sources else {}).items()
        if course.is_later(day, owner.day_id)
    }
    for task in course.day(day).tasks:
        grown = [each for each in task.grows if any(is_of(name, [each]) for name in given)]
        if grown:
            rest = "" if task.symbols or task.also or task.kernel else ": nothing is left to write"
            yield f"task {task.id} comes with the functions that it extends, {', '.join(grown)}{rest}"


def to_extend(
    course: Course, day: str, own: Collection[str], written: Collection[str]
) -> dict[str, list[str]]:
    """What tasks before `day`, by id, extend in a learner's files `own`; not those that are written."""
    sources = exercises(course)
    functions = [function for name in own for function in sources[name].task_of]
    results = {
        task.id: [each for each in task.grows if any(is_of(name, [each]) for name in functions)]
        for task in course.tasks_before(day)
        if task.id not in written
    }
    return {id_: names for id_, names in results.items() if names}


def called_along(course: Course, day: str) -> Iterator[str]:
    """A line for each later task of which functions are given, because answers before `day` call them."""
    before = course.tasks_before(day)
    for source in exercises(course).values():
        called = called_by(before, source)
        for task in (task for task in course.tasks if task not in before):
            if names := [name for name, owner in source.task_of.items() if owner == task and name in called]:
                yield f"{', '.join(names)} of task {task.id}: given as well, because given answers call it"


def fit_own(course: Course, day: str, given: Collection[str]) -> Iterator[str]:
    """Add to a learner's functions the parameters of tasks from `day` on that given answers pass."""
    early = {task.id for task in course.tasks_before(day)}
    grown = [each for each in growths(course) if each.task not in early]
    package, sources = modules(course.starter), exercises(course)
    calls = calls_in(path.read_text(encoding="utf-8") for path in package.values())
    for name in sources.keys() & package.keys() - given:
        text, sentences = with_passed(package[name].read_text(encoding="utf-8"), sources[name], grown, calls)
        if sentences:
            package[name].write_text(text, encoding="utf-8")
            yield from sentences
