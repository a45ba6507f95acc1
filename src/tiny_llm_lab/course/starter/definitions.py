"""The statements of a module and of its classes, by name, and what each of them mentions."""

import ast
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

from tiny_llm_lab.course.source import Function, last_line
from tiny_llm_lab.runtime.task_names import is_private


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
        found = (
            getattr(each, "id", getattr(each, "attr", getattr(each, "arg", None)))
            for top in tops
            for each in ast.walk(top)
        )
        return frozenset(name for name in found if isinstance(name, str))


@dataclass(frozen=True)
class Module:
    """The text of a Python file and its definitions, in order. Raises SyntaxError when first read."""

    text: str

    @cached_property
    def definitions(self) -> Mapping[str, Definition]:
        return {each.name: each for each in _definitions(ast.parse(self.text))}

    @cached_property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    def code(self, name: str) -> list[str]:
        """The lines of a definition."""
        found = self.definitions[name]
        return self.lines[found.first_line - 1 : found.last_line]

    def with_code_of(self, other: "Module", names: Collection[str]) -> str:
        """The text in which these definitions are as in another module."""
        lines = list(self.lines)
        for own in sorted(map(self.definitions.__getitem__, names), key=lambda each: -each.first_line):
            lines[own.first_line - 1 : own.last_line] = other.code(own.name)
        return "\n".join(lines) + "\n"

    def helpers(self, name: str) -> list[str]:
        """The private definitions that `name` mentions, directly or through one another, in order."""
        pending, seen = [name], {name}
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


def is_stub(function: Function) -> bool:
    """Whether all that a function does is to name its task."""
    statement = function.node.body[-1]
    has_docstring = ast.get_docstring(function.node, clean=False) is not None
    return (
        len(function.node.body) == 1 + has_docstring
        and isinstance(statement, ast.Raise)
        and statement.exc is not None
        and ast.unparse(statement.exc).startswith("NotImplementedError('task ")
    )


def _definitions(tree: ast.Module) -> Iterator[Definition]:
    for node in tree.body:
        name = _name(node)
        yield Definition(name, "", node)
        if isinstance(node, ast.ClassDef):
            yield from (Definition(f"{name}.{_name(inner)}", name, inner) for inner in node.body)


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
