"""Python files of a solution, parsed: public names are the contract, private ones belong to the answer."""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from tiny_llm_lab.course.manifest import Course, Task
from tiny_llm_lab.runtime.task_names import is_private, modules
from tiny_llm_lab.types import UserError

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Function:
    """A function of a module ("softmax") or a method ("Request.try_prefill")."""

    name: str
    node: FunctionNode

    @property
    def is_public(self) -> bool:
        return not any(is_private(part) for part in self.name.split("."))

    @property
    def first_body_line(self) -> int:
        """Where the body begins, after the docstring."""
        first = self.node.body[0]
        has_docstring = ast.get_docstring(self.node, clean=False) is not None
        return last_line(first) + 1 if has_docstring else first.lineno


@dataclass(frozen=True)
class Source:
    """A Python file; `task_of` names the task of each public function that has one."""

    text: str
    task_of: Mapping[str, Task] = field(default_factory=dict)

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text)

    @cached_property
    def functions(self) -> dict[str, Function]:
        """Every function and method by name, in order; nested ones are part of their function."""
        return {function.name: function for function in _functions(self.tree)}

    def task_ids(self) -> dict[str, str]:
        """`task_of` with the tasks' ids."""
        return {name: task.id for name, task in self.task_of.items()}


def parsed(name: str, text: str) -> Source:
    """A learner's file, by its name in the package. Raises UserError where it is not Python."""
    source = Source(text)
    try:
        source.tree  # noqa: B018 - an error is told here
    except SyntaxError as error:
        raise UserError(
            f"src/tiny_llm/{name}:{error.lineno} is not Python ({error.msg}): mend that line first"
        ) from None
    return source


def is_of(name: str, symbols: Iterable[str]) -> bool:
    """Whether a function is one of `symbols`, or a method of a class among them."""
    return any(f"{name}.".startswith(f"{symbol}.") for symbol in symbols)


def parameter_names(function: Function) -> list[str]:
    """The parameters of a function, in order."""
    args = function.node.args
    return [each.arg for each in (*args.posonlyargs, *args.args, *args.kwonlyargs)]


def last_line(node: ast.stmt) -> int:
    """The number of a statement's last line."""
    return node.end_lineno or node.lineno


def reference_sources(course: Course) -> dict[str, Source]:
    """Each file of the reference, by its path in the package, with the tasks of its public functions.

    A class in `symbols` stands for its public methods, except for those that another task names. Raises
    UserError where course.toml does not fit.
    """
    found: dict[str, Source] = {}
    for name, path in modules(course.reference).items():
        source = Source(path.read_text(encoding="utf-8"))
        tasks = [task for task in course.tasks if name in task.files]
        public = [each for each, function in source.functions.items() if function.is_public]
        found[name] = Source(source.text, _owned(name, tasks, public))
    missing = [(task, name) for task in course.tasks for name in task.files if name not in found]
    for task, name in missing:
        raise UserError(f"course.toml: task {task.id}: {name} is not in {course.reference}")
    return found


def exercises(course: Course) -> dict[str, Source]:
    """`reference_sources`; raises UserError as well when a public function of them is no exercise."""
    sources = reference_sources(course)
    for path, source in sources.items():
        for name, function in source.functions.items():
            if function.is_public and name not in source.task_of:
                raise UserError(
                    f"{Path(path).name}: {name} belongs to no task of course.toml: move it to tiny_llm_lab, "
                    "give it to a task, or start its name with an underscore"
                )
    return sources


def _functions(tree: ast.Module) -> Iterator[Function]:
    for node in tree.body:
        if isinstance(node, FunctionNode):
            yield Function(node.name, node)
        elif isinstance(node, ast.ClassDef):
            methods = (inner for inner in node.body if isinstance(inner, FunctionNode))
            yield from (Function(f"{node.name}.{method.name}", method) for method in methods)


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
