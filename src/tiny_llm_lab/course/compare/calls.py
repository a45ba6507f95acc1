"""Records the arguments and results of every public function of a package."""

import contextlib
import functools
import importlib
import inspect
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType, GeneratorType, ModuleType
from typing import Final

from tiny_llm_lab.course.compare.values import Value, kept, state_of
from tiny_llm_lab.runtime.task_names import is_private, modules

# Calls of one test. A test with many requests makes more, but its first calls show the same differences.
_MOST_CALLS: Final = 1000


@dataclass
class Call:
    """One call of a public function, with the calls made inside it."""

    name: str  # as in course.toml: "softmax", "Request.try_prefill"
    place: str  # of its object in that of the caller, such as ".layers[2]"; "" when it is not found there
    code: str  # FILE:LINE
    given: dict[str, Value]
    made: dict[str, Value] = field(default_factory=dict)  # what its object was made with
    result: Value = None
    state: dict[str, Value] = field(default_factory=dict)  # of its object, afterwards
    error: str | None = None
    calls: list["Call"] = field(default_factory=list)


class Recorder:
    """Makes the functions of a package record their calls while `recording` lasts."""

    def __init__(self, package: str) -> None:
        self._package = package
        self._open: list[tuple[Call, object]] = []  # with the object of each method
        self._thread = threading.current_thread()
        self._roots: list[Call] = []
        self._num_calls = 0
        self._made: dict[int, tuple[weakref.ref[object], dict[str, Value]]] = {}

    def take(self) -> list[Call]:
        """The calls from outside of the package since the last `take`, in order."""
        result, self._roots, self._open = self._roots, [], []
        self._num_calls = 0
        return result

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Put a recording function in the place of each public one; afterwards all is as it was."""
        loaded = _loaded(self._package)
        undo: list[tuple[object, str, object]] = []
        swapped = {
            member: self._recorded(member.__name__, member)
            for module in loaded
            for member in vars(module).values()
            if isinstance(member, FunctionType) and self._is_own(member)
        }
        for module in loaded:
            for name, member in list(vars(module).items()):
                if isinstance(member, FunctionType) and member in swapped:
                    undo.append((module, name, member))
                    setattr(module, name, swapped[member])
                elif isinstance(member, type) and member.__module__ == module.__name__:
                    undo += self._swap_methods(member)
        try:
            yield
        finally:
            for owner, name, member in reversed(undo):
                setattr(owner, name, member)

    def _swap_methods(self, owner: type) -> list[tuple[object, str, object]]:
        undo: list[tuple[object, str, object]] = []
        for name, member in list(vars(owner).items()):
            function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
            if not isinstance(function, FunctionType) or not self._is_own(function):
                continue
            recorded: object = self._recorded(f"{owner.__name__}.{name}", function)
            if isinstance(member, staticmethod | classmethod):
                recorded = type(member)(recorded)  # type: ignore[arg-type]
            undo.append((owner, name, member))
            setattr(owner, name, recorded)
        return undo

    def _is_own(self, function: FunctionType) -> bool:
        # The code as well: what `dataclass` writes for a class is no code of the package.
        folder = str(Path(str(importlib.import_module(self._package).__file__)).parent)
        is_here = function.__module__.split(".")[0] == self._package.split(".")[0]
        return (
            is_here and function.__code__.co_filename.startswith(folder) and not is_private(function.__name__)
        )

    def _recorded(self, name: str, function: FunctionType) -> Callable[..., object]:
        signature = inspect.signature(function)
        path, line = Path(function.__code__.co_filename), function.__code__.co_firstlineno

        @functools.wraps(function)
        def record(*args: object, **kwargs: object) -> object:
            if threading.current_thread() is not self._thread or self._num_calls >= _MOST_CALLS:
                return function(*args, **kwargs)
            owner = args[0] if args and "." in name else None
            given = _named(signature, args, kwargs)
            call = Call(name, self._place(owner), f"{path}:{line}", given, self._made_with(owner))
            if name.endswith(".__init__"):
                self._remember(owner, given)
            self._begin(call, owner)
            try:
                result = function(*args, **kwargs)
            except BaseException as error:
                call.error = f"{type(error).__name__}: {error}".partition("\n")[0]
                raise
            finally:
                self._end(call, owner)
            if isinstance(result, GeneratorType):
                return self._followed(call, owner, result)
            call.result = kept(result)
            return result

        return record

    def _followed(
        self, call: Call, owner: object, generator: Generator[object, object, object]
    ) -> Iterator[object]:
        """What a generator yields, noted as the elements of its result; its calls happen while it runs."""
        results: list[Value] = []
        call.result = ()
        while True:
            self._open.append((call, owner))
            try:
                item = next(generator)
            except StopIteration:
                return
            except BaseException as error:
                call.error = f"{type(error).__name__}: {error}".partition("\n")[0]
                raise
            finally:
                self._open.pop()
            results.append(kept(item))
            call.result = tuple(results)
            yield item

    def _begin(self, call: Call, owner: object) -> None:
        self._num_calls += 1
        (self._open[-1][0].calls if self._open else self._roots).append(call)
        self._open.append((call, owner))

    def _end(self, call: Call, owner: object) -> None:
        self._open.pop()
        call.state = state_of(owner)

    def _remember(self, owner: object, given: dict[str, Value]) -> None:
        with contextlib.suppress(TypeError):  # a class with slots may take no weak references
            self._made[id(owner)] = weakref.ref(owner), given

    def _made_with(self, owner: object) -> dict[str, Value]:
        result = self._made.get(id(owner))
        return result[1] if result and result[0]() is owner else {}

    def _place(self, owner: object) -> str:
        """Where the caller's object holds this one: `.norm`, `.layers[2]`."""
        caller = self._open[-1][1] if self._open else None
        for name, value in getattr(caller, "__dict__", {}).items():
            if value is owner and owner is not None:
                return f".{name}"
            if isinstance(value, list | tuple) and any(each is owner for each in value):
                return f".{name}[{[each is owner for each in value].index(True)}]"
        return ""


def _named(
    signature: inspect.Signature, args: tuple[object, ...], kwargs: dict[str, object]
) -> dict[str, Value]:
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError:  # the call itself will raise the error
        return {}
    return {name: kept(value) for name, value in bound.arguments.items() if name != "self"}


def _loaded(package: str) -> list[ModuleType]:
    """The package and all of its modules, imported."""
    root = importlib.import_module(package)
    names = modules(Path(str(root.__file__)).parent)
    dotted = (
        name.removesuffix(".py").removesuffix("__init__").replace("/", ".").strip(".") for name in names
    )
    return [importlib.import_module(f"{package}.{name}" if name else package) for name in dotted]
