"""Which tasks `stubs --fill-before` answered, noted in the record: they are neither passed nor to do."""

from collections.abc import Collection

from tiny_llm_lab.course.manifest import Course
from tiny_llm_lab.course.record.record import load_record, save_record
from tiny_llm_lab.course.record.task_sources import TaskSources


def written_tasks(course: Course) -> set[str]:
    """The ids of all tasks of which no stub is left."""
    sources = TaskSources(course)
    return {task.id for task in course.tasks if sources.is_written(task)}


def note_given(course: Course, day: str, written_before: Collection[str]) -> None:
    """Note the tasks before `day` that are written now and were not before: their answers were given."""
    sources = TaskSources(course)
    given = {
        task.id: sources.hash_of(task)
        for task in course.tasks
        if course.is_later(day, task.day_id) and task.id not in written_before and sources.is_written(task)
    }
    if given:
        save_record(course.root, load_record(course.root)[0].with_given(given))
