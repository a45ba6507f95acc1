"""The line budget: a file or a function that outgrows it is two things."""

import ast
from collections.abc import Iterator
from pathlib import Path

MAX_FILE_LINES = 250
MAX_FUNCTION_LINES = 40


def over_budget(root: Path, packages: tuple[str, ...]) -> Iterator[str]:
    """Files and functions of the packages below `root` that are too long."""
    for package in packages:
        for path in sorted((root / package).rglob("*.py")):
            yield from _too_long(path, path.relative_to(root).as_posix())


def _too_long(path: Path, shown: str) -> Iterator[str]:
    source = path.read_text(encoding="utf-8")
    num_lines = len(source.splitlines())
    if num_lines > MAX_FILE_LINES:
        yield f"{shown}: {num_lines} lines, more than {MAX_FILE_LINES}: split it by nouns"
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = _code_lines(node)
            if length > MAX_FUNCTION_LINES:
                yield f"{shown}:{node.lineno}: {node.name} has {length} lines, more than {MAX_FUNCTION_LINES}"


def _code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """From `def` to the end, without the docstring: that is the task's text, and may be long."""
    first = node.body[0]
    has_docstring = ast.get_docstring(node, clean=False) is not None
    docstring = (first.end_lineno or first.lineno) - first.lineno + 1 if has_docstring else 0
    return (node.end_lineno or node.lineno) - node.lineno + 1 - docstring
