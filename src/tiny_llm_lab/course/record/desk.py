"""The start of every learner's command: the course, the record, the code, and the state of each task."""

import subprocess
from dataclasses import dataclass
from typing import Protocol

from tiny_llm_lab.course.grading.run_tests import environment, pytest_command
from tiny_llm_lab.course.manifest import Course, Task, load_course
from tiny_llm_lab.course.record.record import Record, load_record
from tiny_llm_lab.course.record.standing import Standing, State, standing
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
        """The file and line of a task's first unwritten part."""
        place = self.sources.first_place(task)
        return f"{place.path.relative_to(self.course.root).as_posix()}:{place.line}"

    def task_or_next(self, name: str | None, example: str) -> Task:
        """The task with this id, or the next one. Raises UserError with an `example` where none is."""
        if name is not None:
            return named_task(self.course, name)
        if self.standing.next_task is None:
            raise UserError(f"all Python tasks have passed: name a task, such as {program()} {example}")
        return self.standing.next_task


def open_desk(course: Course | None = None) -> Desk:
    """Read everything; reports an unreadable record on stderr."""
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


class IsPassed(Protocol):
    """Says whether a learner's answer to a task passes."""

    def __call__(self, task: Task) -> bool: ...


def passes_now(desk: Desk) -> IsPassed:
    """By the record where it knows this very code, or else by running the task's tests (a few seconds)."""

    def is_passed(task: Task) -> bool:
        state = desk.standing.state(task)
        if state is State.PASSED:
            return True
        if state is State.TODO and desk.sources.has_own_parts(task):
            return False
        files = desk.course.test_files([task])
        command = [*pytest_command("mine"), "--task", task.id, "-q", *files]
        root = desk.course.root
        done = subprocess.run(command, cwd=root, env=environment(root / "src"), capture_output=True)
        return bool(files) and done.returncode == 0

    return is_passed
