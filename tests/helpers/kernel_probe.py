"""Functions inside a package's C++ kernels, called alone.

A copy of a kernel file, with kernel_probe_<name>.cpp behind it, is compiled by the course's own builder.
"""

import ctypes
import importlib.util
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.native.compiling import isa
from tiny_llm_lab.runtime.native.compiling.build import CPP, CompileError, build, kernel_library


class Compiled:
    """Something compiled on first use. What the compiler says is raised at every use, not asked again."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._made: Any = None
        self._error: CompileError | None = None

    def __getattr__(self, name: str) -> Any:
        if self._error is not None:
            raise self._error
        if self._made is None:
            try:
                self._made = self._make()
            except CompileError as error:
                self._error = error
                raise
        return getattr(self._made, name)


class Evaluated:
    """Operators whose results are computed at once: `mx.eval` passes a kernel's error on, NumPy does not."""

    def __init__(self, operators: Any) -> None:
        self._operators = operators

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, getattr(self._operators, name))

    def _call(self, operator: Callable[..., Any], *args: Any) -> Any:
        made = operator(*args)
        try:
            mx.eval(made)
        except RuntimeError:
            mx.synchronize()
            native.binding().settle()
            raise
        return made


class Probe:
    """A compiled probe. Its functions return what they have thrown as text, which becomes a RuntimeError."""

    def __init__(self, path: Path) -> None:
        self._library = ctypes.CDLL(str(path))

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, name)

    def _call(self, name: str, *args: Any) -> None:
        function = getattr(self._library, name)
        function.restype = ctypes.c_char_p
        said = function(*map(_as_c, args))
        if said is not None:
            raise RuntimeError(said.decode())


@cache
def probe_of(package: str, name: str) -> Probe:
    """The probe kernel_probe_<name>.cpp behind `package`'s kernels/<name>.cpp."""
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "kernels"
    behind = Path(__file__).with_name(f"kernel_probe_{name}.cpp").read_text("utf-8")
    with tempfile.TemporaryDirectory(prefix="tiny-llm-") as scratch:
        for header in folder.glob("*.h"):
            shutil.copy(header, scratch)
        own = (folder / f"{name}.cpp").read_text("utf-8")
        # Lets the compiler name the learner's file, not this copy.
        named = f'#line 1 "{folder / name}.cpp"\n{own}\n#line 1 "kernel_probe_{name}.cpp"\n{behind}'
        (Path(scratch) / f"{name}.cpp").write_text(named, "utf-8")
        library = kernel_library(Path(scratch), isa.selected_isa(), ("-O1",))  # half the time of -O3
        (mine,) = (source for source in library.sources if source[0].stem == name)
        sources = (mine, (CPP / "thread_pool.cpp", mine[1]))
        alone = replace(library, name=f"probe-{name}.so", sources=sources, what=f"{name}.cpp alone")
        return Probe(build(alone))


def _as_c(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        assert value.flags.c_contiguous
        return ctypes.c_void_p(value.ctypes.data)
    return ctypes.c_float(value) if isinstance(value, float) else ctypes.c_int64(value)
