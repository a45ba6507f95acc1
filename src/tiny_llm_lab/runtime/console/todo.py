"""Telling unwritten code from wrong code: the `task X` error of a stub, wherever it surfaces."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

WITH_REF: Final = ", or run with --solution ref"
_METAL = re.compile(r'error: (?:#error )?"task (\d+\.\d+\.\d+)"')


@dataclass(frozen=True)
class Todo:
    """An unwritten task that a test ran into, and where to write it.

    `is_parameter`: the function is written, and a call gave it what this task adds to it.
    """

    task: str
    where: str
    is_parameter: bool = False

    def __str__(self) -> str:
        return f"TODO {self.task}: write {self.where}"


def find_todo(error: BaseException, root: Path, kernels: Path | None = None) -> Todo | None:
    """The stub behind an exception, if there is one; paths are relative to `root`.

    `kernels` is the folder where the place of a cut C++ or Metal body is looked up.
    """
    for each in causes_of(error):
        # A cut C++ body can only throw what Python sees as a RuntimeError; NotImplementedError is one too.
        match = re.fullmatch(r"task (\d+\.\d+\.\d+)", str(each)) if isinstance(each, RuntimeError) else None
        if match and isinstance(each, NotImplementedError):
            return Todo(match[1], _place(each.__traceback__, root))
        if match:
            return Todo(match[1], _kernel_place(match[1], root, kernels, ".cpp", ".h"))
        # A cut Metal body shows up in its compiler's message.
        match = _METAL.search(str(each)) if isinstance(each, RuntimeError) else None
        if match:
            return Todo(match[1], _kernel_place(match[1], root, kernels, ".metal"))
    return None


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """An exception, its causes, and the members of its group."""
    pending, seen = [error], set[int]()
    while pending:
        each = pending.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        # hypothesis raises a group when a property fails in several ways.
        pending.extend(each.exceptions if isinstance(each, BaseExceptionGroup) else ())
        pending.extend(cause for cause in (each.__cause__, each.__context__) if cause is not None)


def _kernel_place(task: str, root: Path, kernels: Path | None, *suffixes: str) -> str:
    """The place of the first unwritten part of a task."""
    files = (path for path in sorted(kernels.iterdir()) if path.suffix in suffixes) if kernels else ()
    for path in files:
        lines = path.read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines, 1):
            if f'"task {task}"' in line:
                return f"{shown(path, root)}:{number}"
    return f"the {suffixes[0]} file, from `BEGIN task {task}` on"


def _place(traceback: TracebackType | None, root: Path) -> str:
    if traceback is None:
        return "it"
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    code = traceback.tb_frame.f_code
    path = Path(code.co_filename)
    return f"{shown(path, root)}:{traceback.tb_lineno} {code.co_qualname}"


def shown(path: Path, root: Path) -> str:
    """A path as a learner types it."""
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()
