"""What a source file defines: public names are the contract, private ones belong to the answer."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tiny_llm_lab.course.manifest import Course, Task
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
        return (first.end_lineno or first.lineno) + 1 if has_docstring else first.lineno


def is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def functions(tree: ast.Module) -> Iterator[Function]:
    """Every function and method of a module, in order; nested ones are part of their function."""
    for node in tree.body:
        if isinstance(node, FunctionNode):
            yield Function(node.name, node)
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, FunctionNode):
                    yield Function(f"{node.name}.{inner.name}", inner)


def modules(package: Path) -> dict[str, Path]:
    """Every Python file of a package by its path in it, such as "layers/basics.py", in order."""
    return {path.relative_to(package).as_posix(): path for path in sorted(package.rglob("*.py"))}


def owners(course: Course) -> dict[str, dict[str, Task]]:
    """For each file of the reference, by its path in the package, the public functions and their tasks.

    A class in `symbols` stands for its public methods, except for those that another task names.
    """
    found: dict[str, dict[str, Task]] = {}
    for name, path in modules(course.reference).items():
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tasks = [task for task in course.tasks if task.file == name]
        public = [function.name for function in functions(tree) if function.is_public]
        found[name] = _owned(tasks, public)
    missing = [task for task in course.tasks if task.file and task.file not in found]
    if missing:
        raise UserError(f"course.toml: task {missing[0].id}: {missing[0].file} is not in {course.reference}")
    return found


def _owned(tasks: list[Task], public: list[str]) -> dict[str, Task]:
    claims = [(task, symbol) for task in tasks for symbol in task.symbols]
    named = [symbol for _, symbol in claims]
    for task, symbol in claims:
        if named.count(symbol) > 1:
            raise UserError(f"course.toml: {symbol} of {task.file} is owned by more than one task")
    owned: dict[str, Task] = {}
    # Exact names first: what remains of a class falls to the task that names the whole class.
    for task, symbol in sorted(claims, key=lambda claim: claim[1] not in public):
        members = [name for name in public if name == symbol or name.startswith(f"{symbol}.")]
        if not members:
            raise UserError(f"course.toml: task {task.id}: {task.file} has no public {symbol!r}")
        for name in members:
            owned.setdefault(name, task)
    return owned


def reject_unowned(owned: dict[str, Task], path: Path) -> None:
    """Raise UserError when a public function of the reference is no exercise."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for function in functions(tree):
        if function.is_public and function.name not in owned:
            raise UserError(
                f"{path.name}: {function.name} belongs to no task of course.toml: move it to tiny_llm_lab, "
                "give it to a task, or start its name with an underscore"
            )
