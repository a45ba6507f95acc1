"""Compiling all copies of the kernels at once, before several processes want the same one."""

import importlib.util
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tiny_llm_lab.native.build import NoCompilerError, binding_library, build, kernel_library
from tiny_llm_lab.native.isa import available


def precompile(package: str) -> None:
    """Compile the kernels of `package` for every instruction set of this machine.

    Does nothing without kernels or without a C++ compiler. Raises CompileError.
    """
    spec = importlib.util.find_spec(package)
    folder = Path(spec.origin).parent / "kernels" if spec and spec.origin else None
    if folder is None or not folder.is_dir():
        return
    try:
        libraries = [*(kernel_library(folder, isa) for isa in available()), binding_library()]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(build, libraries))
    except NoCompilerError:
        return  # the tests that need them say it
