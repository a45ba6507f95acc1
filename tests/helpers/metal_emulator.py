"""`mx.fast.metal_kernel` for machines without Metal: the body is compiled as C++ and run thread by thread.

It shows whether a kernel computes the right numbers, and nothing else: not that Apple's compiler accepts it,
and nothing of its speed. The signature around the body is what MLX 0.32 writes ("Custom Metal Kernels" in
its documentation); `metal_shim.h` has Metal's types and functions.
"""

import ctypes
import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

_TYPE = r"(?P<type>\w+)"
_DEVICE_POINTER = re.compile(
    rf"(?P<cast>\breinterpret_cast\s*<\s*)?\b(?P<before>const\s+)?device\s+(?P<after>const\s+)?{_TYPE}\s*\*"
)
_SHARED_POINTER = re.compile(
    rf"\b(?:const\s+)?threadgroup\s+(?:const\s+)?{_TYPE}\s*\*(?=\s*(?:const\s+)?\w+\s*[=,;)])"
)
_AXES = r"(?:\s*\[[^\];]*\])*"
_SHARED = re.compile(rf"\bthreadgroup\s+{_TYPE}\s+(?P<names>\w+{_AXES}(?:\s*,\s*\w+{_AXES})*)\s*;")


def as_cpp(source: str) -> str:
    """The same source, line by line, with `metal_memory.h`'s types for `device` and `threadgroup` memory."""
    source = _DEVICE_POINTER.sub(_device_pointer, source)
    source = _SHARED_POINTER.sub(r"emulated::SharedPointer<\g<type>>", source)
    return _SHARED.sub(_shared, source)


def _device_pointer(found: re.Match[str]) -> str:
    const = "const " if found["before"] or found["after"] else ""
    cast = "static_cast<" if found["cast"] else ""
    return f"{cast}emulated::DeviceArray<{const}{found['type']}>"


def _shared(found: re.Match[str]) -> str:
    made = []
    for each in re.findall(rf"\w+{_AXES}", found["names"]):
        name, *axes = (part.strip(" ]\n") for part in each.split("["))
        if axes:
            type_ = ", ".join([found["type"], *(f"uint({size})" for size in axes)])
            made.append(f'static emulated::Shared<{type_}> {name}{{"{name}"}};')
        else:
            made.append(f'static emulated::Shared<{found["type"]}> {name}_memory{{"{name}"}};')
            made.append(f"const emulated::Element<{found['type']}> {name} = {name}_memory.only();")
    return " ".join(made)


# TINY_LLM_DEVICE=cpu leaves a GPU alone.
HAS_METAL = mx.metal.is_available() and mx.default_device() != mx.cpu
# Where a test of a kernel runs: a Mac has one case more, on its GPU.
PLACES = ["emulated", "gpu"] if HAS_METAL else ["emulated"]

_SHIM = Path(__file__).with_name("metal_shim.h")
_TYPES = {mx.float32: "float", mx.float16: "float16_t", mx.bfloat16: "bfloat16_t"}
_TYPES |= {mx.uint32: "uint32_t", mx.int32: "int32_t"}
_MAX_CONSTANT_SIZE = 8  # arrays with fewer elements are passed in the `constant` address space
_MAX_THREADS = 1024  # of a threadgroup
# What a body may mention: type, name, and the value for thread `t` of the shim.
_ATTRIBUTES = [
    ("uint", "simdgroup_index_in_threadgroup", "t.index / 32"),
    ("uint", "simdgroups_per_threadgroup", "(emulated::num_threads + 31) / 32"),
    ("uint", "thread_execution_width", "32"),
    ("uint", "thread_index_in_simdgroup", "t.lane"),
    ("uint", "thread_index_in_threadgroup", "t.index"),
    ("uint3", "thread_position_in_grid", "t.position_in_grid"),
    ("uint3", "thread_position_in_threadgroup", "t.position_in_threadgroup"),
    ("uint3", "threadgroup_position_in_grid", "t.group_in_grid"),
    ("uint3", "threads_per_grid", "{grid[0], grid[1], grid[2]}"),
    ("uint", "threads_per_simdgroup", "32"),
    ("uint3", "threads_per_threadgroup", "{group[0], group[1], group[2]}"),
]


class Emulator:
    """Stands in for MLX's Metal while a test runs; `is_on` = False sends every kernel to the real GPU."""

    def __init__(self) -> None:
        self.is_on = True
        self._real = mx.fast.metal_kernel

    def metal_kernel(
        self,
        name: str,
        input_names: Sequence[str],
        output_names: Sequence[str],
        source: str,
        header: str = "",
    ) -> Callable[..., list[mx.array]]:
        """As `mx.fast.metal_kernel`. A solution may keep what it gets: that asks `is_on` at every call."""
        arguments: dict[str, Any] = {
            "name": name,
            "input_names": input_names,
            "output_names": output_names,
            "source": source,
            "header": header,
        }
        real = self._real(**arguments) if HAS_METAL else None

        def call(**launch: Any) -> list[mx.array]:
            __tracebackhide__ = True
            return run(**arguments, **launch) if self.is_on or real is None else real(**launch)

        return call


EMULATOR = Emulator()


def install(monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Make kernels run at one of PLACES for the length of a test."""
    monkeypatch.setattr(mx.fast, "metal_kernel", EMULATOR.metal_kernel)
    monkeypatch.setattr(mx.metal, "is_available", lambda: True)
    monkeypatch.setattr(EMULATOR, "is_on", place == "emulated")


def run(
    *,
    name: str,
    input_names: Sequence[str],
    output_names: Sequence[str],
    source: str,
    header: str = "",
    inputs: Sequence[Any],
    output_shapes: Sequence[Sequence[int]],
    output_dtypes: Sequence[mx.Dtype],
    grid: tuple[int, int, int],
    threadgroup: tuple[int, int, int],
    template: Sequence[tuple[str, Any]] = (),
    verbose: bool = False,
) -> list[mx.array]:
    """Make a kernel and call it once: the arguments of both are those of MLX, named."""
    __tracebackhide__ = True
    _reject_misfits(name, (input_names, inputs), (output_names, output_shapes, output_dtypes))
    arrays = [x if isinstance(x, mx.array) else mx.array(x) for x in inputs]
    group = [min(pair) for pair in zip(threadgroup, grid, strict=True)]
    if not 0 < np.prod(group) <= _MAX_THREADS:
        raise ValueError(f"{name}: a threadgroup of {group} threads; 1 to {_MAX_THREADS} are possible")
    # All bits set is not a number in every float type: an element that no thread writes shows.
    outputs = list(zip(output_shapes, output_dtypes, strict=True))
    made = [np.full(int(np.prod(s)) * d.size, 0xFF, np.uint8) for s, d in outputs]
    memory = _Memory()
    parameters = [
        *(each for n, x in zip(input_names, arrays, strict=True) for each in _inputs(n, x, source, memory)),
        *(_outputs(n, d, out, memory) for n, d, out in zip(output_names, output_dtypes, made, strict=True)),
        *((f"{kind} {n}", value) for kind, n, value in _ATTRIBUTES if n in source),
    ]
    program = _program(as_cpp(header), as_cpp(source), template, parameters)
    if verbose:
        print(program)
    library = _loaded(program)
    if trouble := library.run(memory.pointers(), (ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*group)):
        raise RuntimeError(f"{name}: {trouble.decode()}")
    return [mx.array(out).view(d).reshape(s) for out, (s, d) in zip(made, outputs, strict=True)]


def _loaded(program: str) -> ctypes.CDLL:
    if isinstance(library := _built(program), Exception):
        raise library.with_traceback(None)
    library.run.restype = ctypes.c_char_p
    return library


def _reject_misfits(name: str, inputs: Sequence[Sequence[Any]], outputs: Sequence[Sequence[Any]]) -> None:
    for what, lists in (("input_names and inputs", inputs), ("output names, shapes and dtypes", outputs)):
        if len({len(each) for each in lists}) > 1:
            raise ValueError(f"{name}: {what} differ in length")


class _Memory:
    """The blocks of memory that a launch works on."""

    def __init__(self) -> None:
        self._blocks: list[np.ndarray] = []

    def add(self, block: np.ndarray) -> str:
        """Keep a block; what the launcher calls it."""
        self._blocks.append(block)
        return f"memory[{len(self._blocks) - 1}]"

    def pointers(self) -> ctypes.Array[ctypes.c_void_p]:
        return (ctypes.c_void_p * len(self._blocks))(*(block.ctypes.data for block in self._blocks))


def _inputs(name: str, array: mx.array, source: str, memory: _Memory) -> Iterator[tuple[str, str]]:
    """The parameters of an input, as (declaration, value): itself and what the body mentions of its shape."""
    kind = f"const {_TYPES[array.dtype]}"
    # Without gaps, as MLX makes it; 16-bit floats as they lie in memory, since NumPy has no bfloat16.
    block = np.array(mx.contiguous(array).view(mx.uint16) if array.dtype.size == 2 else array, order="C")
    if array.ndim == 0:
        yield f"{kind}& {name}", f"*({kind}*){memory.add(block)}"
        return
    # The size is read when the kernel runs: one program serves all shapes.
    size = f"*(const long long*){memory.add(np.array([array.size], np.int64))}"
    type_ = f"emulated::{'Array' if array.size < _MAX_CONSTANT_SIZE else 'DeviceArray'}<{kind}>"
    yield f"{type_} {name}", f'{type_}{{({kind}*){memory.add(block)}, {size}, "{name}"}}'
    if f"{name}_shape" in source:
        yield f"const int* {name}_shape", f"(const int*){memory.add(np.array(array.shape, np.int32))}"
    if f"{name}_strides" in source:
        strides = [int(np.prod(array.shape[axis + 1 :])) for axis in range(array.ndim)]
        yield f"const int64_t* {name}_strides", f"(const int64_t*){memory.add(np.array(strides, np.int64))}"
    if f"{name}_ndim" in source:
        yield f"const int& {name}_ndim", str(array.ndim)


def _outputs(name: str, dtype: mx.Dtype, block: np.ndarray, memory: _Memory) -> tuple[str, str]:
    type_ = f"emulated::DeviceArray<{_TYPES[dtype]}>"
    size = memory.add(np.array([block.size // dtype.size], np.int64))
    return (
        f"{type_} {name}",
        f'{type_}{{({_TYPES[dtype]}*){memory.add(block)}, *(const long long*){size}, "{name}"}}',
    )


def _program(
    header: str, source: str, template: Sequence[tuple[str, Any]], parameters: Sequence[tuple[str, str]]
) -> str:
    kinds = ["typename" if isinstance(v, mx.Dtype) else type(v).__name__ for _, v in template]
    listed = ", ".join(f"{kind} {name}" for kind, (name, _) in zip(kinds, template, strict=True))
    values = ", ".join(_TYPES[v] if isinstance(v, mx.Dtype) else str(v).lower() for _, v in template)
    return f"""\
#include "{_SHIM.as_posix()}"
namespace metal {{
#line 1 "header"
{header}
{f"template <{listed}>" if template else ""}
void kernel({", ".join(declaration for declaration, _ in parameters)}) {{
#line 1 "body"
{source}
}}
}}
static void* const* memory;
static const unsigned *grid, *group;
extern "C" __attribute__((visibility("default")))
const char* run(void* const* given, const unsigned* grid_size, const unsigned* group_size) {{
  memory = given, grid = grid_size, group = group_size;
  return emulated::run_grid(grid, group, [](const emulated::Thread& t) {{
    metal::kernel{f"<{values}>" if template else ""}({", ".join(value for _, value in parameters)});
  }});
}}
"""


@functools.cache
def _built(program: str) -> ctypes.CDLL | Exception:
    # Once it is loaded, a library needs no file any more.
    with tempfile.TemporaryDirectory(prefix="tiny-llm-metal-") as folder:
        (Path(folder) / "kernel.cpp").write_text(program, encoding="utf-8")
        options = ["-std=c++20", "-O1", "-w", "-shared", "-fPIC", "-o", "kernel.so", "kernel.cpp"]
        # Else the loader would let two kernels share what has the same name in both.
        options.append("-fvisibility=hidden")
        # C's own math.h: what libstdc++ puts around it would be half of the compilation.
        options.append("-D_GLIBCXX_INCLUDE_NEXT_C_HEADERS")
        done = subprocess.run([_compiler(), *options], cwd=folder, capture_output=True, text=True)
        if done.returncode == 0:
            return ctypes.CDLL(str(Path(folder) / "kernel.so"))
    if todo := re.search(r'error: (?:#error )?"task [\d.]+"', done.stderr):
        return NotImplementedError(todo[0])
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    said = "\n".join(errors[:5]) or done.stderr
    return SyntaxError(f"the kernel does not compile (body:1 is the line of BODY_MARK):\n{said}")


def _compiler() -> str:
    names = filter(None, [os.environ.get("CXX"), "c++", "g++", "clang++"])
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.fail(
            "this test needs a C++ compiler, and none was found: install g++ (Linux) or run "
            "`xcode-select --install` (macOS), or name yours in the variable CXX",
            pytrace=False,
        )
    return found
