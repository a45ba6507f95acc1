"""A learner's progress: the state of every task, from the record and the code."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from tiny_llm_lab.course.manifest import Course, Day, Task
from tiny_llm_lab.course.record.record import Record
from tiny_llm_lab.course.record.task_sources import TaskSources


class State(Enum):
    """The state of a task, without running anything."""

    PASSED = "passed"
    CHANGED = "passed, changed since"
    FAILING = "failing"
    GIVEN = "given by stubs --fill-before"
    WRITTEN = "written, not graded"
    TODO = "to do"


@dataclass(frozen=True)
class Standing:
    """The states of all tasks by id, in the order of the course."""

    course: Course
    states: Mapping[str, State]

    def state(self, task: Task) -> State:
        return self.states[task.id]

    @property
    def next_task(self) -> Task | None:
        """The first to work on: not C++ or Metal, nor what was given, nor what passed and was changed."""
        return next((task for task in self._open() if not is_optional(task)), None)

    def next_after(self, task: Task) -> Task | None:
        """The first to work on behind `task`, or else before it."""
        tasks = self.course.tasks
        behind = tasks.index(task) + 1
        order = (*tasks[behind:], *tasks[:behind])
        return next((each for each in order if self.is_open(each) and not is_optional(each)), None)

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
    return Standing(course, {task.id: _state(task, record, sources) for task in course.tasks})


def is_optional(task: Task) -> bool:
    """Whether a task asks for C++ or Metal, which the rest of the course does not need."""
    return bool(task.kernel)


def languages(task: Task) -> str:
    """What a task is written in: "Python", "C++" or "Metal"."""
    if not task.kernel:
        return "Python"
    return "Metal" if task.kernel.endswith(".metal") else "C++"


def _state(task: Task, record: Record, sources: TaskSources) -> State:
    outcome = record.outcomes.get(task.id)
    if not sources.is_written(task):
        return State.TODO
    if outcome is not None and outcome.is_pass:
        return State.PASSED if outcome.source == sources.hash_of(task) else State.CHANGED
    if outcome is not None and outcome.failed:
        return State.FAILING
    if outcome is None and record.given.get(task.id) == sources.hash_of(task):
        return State.GIVEN
    # If a task only extends others, we can't tell whether you have begun it.
    return State.WRITTEN if sources.has_own_parts(task) else State.TODO
