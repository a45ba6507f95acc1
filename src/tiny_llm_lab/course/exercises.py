"""The reference as exercises: which task owns each of its public functions."""

from collections.abc import Iterable
from pathlib import Path

from tiny_llm_lab.course.manifest import Course, Task
from tiny_llm_lab.course.source import Function, Source, is_of
from tiny_llm_lab.runtime.task_names import modules
from tiny_llm_lab.types import UserError


def reference_sources(course: Course) -> dict[str, Source]:
    """Each file of the reference, by its path in the package, with the tasks of its public functions.

    A class in `symbols` means its public methods, except those that another task names. Raises
    UserError where course.toml does not fit.
    """
    results: dict[str, Source] = {}
    for name, path in modules(course.reference).items():
        source = Source(path.read_text(encoding="utf-8"))
        tasks = [task for task in course.tasks if name in task.files]
        public = [each for each, function in source.functions.items() if function.is_public]
        results[name] = Source(source.text, _owned(name, tasks, public))
    missing = [(task, name) for task in course.tasks for name in task.files if name not in results]
    for task, name in missing:
        raise UserError(f"course.toml: task {task.id}: {name} is not in {course.reference}")
    for name in sorted(course.given):
        if name not in results or results[name].task_of:
            raise UserError(f"course.toml: given {name} is no file of {course.reference} without tasks")
    return results


def exercises(course: Course) -> dict[str, Source]:
    """`reference_sources`; raises UserError as well for a function of no task in a file that is not given."""
    sources = reference_sources(course)
    for path, source in sources.items():
        for name, function in source.functions.items():
            if function.is_public and name not in source.task_of and path not in course.given:
                raise UserError(
                    f"{Path(path).name}: {name} does not belong to a task of course.toml: move it to "
                    "tiny_llm_lab, give it to a task, or start its name with an underscore"
                )
    return sources


def called_by(tasks: Iterable[Task], source: Source) -> set[str]:
    """The functions of a file that the answers of `tasks` call although later tasks own them.

    A class in `calls` means those of its methods that its own task owns.
    """
    called = {symbol for task in tasks for symbol in task.calls}
    return {
        name
        for name, owner in source.task_of.items()
        if name in called or is_of(name, called.intersection(owner.symbols))
    }


def functions_of(course: Course, task: Task, file: str, functions: Iterable[Function]) -> list[Function]:
    """Those among the functions of a file that a task owns, or extends where it owns none there."""
    wanted = task.symbols_in(file) or task.grows
    others = {each for other in course.tasks for each in other.symbols_in(file)} - set(wanted)
    return [
        each for each in functions if each.is_public and each.name not in others and is_of(each.name, wanted)
    ]


def _owned(file: str, tasks: list[Task], public: list[str]) -> dict[str, Task]:
    claims = [(task, symbol) for task in tasks for symbol in task.symbols_in(file)]
    named = [symbol for _, symbol in claims]
    for _, symbol in claims:
        if named.count(symbol) > 1:
            raise UserError(f"course.toml: {symbol} of {file} is owned by more than one task")
    owned: dict[str, Task] = {}
    # Exact names first: what remains of a class falls to the task that names the whole class.
    for task, symbol in sorted(claims, key=lambda claim: claim[1] not in public):
        members = [name for name in public if name == symbol or name.startswith(f"{symbol}.")]
        if not members:
            raise UserError(f"course.toml: task {task.id}: {file} has no public {symbol!r}")
        for name in members:
            owned.setdefault(name, task)
    return owned
