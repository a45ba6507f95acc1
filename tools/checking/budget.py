"""The line budget: of a file, of a function, and of each part of the project in `budget.toml`."""

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from tiny_llm_lab.course.source import FunctionNode, code_lines, docstring_lines, documentable

MAX_FILE_LINES = 200
MAX_FUNCTION_LINES = 40
_BUDGET = "budget.toml"
_SLACK = 0.01  # if a part shrank by more than this, its budget falls
_SUFFIXES = {".py", ".cpp", ".h", ".metal"}


def over_budget(root: Path) -> Iterator[str]:
    """What is too long below `root`, and parts whose budget is not what budget.toml says.

    A part of budget.toml has `folders`, or one `folder`, the `lines` of code that it may have, and a `reason`
    for them. A folder that another part names as well, such as tools/tests, counts there alone.
    `long` names files that may have more than MAX_FILE_LINES.
    """
    parts = tomllib.loads((root / _BUDGET).read_text(encoding="utf-8"))
    still_long: dict[str, int] = parts.pop("long", {})
    folders = {name: part.get("folders") or [part["folder"]] for name, part in parts.items()}
    every = [folder for each in folders.values() for folder in each]
    for name, part in parts.items():
        total = 0
        for path in _files(root, folders[name], every):
            shown, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
            num_lines = code_lines(text, path.suffix)
            total += num_lines if path.suffix == ".py" else 0
            yield from _too_long(text, shown, num_lines, still_long.pop(shown, MAX_FILE_LINES))
        if total > part["lines"]:
            yield f"{name}: {total} lines of code, budget {part['lines']}: cut, or raise it with a reason"
        if total < part["lines"] * (1 - _SLACK):
            yield f"{name}: {total} lines of code, budget {part['lines']}: lower it in {_BUDGET}"
    yield from (f"{name} does not exist: remove it from {_BUDGET}" for name in still_long)


def _files(root: Path, own: Sequence[str], every: Sequence[str]) -> Iterator[Path]:
    """The files of code of folders, but for those in a folder that somebody else names."""
    others = [root / folder for folder in every if folder not in own]
    for folder in own:
        nested = [other for other in others if other.is_relative_to(root / folder)]
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in _SUFFIXES and not any(path.is_relative_to(other) for other in nested):
                yield path


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
