"""What the tasks of a day add to the signatures and docstrings of earlier ones, as a chapter shows it."""

import ast
import itertools
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tiny_llm_lab.course.exercises import reference_sources
from tiny_llm_lab.course.growth import (
    Change,
    Growth,
    IsThere,
    additions,
    as_of,
    changes,
    growths,
    growths_of,
    head_lines,
    in_starter,
    parameters,
    returned,
)
from tiny_llm_lab.course.manifest import Course, Day, Task
from tiny_llm_lab.course.source import Function, Source, import_lines, starter_source

_MOST_LINES_OPEN = 30  # a longer block is folded, so that the tasks are in sight


@dataclass(frozen=True)
class Signatures:
    """What the tasks of a course add to functions of others; the reference is read once."""

    course: Course

    @cached_property
    def sources(self) -> Mapping[str, Source]:
        return reference_sources(self.course)

    @cached_property
    def grown(self) -> Sequence[Growth]:
        return growths(self.course)

    def is_needed(self, day: Day) -> bool:
        """Whether the chapter of a day has something to show."""
        return any(any(self._extended(task)) for task in day.tasks)

    def shown(self, day: Day) -> str:
        """Markdown: for each task a sentence, and the functions by file with what is new marked."""
        parts = []
        for task in day.tasks:
            files: dict[str, list[str]] = {}
            for file, owner, members in self._extended(task):
                if file not in files:
                    files[file] = ["\n".join(self._imports(file, task))]
                code = "\n\n".join(self._code(self.sources[file], each, task) for each in members)
                files[file].append(f"class {owner}:\n{textwrap.indent(code, '    ')}" if owner else code)
            blocks = ["\n\n".join([f"# {name}", *filter(None, code)]) for name, code in files.items()]
            if blocks:
                parts.append("\n".join([_sentence(task), "", _block(task, "\n\n".join(blocks)), ""]))
        return "\n".join(parts)

    def _extended(self, task: Task) -> Iterator[tuple[str, str, list[Function]]]:
        """The functions that a task adds something to: by file, and by class, "" without one."""
        listed = {each.symbol for each in growths_of(task)}
        for file, source in self.sources.items():
            if not listed & source.task_of.keys() and f"From task {task.id} on:" not in source.text:
                continue
            functions = [
                function
                for name, function in source.functions.items()
                if function.is_public and source.task_of.get(name) != task
                if name in listed or task.id in dict(_additions(function))
            ]
            for owner, members in itertools.groupby(functions, key=lambda each: each.name.rpartition(".")[0]):
                yield file, owner, list(members)

    def _is_there(self, task: Task) -> IsThere:
        """Whether something is there when a task is done."""
        order = [each.id for each in self.course.tasks]
        return lambda id_: order.index(id_) <= order.index(task.id)

    def _imports(self, file: str, task: Task) -> Iterator[str]:
        """The imports that the new types need, and that the file of the starter does not have."""
        source, is_there = self.sources[file], self._is_there(task)
        used: set[str] = set()
        for growth in growths_of(task):
            if growth.symbol in source.functions:
                missing = changes(growth.symbol, self.grown, is_there)
                node = source.functions[growth.symbol].node
                heads = {each.name: each.written for each in parameters(source.text, node, missing)}
                used |= set(re.findall(r"\w+", heads[growth.parameter]))
        starter = starter_source(in_starter(source.text, self.grown), source.task_ids())
        used -= {alias.name for each in _import_nodes(starter) for alias in each.names}
        # What an earlier task has brought is there.
        before = as_of(source.text, self.grown, lambda id_: is_there(id_) and id_ != task.id)
        functions = [each for each in Source(before).functions.values() if each.is_public]
        known = [each.written for function in functions for each in parameters(before, function.node)]
        used -= set(re.findall(r"\w+", " ".join(known)))
        for each in _import_nodes(source.text):
            if names := [alias for alias in each.names if alias.name in used]:
                yield from import_lines(each, names)

    def _code(self, source: Source, function: Function, task: Task) -> str:
        missing = changes(function.name, self.grown, self._is_there(task))
        mine = {each.parameter: each for each in growths_of(task) if each.symbol == function.name}
        head = _marked(source, function, missing, mine)
        text = dict(_additions(function)).get(task.id, [])
        if not text:
            return "\n".join([*head, "    ..."])
        if len(text) == 1:
            return "\n".join([*head, f'    """{text[0]}"""'])
        return "\n".join([*head, f'    """{text[0]}', *(f"    {line}" for line in text[1:]), '    """'])


def _sentence(task: Task) -> str:
    says = f"Task {task.id} extends functions of earlier days"
    if task.adds or task.widens:
        return f"{says}. Marked: what is new in their signatures, and what their docstrings say of it:"
    return f"{says}. Their signatures stay, but they do more:"


def _block(task: Task, code: str) -> str:
    """Code as a fenced block; a long one is folded."""
    block, lines = f"```python\n{code}\n```", code.count("\n") + 1
    if lines <= _MOST_LINES_OPEN:
        return block
    return f"<details><summary>What task {task.id} extends, {lines} lines</summary>\n\n{block}\n\n</details>"


def _import_nodes(text: str) -> list[ast.ImportFrom]:
    return [node for node in ast.parse(text).body if isinstance(node, ast.ImportFrom)]


def _marked(
    source: Source, function: Function, missing: Mapping[str, Change], mine: Mapping[str, Growth]
) -> list[str]:
    """The head of a function; when the task changes it, on a line for each parameter."""
    node = function.node
    if not mine:
        return textwrap.dedent("\n".join(head_lines(source.text, node, missing))).splitlines()
    lines = [f"def {node.name}("]
    for each in parameters(source.text, node, missing):
        growth = mine.get(each.name)
        was = "" if growth is None else "  # new" if growth.before is None else f"  # was {growth.before}"
        lines.append(f"    {each.written},{was}")
    return [*lines, f"){returned(source.text, node)}:"]


def _additions(function: Function) -> Iterator[tuple[str, list[str]]]:
    return additions(ast.get_docstring(function.node) or "")
