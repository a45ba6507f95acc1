"""Telling a parameter that a task adds, and that a learner has not added yet, from a wrong call."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from tiny_llm_lab.course.growth import Growth
from tiny_llm_lab.course.source import Function, Source
from tiny_llm_lab.runtime.console.todo import Todo, causes_of, shown
from tiny_llm_lab.runtime.task_names import modules

_NAMED = re.compile(r"(?P<symbol>[\w.]+)\(\) got an unexpected keyword argument '(?P<parameter>\w+)'")
_BY_PLACE = re.compile(r"(?P<symbol>[\w.]+)\(\) takes (?:from \d+ to )?\d+ positional arguments? but \d+ ")


class MissingParameter(Todo):
    """A function that is written, and that a call gave what a later task adds to it."""


def find_missing(error: BaseException, grown: Sequence[Growth], package: Path, root: Path) -> Todo | None:
    """The task whose parameter a call found missing in `package`, if that is behind an exception.

    None for a parameter that no task adds, and for one that the function has.
    """
    for each in causes_of(error):
        match = _match(str(each)) if isinstance(each, TypeError) else None
        if match is None:
            continue
        named = match.groupdict().get("parameter")
        for growth in grown:
            is_meant = growth.symbol == match["symbol"] and named in (None, growth.parameter)
            if growth.before is None and is_meant:
                for path, function in _functions(package, growth.symbol):
                    # By place the first parameter that is missing is the one that the call has too many.
                    if growth.parameter not in function.parameter_names:
                        return _todo(growth, function, shown(path, root))
    return None


def _todo(growth: Growth, function: Function, file: str) -> Todo:
    if (stub := function.stub_of) is not None:  # the function comes before what is added to it
        return Todo(stub, f"{file}:{function.first_body_line} {growth.symbol}")
    where = f"{file}:{function.node.lineno} {growth.symbol}"
    return MissingParameter(growth.task, f"the parameter `{growth.parameter}` of {where}")


def _match(message: str) -> re.Match[str] | None:
    return _NAMED.match(message) or _BY_PLACE.match(message)


def _functions(package: Path, symbol: str) -> Iterator[tuple[Path, Function]]:
    for path in modules(package).values():
        try:
            function = Source(path.read_text(encoding="utf-8")).functions.get(symbol)
        except SyntaxError:
            continue
        if function is not None:
            yield path, function
