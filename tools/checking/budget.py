"""The line budget: of a file, of a function, and of each part of the project in `budget.toml`."""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tiny_llm_lab.course.source import FunctionNode, code_lines, docstring_lines, documentable

MAX_FILE_LINES = 300
MAX_FUNCTION_LINES = 40
_BUDGET = "budget.toml"
_SLACK = 0.01  # if a part shrank by more than this, its budget falls
_SUFFIXES = {".py", ".cpp", ".h", ".metal"}


@dataclass(frozen=True)
class Part:
    """A row of budget.toml: the lines of Python code that some folders have, and the most they may have."""

    folders: list[str]
    lines: int
    ceiling: int


def over_budget(root: Path) -> Iterator[str]:
    """What is too long below `root`, and parts that have not as many lines as budget.toml says.

    A file belongs to the part that names the innermost folder above it. `above` of budget.toml names parts
    that may have more lines than their ceiling, and `long` files of more than MAX_FILE_LINES.
    """
    budget = tomllib.loads((root / _BUDGET).read_text(encoding="utf-8"))
    parts = {name: Part(**row) for name, row in budget["parts"].items()}
    owners = {folder: name for name, part in parts.items() for folder in part.folders}
    still_long: dict[str, int] = budget.get("long", {})
    totals = dict.fromkeys(parts, 0)
    for path in sorted({file for folder in owners for file in (root / folder).rglob("*")}):
        if path.suffix in _SUFFIXES:
            shown = path.relative_to(root).as_posix()
            text = path.read_text(encoding="utf-8")
            num_lines = code_lines(text, path.suffix)
            folder = max((each for each in owners if shown.startswith(f"{each}/")), key=len)
            totals[owners[folder]] += num_lines if path.suffix == ".py" else 0
            yield from _too_long(text, shown, num_lines, still_long.pop(shown, MAX_FILE_LINES))
    yield from (f"{name} does not exist: remove it from {_BUDGET}" for name in still_long)
    for name, part in parts.items():
        yield from _unlike(name, totals[name], part, name in budget.get("above", ()))


def _unlike(name: str, total: int, part: Part, may_be_above: bool) -> Iterator[str]:
    if total > part.lines:
        yield f"{name}: {total} lines of code, budget {part.lines}: cut, or raise it below its ceiling"
    if total < part.lines * (1 - _SLACK):
        yield f"{name}: {total} lines of code, budget {part.lines}: lower it in {_BUDGET}"
    if part.lines > part.ceiling and not may_be_above:
        yield f"{name}: a budget of {part.lines} is above its ceiling, {part.ceiling}: cut"
    if part.lines <= part.ceiling and may_be_above:
        yield f"{name}: it is below its ceiling: remove it from `above` in {_BUDGET}"


def _too_long(text: str, shown: str, num_lines: int, most: int) -> Iterator[str]:
    if num_lines > most:
        yield f"{shown}: {num_lines} lines of code, more than {most}: split it by topic"
    if num_lines <= MAX_FILE_LINES < most:
        yield f"{shown}: {num_lines} lines of code: remove it from the long files in {_BUDGET}"
    for node in documentable(text) if shown.endswith(".py") else ():
        if isinstance(node, FunctionNode):
            length = (node.end_lineno or node.lineno) - node.lineno + 1 - len(docstring_lines(node))
            if length > MAX_FUNCTION_LINES:
                yield (
                    f"{shown}:{node.lineno}: {node.name} has {length} lines, more than "
                    f"{MAX_FUNCTION_LINES}: split it"
                )
