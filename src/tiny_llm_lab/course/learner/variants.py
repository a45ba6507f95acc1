"""Small changes of a task's functions in the reference, each with what it does in words."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from tiny_llm_lab.course.code_tree import code_tree
from tiny_llm_lab.course.exercises import reference_sources
from tiny_llm_lab.course.grading.screening import Variant
from tiny_llm_lab.course.manifest import Course, Task
from tiny_llm_lab.course.source import Source
from tiny_llm_lab.course.toml_rows import read_toml

_LONGEST: Final = 30  # characters of code in a sentence


def variants(course: Course, task: Task, is_known: Callable[[str], bool]) -> Iterator[Variant]:
    """Those of a task's functions and their helpers, then of the functions that it extends.

    `tests/mistake_kinds.toml` says how code is changed. `is_known` admits the names that may be told.
    """
    kinds, sources = read_toml(course.root / "tests" / "mistake_kinds.toml"), reference_sources(course)
    found = [(file, name, owner) for file, each in sources.items() for name, owner in each.task_of.items()]
    own = [(file, name) for file, name, owner in found if owner == task]
    for file, name in [*own, *((file, name) for file, name, _ in found if name in task.grows)]:
        source = sources[file]
        for part in (name, *(each for each in source.helpers(name) if each in source.functions)):
            place = f"in `{name}`" if part == name else f"in what `{name}` calls"
            for says, text in _changes(source, part, kinds, is_known):
                yield Variant(f"{says}, {place}", file, part, text)


def _changes(
    source: Source, name: str, kinds: dict[str, Any], is_known: Callable[[str], bool]
) -> Iterator[tuple[str, str]]:
    """What each change of a function does, and the whole source after it."""
    function, tree = source.functions[name], code_tree(source.text)
    body = [each for each in function.node.body if each.lineno >= function.first_body_line]
    # As it is written here, each statement is a line, and has no comments.
    code = "".join(f"{ast.unparse(each)}\n" for each in body)
    for kind in kinds["kind"]:
        find = re.compile(_expanded(kind["find"], kinds["parts"]), re.M)
        match = find.search(code)
        while match:
            new = f"{code[: match.start()]}{match.expand(kind['swap'])}{code[match.end() :]}"
            told = [_told(each, is_known) for each in match.groups("")]
            yield kind["says"].format("", *told), tree.with_statements(tree.span(body[0], body[-1]), new)
            match = find.search(code, match.start() + 1)


def _expanded(pattern: str, parts: Mapping[str, str]) -> str:
    """`pattern` with the part in place of each <name>."""
    return re.sub(r"<(\w+)>", lambda name: _expanded(parts[name[1]], parts), pattern)


def _told(code: str, is_known: Callable[[str], bool]) -> str:
    """Code in a sentence: "a value" where it is long, or has a name that may not be told."""
    is_short = len(code) <= _LONGEST and "\n" not in code
    return f"`{code}`" if is_short and all(map(is_known, re.findall(r"[A-Za-z_]\w*", code))) else "a value"
