"""The arrays of the Metal kernels stay in registers, as far as Clang for an arm64 Mac tells.

The bodies are compiled as C++ by Zig's Clang (`pip install ziglang`). An array that is indexed by what the
compiler cannot count out lies in memory: its `alloca` remains at -O2. Metal's functions are only declared,
since the emulation's tests of every index change how loops are unrolled. Apple's compiler for GPUs is made of
the same parts; it was not run.
"""

import importlib.util
import re
import shutil
import subprocess

import mlx.core as mx
import pytest
from tests.helpers import metal_emulator
from tests.helpers.delta_nets import a_net, nothing, some_rows

from tiny_llm_lab.runtime.native.device import delta_decode, partitioned
from tiny_llm_lab.runtime.native.device.decode_kernel import DIMS
from tiny_llm_ref.kernels import metal


def zig():
    """Zig's program: on the path, or of the package."""
    found = importlib.util.find_spec("ziglang")
    folders = list(found.submodule_search_locations or ()) if found else []
    return shutil.which("zig") or next((f"{folder}/zig" for folder in folders), None)


ZIG = zig()
pytestmark = pytest.mark.skipif(ZIG is None, reason="no Zig here: pip install ziglang")
FLAGS = ("-target", "aarch64-macos.14.0", "-std=c++20", "-O2", "-w", "-fno-sanitize=all", "-emit-llvm", "-S")
METAL = """
using uint = unsigned int;
using ushort = unsigned short;
using size_t = unsigned long;
struct uint3 { uint x, y, z; };
float simd_sum(float), simd_max(float), simd_shuffle_xor(float, ushort), exp(float), log(float), rsqrt(float);
enum class mem_flags { mem_threadgroup };
void threadgroup_barrier(mem_flags);
namespace fast { float exp2(float); }
template <typename T> T max(T a, T b) { return a < b ? b : a; }
template <typename T> T min(T a, T b) { return b < a ? b : a; }
#define constant
#define threadgroup static
#define INFINITY __builtin_inff()
"""
TYPES = {mx.float32: "float", mx.float16: "_Float16", mx.int32: "int"}
UNROLLED = re.compile(r"for \(uint i = 0; i < OWNED; \+\+i\) \{\s*const uint d = lane \+ i \* LANES;")
BY_LANE = "for (uint i = 0, d = lane; d < D; ++i, d += LANES) {"


@pytest.fixture
def programs(monkeypatch):
    """The kernels that are called, as C++ functions, each in a namespace of its own; none is run."""
    written = []

    def metal_kernel(input_names, output_names, source, header, **_):
        def call(**launch):
            inputs = zip(input_names, launch["inputs"], strict=True)
            outputs = dict(zip(output_names, launch["output_dtypes"], strict=True))
            text = as_function(header, source, dict(inputs), launch["template"], outputs)
            written.append(f"namespace kernel{len(written)} {{{text}}}\n")
            shapes = zip(launch["output_shapes"], outputs.values(), strict=True)
            return [mx.zeros(shape, dtype) for shape, dtype in shapes]

        return call

    metal_emulator.install(monkeypatch, "emulated")
    monkeypatch.setattr(mx.fast, "metal_kernel", metal_kernel)
    for module in (metal, partitioned, delta_decode):
        monkeypatch.setattr(module, "_kernel", module._kernel.__wrapped__)
    return written


def as_function(header, source, inputs, template, outputs):
    """A kernel with the signature that MLX gives it, and the values of its template."""
    parameters = [f"{TYPES[dtype]}* {name}" for name, dtype in outputs.items()]
    for name, array in inputs.items():
        parameters.append(f"const {TYPES[array.dtype]}{'*' if array.ndim else '&'} {name}")
        parameters.append(f"const int* {name}_shape")
    parameters += [f"{kind} {name}" for kind, name, _ in metal_emulator._ATTRIBUTES]
    values = ""
    for name, value in template:
        is_type = isinstance(value, mx.Dtype)
        values += (
            f"using {name} = {TYPES[value]};\n" if is_type else f"constexpr auto {name} = {int(value)};\n"
        )
    return f"{header}\nvoid run({', '.join(parameters)}) {{\n{values}{source}\n}}"


def arrays_in_memory(programs, folder):
    source, made = folder / "kernels.cpp", folder / "kernels.ll"
    source.write_text(METAL + "".join(programs), encoding="utf-8")
    command = [str(ZIG), "c++", *FLAGS, "-o", str(made), str(source)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    code = made.read_text(encoding="utf-8")
    assert code.count("\ndefine ") >= len(programs)
    return re.findall(r"alloca \[.*", code)


def paged(dim):
    """The arguments of a kernel for one row with two heads."""
    pool, row = mx.zeros((8, 1, 16, dim), mx.float16), mx.ones((8,), mx.int32)
    return (mx.zeros((1, 2, 1, dim), mx.float16), pool, pool, mx.zeros((1, 8), mx.int32), row - 1, row)


@pytest.mark.parametrize("dim", DIMS)
def test_the_kernels_keep_their_arrays_in_registers(programs, tmp_path, dim):
    rows = mx.zeros((1, 2, 3, dim), mx.float16)
    for causal in (False, True):
        metal.flash_attention_metal(rows, rows, rows, causal=causal)
    metal.paged_attention_metal(*paged(dim))
    for longest in (1, 513):
        partitioned.partitioned_attention(*paged(dim), 1.0, longest)
    assert len(programs) == 6
    assert arrays_in_memory(programs, tmp_path) == []


@pytest.mark.parametrize("dim", DIMS)
def test_a_loop_that_depends_on_the_lane_shows(programs, tmp_path, dim):
    metal.paged_attention_metal(*paged(dim))
    by_lane, num_loops = UNROLLED.subn(BY_LANE, programs[0])
    assert num_loops == 4
    assert arrays_in_memory([by_lane], tmp_path)


@pytest.mark.parametrize("shape", [(1, 128, 1, 128, 4), (1, 33, 1, 65, 4)], ids=str)
def test_a_delta_nets_state_stays_in_registers(programs, tmp_path, shape):
    rows = some_rows(shape, 1, mx.float16)
    delta_decode.delta_decode(rows, a_net(shape), [nothing(shape)], [0, 1])
    assert len(programs) == 1 and arrays_in_memory(programs, tmp_path) == []
    by_place = programs[0].replace("s[r][i] = d <", "s[(r + place) % ROWS][i] = d <")
    assert by_place != programs[0] and arrays_in_memory([by_place], tmp_path)
