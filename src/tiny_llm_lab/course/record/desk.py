"""What every command of a learner begins with: the course, the record, the code, and where they stand."""

from dataclasses import dataclass

from tiny_llm_lab.course.manifest import Course, Task, load_course
from tiny_llm_lab.course.record.record import Record, load_record
from tiny_llm_lab.course.record.standing import Standing, standing
from tiny_llm_lab.course.record.task_sources import TaskSources
from tiny_llm_lab.runtime.console.program import program
from tiny_llm_lab.runtime.console.talk import log
from tiny_llm_lab.types import UserError


@dataclass(frozen=True)
class Desk:
    """One look at a learner's clone."""

    course: Course
    record: Record
    sources: TaskSources
    standing: Standing

    def where(self, task: Task) -> str:
        """The file and line of the first part of a task that is still to be written."""
        place = self.sources.first_place(task)
        return f"{place.path.relative_to(self.course.root).as_posix()}:{place.line}"

    def task_or_next(self, name: str | None, example: str) -> Task:
        """The task with this id, or the next one. Raises UserError with an `example` where none is."""
        if name is not None:
            return named_task(self.course, name)
        if self.standing.next_task is None:
            raise UserError(f"all that is Python has passed: name one, as in {program()} {example}")
        return self.standing.next_task


def open_desk(course: Course | None = None) -> Desk:
    """Read everything there is; a record that is not readable is said on stderr."""
    course = load_course() if course is None else course
    record, complaint = load_record(course.root)
    if complaint:
        log(complaint)
    sources = TaskSources(course)
    return Desk(course, record, sources, standing(course, record, sources))


def named_task(course: Course, name: str) -> Task:
    """The task with an id such as 1.1.2. Raises UserError with the nearest one for anything else."""
    day = next((day for day in course.days if day.id == name), None)
    if day is not None:
        listed = ", ".join(task.id for task in day.tasks)
        raise UserError(f"{name} is a day: choose one of its tasks, {listed}")
    return course.task(name)
