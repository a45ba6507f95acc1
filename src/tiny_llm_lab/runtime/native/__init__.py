"""The operators that models run on: C++, compiled on first use and checked once, or MLX's fused ones.

`kernels(__package__, weights)` is what a solution calls, once for each model that it builds.
Its own functions as operators are a `ComposedOps`. The state of the process is one object, `runtime.RUNTIME`,
whose methods are named here.
"""

from tiny_llm_lab.runtime.native.cpp_ops import supports_packing as supports_packing
from tiny_llm_lab.runtime.native.mlx_ops import changed_rows as changed_rows
from tiny_llm_lab.runtime.native.ops import ComposedOps as ComposedOps
from tiny_llm_lab.runtime.native.runtime import RUNTIME
from tiny_llm_lab.runtime.native.runtime import is_unwritten as is_unwritten
from tiny_llm_lab.runtime.native.settings import THREADS_VARIABLE as THREADS_VARIABLE
from tiny_llm_lab.runtime.native.settings import VARIABLE as VARIABLE

kernels = RUNTIME.kernels
can_run = RUNTIME.can_run
laid_out = RUNTIME.laid_out
in_blocks = RUNTIME.in_blocks
delta_kernel = RUNTIME.delta_kernel
set_num_threads = RUNTIME.set_num_threads
binding = RUNTIME.binding
load = RUNTIME.load
verdicts = RUNTIME.verdicts
