"""Calls that pass what a later task adds to a simulated learner's functions, which lack it at that point."""

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, ParamSpec, TypeVar

from tiny_llm_lab.runtime.task_names import is_private

P = ParamSpec("P")
R = TypeVar("R")


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
