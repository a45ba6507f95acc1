"""Small changes of a task's functions in the reference, each with what it does in words."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from tiny_llm_lab.course.code_tree import code_tree
from tiny_llm_lab.course.exercises import reference_sources
from tiny_llm_lab.course.grading.screening import Variant
from tiny_llm_lab.course.manifest import Course, Task
from tiny_llm_lab.course.source import Function, Source
from tiny_llm_lab.course.toml_rows import read_toml

_LONGEST: Final = 30  # characters of code in a sentence


def variants(course: Course, task: Task, tier: str, is_known: Callable[[str], bool]) -> Iterator[Variant]:
    """Those of a task's functions and their helpers, then of the functions that it extends.

    The kinds of `tests/mistake_kinds.toml` in its list `tier` say how code is changed. `is_known` admits the
    names that may be told.
    """
    data, sources = read_toml(course.root / "tests" / "mistake_kinds.toml"), reference_sources(course)
    kinds = [kind | {"find": _expanded(kind["find"], data["parts"])} for kind in data.get(tier, [])]
    found = [(file, name, owner) for file, each in sources.items() for name, owner in each.task_of.items()]
    own = [(file, name) for file, name, owner in found if owner == task]
    for file, name in [*own, *((file, name) for file, name, _ in found if name in task.grows)]:
        source = sources[file]
        for part in (name, *(each for each in source.helpers(name) if each in source.functions)):
            place = f"in `{name}`" if part == name else f"in what `{name}` calls"
            for says, text in _changes(source, part, kinds, is_known):
                yield Variant(f"{says}, {place}", file, part, text)


def _changes(
    source: Source, name: str, kinds: Iterable[dict[str, Any]], is_known: Callable[[str], bool]
) -> Iterator[tuple[str, str]]:
    """What each change of a function does, and the whole source after it."""
    function, tree = source.functions[name], code_tree(source.text)
    body = [each for each in function.node.body if each.lineno >= function.first_body_line]
    # As it is written here, each statement is a line, and has no comments.
    code = "".join(f"{ast.unparse(each)}\n" for each in body)
    for kind in kinds:
        find = re.compile(kind["find"], re.M)
        others = _values(function) if "<other>" in kind["swap"] else [""]
        match = find.search(code)
        while match:
            for other in others:
                swap = match.expand(kind["swap"].replace("<other>", other))
                told = [_told(each, is_known) for each in (*match.groups(""), other)]
                new = f"{code[: match.start()]}{swap}{code[match.end() :]}"
                yield kind["says"].format("", *told), tree.with_statements(tree.span(body[0], body[-1]), new)
            match = find.search(code, match.start() + 1)


def _values(function: Function) -> list[str]:
    """What a mistaken name in a function could be: its variables and parameters, attributes, 0 and 1."""
    used = [each for each in ast.walk(function.node) if isinstance(each, ast.Name | ast.Attribute)]
    called = {ast.unparse(each.func) for each in ast.walk(function.node) if isinstance(each, ast.Call)}
    own = {each for each in map(ast.unparse, used) if re.fullmatch(r"self\.\w+", each)}
    own |= {each.id for each in used if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    return sorted({*own, *function.parameter_names, "0", "1"} - called - {"self", "cls"})


def _expanded(pattern: str, parts: Mapping[str, str]) -> str:
    """`pattern` with the part in place of each <name>."""
    return re.sub(r"<(\w+)>", lambda name: _expanded(parts[name[1]], parts), pattern)


def _told(code: str, is_known: Callable[[str], bool]) -> str:
    """Code in a sentence: "a value" where it is long, or has a name that may not be told."""
    is_short = len(code) <= _LONGEST and "\n" not in code
    return f"`{code}`" if is_short and all(map(is_known, re.findall(r"[A-Za-z_]\w*", code))) else "a value"
