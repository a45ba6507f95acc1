"""Compiling all copies of the kernels at once, before several processes want the same one."""

import contextlib
import importlib.util
from pathlib import Path

from tiny_llm_lab.runtime.native.compiling.build import binding_library, build_all, kernel_library
from tiny_llm_lab.runtime.native.compiling.isa import available
from tiny_llm_lab.types import UserError


def precompile(package: str) -> None:
    """Compile the kernels of `package` for every instruction set of this machine.

    Does nothing without kernels. What cannot be compiled is left for the tests that need it: they say why.
    """
    spec = importlib.util.find_spec(package)
    folder = Path(spec.origin).parent / "kernels" if spec and spec.origin else None
    if folder is None or not folder.is_dir():
        return
    with contextlib.suppress(UserError):
        build_all([*(kernel_library(folder, isa) for isa in available()), binding_library()])
