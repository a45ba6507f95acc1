"""Python files of a solution: parsed, and cut to an exercise whose bodies become one `raise`.

Public names are the contract, private ones belong to the answer.
"""

import ast
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
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
    def is_field(self) -> bool:
        """Whether it is what a dataclass is made with: a name with a type alone."""
        return bool(self.owner) and isinstance(self.node, ast.AnnAssign) and self.node.value is None

    @property
    def is_import(self) -> bool:
        return isinstance(self.node, ast.Import | ast.ImportFrom)

    @property
    def is_private(self) -> bool:
        return not self.is_import and all(map(is_private, self.names))

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

    def helpers(self, name: str, known: Collection[str] | None = None) -> list[str]:
        """The private definitions that `name` mentions, directly or through one another, in order.

        With `known`, those that are not in it, whatever their names are.
        """
        pending, seen = [name] if name in self.definitions else [], {name}
        private = [
            each
            for each in self.definitions.values()
            if (each.is_private if known is None else each.name not in known and not each.is_import)
        ]
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


LINE_LENGTH = 110
KERNEL_SUFFIXES = (".cpp", ".h", ".metal")
_KERNEL_PART = re.compile(
    r"(?P<begin>^(?P<pad>[ \t]*)//[ \t]*BEGIN task (?P<task>[\d.]+)[^\n]*\n)"
    r"(?P<answer>.*?)(?P<end>^[ \t]*//[ \t]*END task (?P=task)\b)",
    flags=re.MULTILINE | re.DOTALL,
)
# A signature begins a line, or is a struct's and `static`; `template <...>` is above it, and the lines inside
# the braces are indented.
_CPP_FUNCTION = re.compile(
    r"^(?:  (?=static ))?(?!//|#|template|constexpr)(?:(?:__attribute__\(\(\w+\)\)|\[\[[\w:]+\]\]) +)?"
    r"(?:[\w:<>*&]+ +)+(?P<name>\w+)\(",
    flags=re.MULTILINE,
)


@dataclass(frozen=True)
class Cut:
    """Lines first to last (counted from 1) that give way to `text`; None takes them out."""

    first: int
    last: int
    text: str | None = None


def starter_source(source: str, task_of: Mapping[str, str]) -> str:
    """A file of the starter: `task_of` names the task of every public function."""
    bare = _applied(source, [*_private(source), *_bodies(source, task_of)])
    return _applied(bare, list(_unused_imports(bare)))


def without_unused(source: str, among: Collection[str] | None = None, starter: Source | None = None) -> str:
    """A file without private definitions and imports that nothing else in it mentions.

    With `among`, without those definitions instead. Imports of the starter stay.
    """
    while cuts := list(_unmentioned(source, among)):
        source = _applied(source, cuts)
    kept = {ast.unparse(node) for node in starter.tree.body} if starter else set()
    return _applied(source, list(_unused_imports(source, kept)))


def cut_kernels(folder: Path, cut: Callable[[str], bool] = lambda task: True) -> dict[str, str]:
    """The C++ and Metal files of a folder, by name, with the tasks that `cut` chooses cut."""
    return {
        path.name: cut_kernel(path.read_text(encoding="utf-8"), path.suffix == ".metal", cut)
        for path in sorted(folder.glob("*"))
        if path.suffix in KERNEL_SUFFIXES
    }


def cut_kernel(source: str, is_metal: bool, cut: Callable[[str], bool] = lambda task: True) -> str:
    """A C++ or Metal file without the lines between `BEGIN task X` and `END task X` comments.

    C++ throws instead; Metal, which cannot, does not compile: both errors name the task.
    """

    def swap(match: re.Match[str]) -> str:
        if not cut(match["task"]):
            return match[0]
        todo = f"task {match['task']}"
        line = f'#error "{todo}"' if is_metal else f'{match["pad"]}throw std::runtime_error("{todo}");'
        return f"{match['begin']}{line}\n{match['end']}"

    return _KERNEL_PART.sub(swap, source)


def import_lines(node: ast.Import | ast.ImportFrom, names: list[ast.alias]) -> list[str]:
    """An import of these names only, as ruff lays it out."""
    if isinstance(node, ast.Import):
        return [ast.unparse(ast.Import(names))]
    line = ast.unparse(ast.ImportFrom(node.module, names, node.level))
    if len(line) <= LINE_LENGTH:
        return [line]
    head, _, listed = line.partition(" import ")
    return [f"{head} import (", *(f"    {name}," for name in listed.split(", ")), ")"]


def kernel_answer(source: str, task_id: str) -> str | None:
    """The part that cutting removes from a C++ or Metal file for a task; None if there is none."""
    results = [match["answer"] for match in _KERNEL_PART.finditer(source) if match["task"] == task_id]
    return "".join(results) if results else None


def with_kernel_answer(source: str, other: str, task_id: str) -> str:
    """A C++ or Metal file with the parts of a task as they are in `other`."""
    parts = iter([match["answer"] for match in _KERNEL_PART.finditer(other) if match["task"] == task_id])

    def swap(match: re.Match[str]) -> str:
        if match["task"] != task_id:
            return match[0]
        return f"{match['begin']}{next(parts, match['answer'])}{match['end']}"

    return _KERNEL_PART.sub(swap, source)


def kernel_names(source: str, task_id: str) -> list[str]:
    """The C++ functions that contain a task's parts, in order."""
    parts = [match.start() for match in _KERNEL_PART.finditer(source) if match["task"] == task_id]
    heads = [(match.start(), match["name"]) for match in _CPP_FUNCTION.finditer(source)]
    return [[name for start, name in heads if start < part][-1] for part in parts]


def _bodies(source: str, task_of: Mapping[str, str]) -> Iterator[Cut]:
    for name, function in Source(source).functions.items():
        if name in task_of:
            pad = " " * function.node.body[0].col_offset
            todo = f'{pad}raise NotImplementedError("task {task_of[name]}")'
            yield Cut(function.first_body_line, last_line(function.node), todo)


def _private(source: str) -> Iterator[Cut]:
    definitions = Source(source).definitions.values()
    yield from (Cut(each.first_line, each.last_line) for each in definitions if each.is_private)


def _unmentioned(source: str, among: Collection[str] | None) -> Iterator[Cut]:
    """Private definitions, or those `among` them, that only refer to themselves."""
    definitions = Source(source).definitions.values()
    for own in definitions:
        others = (each for each in definitions if each is not own and each.owner != own.name)
        is_meant = own.is_private if among is None else own.name in among
        if is_meant and not any(own.names & each.mentions for each in others):
            yield Cut(own.first_line, own.last_line)


def _unused_imports(source: str, kept_lines: Collection[str] = ()) -> Iterator[Cut]:
    tree = ast.parse(source)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            used.update(ast.literal_eval(node.value))
    for node in tree.body:
        if not isinstance(node, ast.Import | ast.ImportFrom) or ast.unparse(node) in kept_lines:
            continue
        kept = [
            alias
            for alias in node.names
            if alias.asname == alias.name or (alias.asname or alias.name).partition(".")[0] in used
        ]
        if len(kept) < len(node.names):
            yield Cut(node.lineno, last_line(node), "\n".join(import_lines(node, kept)) if kept else None)


def _applied(source: str, cuts: list[Cut]) -> str:
    lines = source.splitlines()
    # From the bottom up, so that the numbers of the lines above stay true. A body that lies within a
    # function that goes as a whole goes with it.
    outer = [c for c in cuts if not any(o is not c and o.first <= c.first <= c.last <= o.last for o in cuts)]
    for cut in sorted(outer, key=lambda cut: cut.first, reverse=True):
        first = cut.first if cut.text is not None else _with_what_leads_up(lines, cut)
        lines[first - 1 : cut.last] = [] if cut.text is None else cut.text.split("\n")
    return "\n".join(lines).rstrip() + "\n"


def leads_up(lines: Sequence[str], first: int) -> int:
    """The number of the first line of the comments right above line `first`, or `first` itself."""
    while first > 1 and lines[first - 2].lstrip().startswith("#"):
        first -= 1
    return first


def _with_what_leads_up(lines: list[str], cut: Cut) -> int:
    """The first line of a cut, with the comments above it and blank lines that would be too many."""
    first = leads_up(lines, cut.first)
    is_alone = cut.last >= len(lines) or not lines[cut.last].strip()
    while is_alone and first > 1 and not lines[first - 2].strip():
        first -= 1
    return first
