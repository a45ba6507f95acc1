"""Turns an answer into an exercise: bodies become one `raise`, and what only the answer needs is removed."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tiny_llm_lab.course.source import Source, last_line

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


def cut_bodies(source: str, task_of: Mapping[str, str]) -> str:
    """The same file with only the bodies of the functions in `task_of` cut."""
    return _applied(source, list(_bodies(source, task_of)))


def without_unused(source: str) -> str:
    """A file without private definitions and imports that nothing else in it mentions."""
    while cuts := list(_unmentioned(source)):
        source = _applied(source, cuts)
    return _applied(source, list(_unused_imports(source)))


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


def _unmentioned(source: str) -> Iterator[Cut]:
    """Private definitions that only refer to themselves."""
    definitions = Source(source).definitions.values()
    for own in definitions:
        others = (each for each in definitions if each is not own and each.owner != own.name)
        if own.is_private and not any(own.names & each.mentions for each in others):
            yield Cut(own.first_line, own.last_line)


def _unused_imports(source: str) -> Iterator[Cut]:
    tree = ast.parse(source)
    used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            used.update(ast.literal_eval(node.value))
    for node in tree.body:
        if not isinstance(node, ast.Import | ast.ImportFrom):
            continue
        kept = [alias for alias in node.names if (alias.asname or alias.name).partition(".")[0] in used]
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


def _with_what_leads_up(lines: list[str], cut: Cut) -> int:
    """The first line of a cut, with the comments above it and blank lines that would be too many."""
    first = cut.first
    while first > 1 and lines[first - 2].lstrip().startswith("#"):
        first -= 1
    is_alone = cut.last >= len(lines) or not lines[cut.last].strip()
    while is_alone and first > 1 and not lines[first - 2].strip():
        first -= 1
    return first
