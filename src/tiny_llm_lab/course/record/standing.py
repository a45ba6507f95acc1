"""A learner's progress: the state of every task, with which each of their commands begins."""

import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from tiny_llm_lab.course.grading.run_tests import environment, pytest_command
from tiny_llm_lab.course.manifest import Course, Day, Task, load_course
from tiny_llm_lab.course.record.record import Record, TaskSources, load_record
from tiny_llm_lab.runtime.checkout import text_of
from tiny_llm_lab.runtime.console.talk import log, program
from tiny_llm_lab.types import UserError


class State(Enum):
    """The state of a task, without running anything."""

    PASSED = "passed"
    CHANGED = "passed, changed since"
    FAILING = "failing"
    GIVEN = "given, or skipped, by stubs --fill-before"
    WRITTEN = "written, not graded"
    TODO = "to do"


@dataclass(frozen=True)
class Standing:
    """The states of all tasks by id, in the order of the course; next comes what is on the path."""

    course: Course
    states: Mapping[str, State]
    path: str = "whole"
    taken_back: frozenset[str] = frozenset()  # tasks that were reset, to be done whatever the path

    def state(self, task: Task) -> State:
        return self.states[task.id]

    @property
    def next_task(self) -> Task | None:
        """The first to work on: not C++ or Metal, nor what was given, nor what passed and was changed."""
        return next((task for task in self._open() if self._is_on_path(task)), None)

    def _is_on_path(self, task: Task) -> bool:
        is_in = self.path == "bonus" or not task.bonus
        is_in = is_in and not task.kernel and (self.path != "short" or self.course.day(task.day_id).short)
        return is_in or task.id in self.taken_back

    @property
    def end(self) -> str:
        """What to say where no task is next."""
        if not any(self.is_open(task) for task in self.course.tasks if not task.kernel):
            return "all Python tasks have passed"
        more = f"{program()} next --path {'whole' if self.path == 'short' else 'bonus'}"
        return f"the {self.path} path is done; read {_LAST_PAGE}, or go on with {more}"

    def has_open_before(self, task: Task) -> bool:
        """Whether a task of an earlier day is still to do."""
        return any(map(self.is_open, self.course.tasks_before(task.day_id)))

    def next_after(self, task: Task) -> Task | None:
        """The first to work on behind `task`, or else before it."""
        tasks = self.course.tasks
        behind = tasks.index(task) + 1
        order = (*tasks[behind:], *tasks[:behind])
        return next((each for each in order if self.is_open(each) and self._is_on_path(each)), None)

    @property
    def passed_by(self) -> list[Task]:
        """Optional tasks before the next one, or all that are open where no other is."""
        last = self.next_task
        order = [task.id for task in self.course.tasks]
        end = order.index(last.id) if last else len(order)
        optional = [task for task in self._open() if is_optional(task)]
        return [task for task in optional if order.index(task.id) < end]

    @property
    def changed(self) -> list[Task]:
        """Tasks whose code has changed since it passed."""
        return [task for task in self.course.tasks if self.state(task) is State.CHANGED]

    def is_passed(self, day: Day) -> bool:
        """Whether all tasks of a day that were not given passed as they are now."""
        done = (State.PASSED, State.GIVEN)
        return all(self.state(task) in done for task in day.tasks if not is_optional(task))

    @property
    def num_passed(self) -> int:
        """Tasks that passed, in their present form or an earlier one."""
        return sum(state in (State.PASSED, State.CHANGED) for state in self.states.values())

    @property
    def num_given(self) -> int:
        """Tasks whose answers were given and are not graded."""
        return sum(state is State.GIVEN for state in self.states.values())

    def is_open(self, task: Task) -> bool:
        """Whether a task is still to do: neither given nor passed, in its present form or an earlier one."""
        return self.state(task) not in (State.PASSED, State.CHANGED, State.GIVEN)

    def _open(self) -> list[Task]:
        return [task for task in self.course.tasks if self.is_open(task)]


def standing(course: Course, record: Record, sources: TaskSources | None = None) -> Standing:
    """The state of every task of `course`."""
    sources = sources or TaskSources(course)
    states = {task.id: _state(task, record, sources) for task in course.tasks}
    taken_back = frozenset(id_ for id_, given in record.given.items() if not given)
    return Standing(course, states, record.path, taken_back)


def is_optional(task: Task) -> bool:
    """Whether a task is a bonus, or asks for C++ or Metal: the rest of the course does not need it."""
    return task.bonus or bool(task.kernel)


def languages(task: Task) -> str:
    """What a task is written in: "Python", "C++" or "Metal"."""
    if not task.kernel:
        return "Python"
    return "Metal" if task.kernel.endswith(".metal") else "C++"


def _state(task: Task, record: Record, sources: TaskSources) -> State:
    outcome = record.outcomes.get(task.id)
    source = sources.hash_of(task)
    is_written = sources.is_written(task)
    is_pass = is_written and outcome is not None and outcome.is_pass
    if is_pass and outcome is not None and outcome.source == source:
        return State.PASSED
    if record.given.get(task.id) == source:
        return State.GIVEN
    if not is_written or is_pass:
        return State.CHANGED if is_pass else State.TODO
    if outcome is not None and outcome.failed:
        return State.FAILING
    # If a task only extends others, we can't tell whether you have begun it.
    return State.WRITTEN if sources.has_own_parts(task) else State.TODO


_PAGES = Path("book") / "src"
_LAST_PAGE: Final = _PAGES / "last-day.md"


def chapter_of(course: Course, task: Task) -> str:
    """A page of a task's day from the root on, with the anchor of the task's section where one has it."""
    pages = [_PAGES / name for name in course.day(task.day_id).pages]
    section = rf"^#+ +(Tasks? (?:[^:\n]* )?{re.escape(task.id)}\b.*)$"
    for page in pages:
        if match := re.search(section, text_of(course.root / page), re.MULTILINE):
            return f"{page.as_posix()}#{_anchor(match[1])}"
    return pages[0].as_posix()


def end_of_week(course: Course, day: Day) -> str | None:
    """The page "what you have built" for the last day of a week that is no bonus, where there is one."""
    week = day.id.partition(".")[0]
    page = _PAGES / f"week{week}-end.md"
    on_path = [each for each in course.week(int(week)) if not all(task.bonus for task in each.tasks)]
    is_last = on_path[-1] == day
    return page.as_posix() if is_last and (course.root / page).exists() else None


def _anchor(heading: str) -> str:
    """The id that mdBook gives a heading."""
    kept = re.sub(r"[^\w\s-]", "", heading.strip().lower())
    return re.sub(r"\s", "-", kept)


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
            raise UserError(f"{self.standing.end}: name a task, such as {program()} {example}")
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


IsPassed = Callable[[Task], bool]  # whether a learner's answer to a task passes


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
