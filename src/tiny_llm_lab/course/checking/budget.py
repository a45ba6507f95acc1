"""The line budget: a file or a function that outgrows it is two things."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

MAX_FILE_LINES = 250
MAX_FUNCTION_LINES = 40
_SUFFIXES = {".py", ".cpp", ".h", ".metal"}
# Files from before the budget counted C++ and tests, and what each may have. This list only gets shorter.
STILL_LONG = {"tests/helpers/metal_shim.h": 328}


def over_budget(
    root: Path, folders: tuple[str, ...], still_long: Mapping[str, int] = STILL_LONG
) -> Iterator[str]:
    """Files and functions in the folders below `root` that are too long, and exceptions that are none now."""
    for folder in folders:
        for path in sorted((root / folder).rglob("*")):
            if path.suffix in _SUFFIXES:
                shown = path.relative_to(root).as_posix()
                yield from _too_long(path, shown, still_long.get(shown, MAX_FILE_LINES))
    for name in still_long:
        path = root / name
        if not path.exists() or _num_lines(path) <= MAX_FILE_LINES:
            yield f"{name}: within {MAX_FILE_LINES} lines or gone: take it from the list in budget.py"


def _too_long(path: Path, shown: str, max_lines: int) -> Iterator[str]:
    num_lines = _num_lines(path)
    if num_lines > max_lines:
        yield f"{shown}: {num_lines} lines, more than {max_lines}: split it by nouns"
    if path.suffix != ".py":
        return
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = _code_lines(node)
            if length > MAX_FUNCTION_LINES:
                yield f"{shown}:{node.lineno}: {node.name} has {length} lines, more than {MAX_FUNCTION_LINES}"


def _num_lines(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def _code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From `def` to the end, without the docstring: that is the task's text, and may be long."""
    first = node.body[0]
    has_docstring = ast.get_docstring(node, clean=False) is not None
    docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if has_docstring else 0
    return (node.end_lineno or node.lineno) - node.lineno + 1 - docstring
