"""Whether a Metal kernel's arrays stay in registers, by what Clang makes of its body for an arm64 Mac.

An array that is indexed by what the compiler cannot count out lies in memory: its `alloca` stays in the code.
Apple's compiler is made of the same parts.
"""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

BODY_MARK = "// --- body ---"
DIMS = (64, 80, 128)
# Names of Metal that a body uses; the functions are declared only.
_HEADER = """
typedef unsigned int uint;
typedef unsigned long size_t;
struct uint3 { uint x, y, z; };
extern "C" float simd_sum(float), expf(float);
static inline float exp(float x) { return expf(x); }
static inline float max(float a, float b) { return a < b ? b : a; }
#define constant
#define INFINITY __builtin_inff()
"""
_SHARED = ("const float& scale", "T* out", "uint thread_index_in_simdgroup", "uint3 thread_position_in_grid")
_POOLS = ("const T* keys", "const int* keys_shape", "const T* values")
_TABLES = ("const int* tables", "const int* tables_shape", "const int* owners", "const int* visible")
_QUERY = ("const T* query", "const int* query_shape")
# The parameters that MLX gives a body, and its template's values behind T and D.
KERNELS = {
    "flash_attention": (
        (*_QUERY, "const T* key", "const int* key_shape", "const T* value", *_SHARED),
        {"CAUSAL": "true"},
    ),
    "paged_attention": ((*_QUERY, *_POOLS, *_TABLES, *_SHARED), {}),
}


def in_memory(cxx: str, folder: Path, scratch: Path) -> Iterator[str]:
    """The arrays of the kernels in `folder` that lie in memory, by kernel and head dimension."""
    for name in KERNELS:
        source, made = scratch / f"{name}.cpp", scratch / f"{name}.ll"
        source.write_text(
            program(name, (folder / f"{name}.metal").read_text(encoding="utf-8")), encoding="utf-8"
        )
        flags = ("-std=c++20", "-O2", "-fno-sanitize=all", "-S", "-emit-llvm", "-o", str(made))
        done = subprocess.run([cxx, *flags, str(source)], capture_output=True, text=True)
        if done.returncode:
            yield f"{name}.metal does not compile as C++: {done.stderr.strip()}"
            continue
        function = ""
        for line in made.read_text(encoding="utf-8").splitlines():
            function = line if line.startswith("define") else function
            if "alloca" in line:
                dim = re.findall(r"(?:Li|run)(\d+)", function)
                yield f"{name}.metal, D = {dim[0]}: an array lies in memory: {line.strip()}"


def program(name: str, text: str) -> str:
    """A kernel as C++ in float32, for each of DIMS."""
    header, _, body = text.partition(BODY_MARK)
    parameters, values = KERNELS[name]
    kinds = "".join(f", bool {value}" for value in values)
    kernel = f"template <typename T, int D{kinds}> void kernel({', '.join(parameters)}) {{\n{body}\n}}\n"
    given = ", ".join(re.sub(r"\bT\b", "float", each) for each in parameters)
    names = ", ".join(re.split(r"[ *&]+", each)[-1] for each in parameters)
    more = "".join(f", {value}" for value in values.values())
    calls = (f'extern "C" void run{dim}({given}) {{ kernel<float, {dim}{more}>({names}); }}' for dim in DIMS)
    return "\n".join([_HEADER, header, kernel, *calls, ""])
