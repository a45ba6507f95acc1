"""Python files of a solution, parsed: public names are the contract, private ones belong to the answer."""

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Final

from tiny_llm_lab.course.manifest import Task
from tiny_llm_lab.runtime.task_names import is_private
from tiny_llm_lab.types import UserError

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
_BLOCKS: Final = ("body", "orelse", "handlers", "finalbody", "cases")
STUB: Final = re.compile(r"""raise NotImplementedError\(["']task (?P<task>[\d.]+)["']\)""")


@dataclass(frozen=True)
class Definition:
    """A statement at the top of a module ("softmax", "import math") or of a class ("Request._fill").

    `owner` is the class, "" for the module. Lines count from 1 and include the decorators.
    """

    name: str
    owner: str
    node: ast.stmt

    @property
    def first_line(self) -> int:
        decorators = getattr(self.node, "decorator_list", [])
        return min([self.node.lineno, *(each.lineno for each in decorators)])

    @property
    def last_line(self) -> int:
        return last_line(self.node)

    @property
    def names(self) -> frozenset[str]:
        """What it defines, without the class around it."""
        return frozenset(self.name.rpartition(".")[2].split(","))

    @property
    def is_private(self) -> bool:
        return not isinstance(self.node, ast.Import | ast.ImportFrom) and all(map(is_private, self.names))

    @cached_property
    def mentions(self) -> frozenset[str]:
        """Every name, attribute and keyword in it; in the head alone of a class, whose body has its own."""
        tops: list[ast.AST] = [self.node]
        if isinstance(self.node, ast.ClassDef):
            tops = [*self.node.bases, *self.node.keywords, *self.node.decorator_list]
        result = (
            getattr(each, "id", getattr(each, "attr", getattr(each, "arg", None)))
            for top in tops
            for each in ast.walk(top)
        )
        return frozenset(name for name in result if isinstance(name, str))


@dataclass(frozen=True)
class Function(Definition):
    """A function of a module ("softmax") or a method ("Request.try_prefill")."""

    node: FunctionNode

    @property
    def is_public(self) -> bool:
        return not any(is_private(part) for part in self.name.split("."))

    @property
    def first_body_line(self) -> int:
        """Where the body begins, after the docstring."""
        first = self.node.body[0]
        return last_line(first) + 1 if self._has_docstring else first.lineno

    @property
    def parameter_names(self) -> list[str]:
        """The parameters, in order."""
        args = self.node.args
        return [each.arg for each in (*args.posonlyargs, *args.args, *args.kwonlyargs)]

    @property
    def stub_of(self) -> str | None:
        """The task that the last statement names as one to be written; None for any other statement."""
        stub = STUB.fullmatch(ast.unparse(self.node.body[-1]))
        return stub["task"] if stub else None

    @property
    def is_stub(self) -> bool:
        """Whether all that it does is to name its task."""
        return self.stub_of is not None and len(self.node.body) == 1 + self._has_docstring

    @property
    def _has_docstring(self) -> bool:
        return ast.get_docstring(self.node, clean=False) is not None


@dataclass(frozen=True)
class Source:
    """A Python file; `task_of` names the task of each public function that has one.

    Raises SyntaxError when its code is first looked at.
    """

    text: str
    task_of: Mapping[str, Task] = field(default_factory=dict)

    @cached_property
    def tree(self) -> ast.Module:
        return _tree(self.text)

    @cached_property
    def definitions(self) -> Mapping[str, Definition]:
        """The statements of the module and of its classes by name, in order."""
        return {each.name: each for each in _definitions(self.tree)}

    @cached_property
    def functions(self) -> dict[str, Function]:
        """Every function and method by name, in order; nested ones are part of their function."""
        return {name: each for name, each in self.definitions.items() if isinstance(each, Function)}

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    def code(self, name: str) -> list[str]:
        """The lines of a definition."""
        result = self.definitions[name]
        return self.lines[result.first_line - 1 : result.last_line]

    def with_code_of(self, other: "Source", names: Collection[str]) -> str:
        """The text with these definitions taken from another module."""
        lines = list(self.lines)
        for own in sorted(map(self.definitions.__getitem__, names), key=lambda each: -each.first_line):
            lines[own.first_line - 1 : own.last_line] = other.code(own.name)
        return "\n".join(lines) + "\n"

    def helpers(self, name: str) -> list[str]:
        """The private definitions that `name` mentions, directly or through one another, in order."""
        pending, seen = [name] if name in self.definitions else [], {name}
        private = [each for each in self.definitions.values() if each.is_private]
        while pending:
            mentioned = self.definitions[pending.pop()].mentions
            for each in private:
                if each.name not in seen and each.names & mentioned:
                    seen.add(each.name)
                    pending += [
                        each.name,
                        *(inner.name for inner in self.definitions.values() if inner.owner == each.name),
                    ]
        return [each.name for each in private if each.name in seen - {name}]

    def task_ids(self) -> dict[str, str]:
        """`task_of` with the tasks' ids."""
        return {name: task.id for name, task in self.task_of.items()}


@lru_cache(maxsize=1024)
def _tree(text: str) -> ast.Module:
    """Parsed once: a command looks at the same files many times. Nobody changes a tree."""
    return ast.parse(text)


def parsed(name: str, text: str) -> Source:
    """A learner's file, by its name in the package. Raises UserError where it is not Python."""
    source = Source(text)
    try:
        source.tree  # noqa: B018 - an error is told here
    except SyntaxError as error:
        raise UserError(
            f"src/tiny_llm/{name}:{error.lineno} is not valid Python ({error.msg}): fix that line first"
        ) from None
    return source


def is_of(name: str, symbols: Iterable[str]) -> bool:
    """Whether a function is one of `symbols`, or a method of a class among them."""
    return any(f"{name}.".startswith(f"{symbol}.") for symbol in symbols)


def last_line(node: ast.stmt) -> int:
    """The number of a statement's last line."""
    return node.end_lineno or node.lineno


def _definitions(tree: ast.Module) -> Iterator[Definition]:
    for node in tree.body:
        name = _name(node)
        yield _definition(name, "", node)
        if isinstance(node, ast.ClassDef):
            yield from (_definition(f"{name}.{_name(inner)}", name, inner) for inner in node.body)


def _definition(name: str, owner: str, node: ast.stmt) -> Definition:
    return Function(name, owner, node) if isinstance(node, FunctionNode) else Definition(name, owner, node)


def _name(node: ast.stmt) -> str:
    """What a statement defines; several names have a comma between them."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return node.name
    if isinstance(node, ast.ImportFrom):
        return f"from {'.' * node.level}{node.module or ''}"
    if isinstance(node, ast.Import):
        return f"import {node.names[0].name}"
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
    stored = [each.id for t in targets if t is not None for each in ast.walk(t) if isinstance(each, ast.Name)]
    return ",".join(stored) or ast.unparse(node)


def code_lines(text: str, suffix: str = ".py") -> int:
    """The lines that are no blanks, comments or docstrings, in Python or, by `suffix`, C++ or Metal."""
    is_python = suffix == ".py"
    nodes = documentable(text) if is_python else ()
    documented = {number for node in nodes for number in docstring_lines(node)}
    return sum(
        bool(line.strip())
        and not line.lstrip().startswith("#" if is_python else "//")
        and number not in documented
        for number, line in enumerate(text.splitlines(), 1)
    )


@lru_cache(maxsize=1)
def documentable(text: str) -> tuple[ast.Module | ast.ClassDef | FunctionNode, ...]:
    """What may have a docstring in some Python: the module, its classes and functions."""
    found, pending = [], list[ast.AST]([ast.parse(text)])
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Module | ast.ClassDef | FunctionNode):
            found.append(node)
        # Statements alone: their expressions are most of a tree.
        pending += [child for block in _BLOCKS for child in getattr(node, block, ())]
    return tuple(found)


def docstring_lines(node: ast.Module | ast.ClassDef | FunctionNode) -> range:
    """The line numbers of its docstring; none without one."""
    first = node.body[0] if node.body else None
    if not (isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)):
        return range(0)
    return range(first.lineno, last_line(first) + 1) if isinstance(first.value.value, str) else range(0)
