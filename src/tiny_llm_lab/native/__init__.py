"""The C++ kernels of a package: compiled on first use, checked once, and then operators of MLX.

`kernels(__package__)` is all that a solution calls. It is None where the kernels cannot or must not run: on a
GPU, without a working C++ compiler or a cache to write to (said once, in one line), or with
TINY_LLM_KERNELS=off. The process's state is one object, `runtime.RUNTIME`, whose methods are named here.
"""

from tiny_llm_lab.native.ops import KernelOps
from tiny_llm_lab.native.runtime import RUNTIME
from tiny_llm_lab.native.settings import THREADS_VARIABLE, VARIABLE

__all__ = [
    "THREADS_VARIABLE",
    "VARIABLE",
    "KernelOps",
    "binding",
    "can_run",
    "kernels",
    "load",
    "set_enabled",
    "set_num_threads",
    "supports_packing",
]

kernels = RUNTIME.kernels
can_run = RUNTIME.can_run
set_enabled = RUNTIME.set_enabled
set_num_threads = RUNTIME.set_num_threads
binding = RUNTIME.binding
load = RUNTIME.load


def supports_packing(bits: int, group_size: int, mode: str = "affine") -> bool:
    """Whether the kernels read weights that are packed so; the other widths are rare."""
    return mode == "affine" and bits in (4, 8) and group_size in (32, 64, 128)
