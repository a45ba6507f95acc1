"""`stubs --fill-before W.D`: files with the answers of all tasks before a day, to begin the course there.

The record notes these tasks: they are neither passed nor to do.
"""

from collections.abc import Collection, Iterator, Mapping

from tiny_llm_lab.course.cutting import cut_kernels, without_unused
from tiny_llm_lab.course.exercises import exercises
from tiny_llm_lab.course.manifest import Course, Task
from tiny_llm_lab.course.record.record import load_record, save_record
from tiny_llm_lab.course.record.task_sources import TaskSources
from tiny_llm_lab.course.source import Source, is_of


def given_files(course: Course, day: str, starter: Mapping[str, str]) -> dict[str, str]:
    """The files of the tasks before `day`: their answers, and the stubs of `starter` for all other tasks."""
    early = {task.id for task in tasks_before(course, day)}
    found = {}
    for name, source in exercises(course).items():
        later = [function for function, id_ in source.task_ids().items() if id_ not in early]
        if len(later) < len(source.task_of):
            text = Source(source.text).with_code_of(Source(starter[name]), later)
            found[name] = without_unused(text) if later else text
    kernels = cut_kernels(course.reference / "kernels", lambda task: task not in early)
    named = {f"kernels/{name}": text for name, text in kernels.items()}
    return found | {name: text for name, text in named.items() if text != starter[name]}


def tasks_before(course: Course, day: str) -> list[Task]:
    """The tasks of all days before `day`. Raises UserError for a day that does not exist."""
    course.day(day)
    return [task for task in course.tasks if course.is_later(day, task.day_id)]


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
            yield f"task {task.id} comes along with what it extends, {', '.join(grown)}{rest}"


def written_tasks(course: Course) -> set[str]:
    """The ids of all tasks of which no stub is left."""
    sources = TaskSources(course)
    return {task.id for task in course.tasks if sources.is_written(task)}


def note_given(course: Course, day: str, written_before: Collection[str]) -> None:
    """Note the tasks before `day` that are written now and were not before: their answers were given."""
    sources = TaskSources(course)
    given = {
        task.id: sources.hash_of(task)
        for task in tasks_before(course, day)
        if task.id not in written_before and sources.is_written(task)
    }
    if given:
        save_record(course.root, load_record(course.root)[0].with_given(given))
