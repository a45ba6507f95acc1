"""Checks that a task's tests do not pass a later task's parameter, which a learner lacks at that point."""

import functools
import inspect
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from tiny_llm_lab.course.growth import Growth
from tiny_llm_lab.runtime.task_names import is_private

P = ParamSpec("P")
R = TypeVar("R")
_MODULE = f"{__name__} import refusing as _refusing"


def with_early_calls(source: str, functions: Collection[str], grown: Sequence[Growth], tests: Path) -> str:
    """A file of the reference whose functions do without the parameters in `grown`, as `refusing` says."""
    lines = []
    for name in functions:
        later = {each.parameter: each.task for each in grown if each.symbol == name and each.before is None}
        if later:
            lines.append(f"{name} = _refusing({name}, {later!r}, {str(tests)!r})")
    return "\n".join([source, f"from {_MODULE}", *lines, ""]) if lines else source


def refusing(function: Callable[P, R], later: Mapping[str, str], tests: str) -> Callable[P, R]:
    """`function`, in which a parameter of `later`, with its task, is unwritten for callers below `tests`.

    For callers in other files it is ignored, as in a learner's function that a given answer calls. The
    answers of one file were written together, or given together.
    """
    signature = inspect.signature(function)

    @functools.wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        caller = sys._getframe(1)
        is_tests = Path(caller.f_code.co_filename).is_relative_to(tests)
        if not is_tests and caller.f_globals.get("__name__") == function.__module__:
            return function(*args, **kwargs)
        given = signature.bind(*args, **kwargs)
        for name in later.keys() & given.arguments.keys():
            # A test that has put itself around the function hands on what the solution passes.
            if is_tests and _package(caller.f_back) != function.__module__.partition(".")[0]:
                raise NotImplementedError(f"task {later[name]}")
            del given.arguments[name]
        return function(*given.args, **given.kwargs)

    return called


def early(later: Mapping[str, int]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator of a simulated learner's function, which lacks the parameters `later`, with their places.

    The learner's own code does not pass them: its modules list their own functions in `_OWN`. Code that was
    given does, as it was written for functions that have them.
    """

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def called(*args: P.args, **kwargs: P.kwargs) -> R:
            caller = sys._getframe(1)
            # A test that has put itself around the function hands on what the solution passes.
            is_tests = _package(caller) != function.__module__.partition(".")[0]
            if _is_own(caller.f_back if is_tests else caller):
                lacking = later.keys() - inspect.signature(function).parameters.keys()
                places = {later[name] for name in lacking}
                kept: Any = [arg for i, arg in enumerate(args) if i not in places]
                named: Any = {key: arg for key, arg in kwargs.items() if key not in lacking}
                return function(*kept, **named)
            return function(*args, **kwargs)

        return called

    return decorate


def _is_own(frame: FrameType | None) -> bool:
    """Whether this is a function of the simulated learner, or a helper of one."""
    own = () if frame is None else frame.f_globals.get("_OWN", ())
    name = "" if frame is None else frame.f_code.co_qualname.partition(".<")[0]
    return bool(own) and (name in own or is_private(name.rpartition(".")[2]))


def _package(frame: FrameType | None) -> str:
    name = "" if frame is None else str(frame.f_globals.get("__name__"))
    return name.partition(".")[0]
