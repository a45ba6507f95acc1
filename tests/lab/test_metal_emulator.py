"""The stand-in for Metal: it must show the mistakes that a GPU would make something of, or nothing."""

import shutil

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import metal_emulator
from tests.helpers.tolerance import as_float64

from tiny_llm_lab.runtime.console.todo import find_todo


def run(source, x, size, dtype=mx.float32, **more):
    """A kernel with one input x and one output `out` of `size` elements, a thread for each."""
    launch = {"grid": (size, 1, 1), "threadgroup": (64, 1, 1)} | more
    arguments = {"name": "k", "input_names": ["x"], "output_names": ["out"], "source": source}
    (out,) = metal_emulator.run(
        **arguments, **launch, inputs=[x], output_shapes=[(size,)], output_dtypes=[dtype]
    )
    return out


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_narrow_floats_round_as_mlx_does(dtype):
    rng = np.random.default_rng(1)
    sizes = np.exp2(rng.uniform(-30, 20, size=500)) * rng.choice([-1, 1], size=500)
    ties = (1 + np.arange(64) / 4096) * 2.0 ** rng.integers(-20, 15, size=64)
    special = [0.0, -0.0, np.inf, -np.inf, 65519.0, 65520.0, 65504.0, 2.0**-24, 2.0**-25, 1.0, 2047.5]
    x = mx.array(np.concatenate([sizes, ties, special]).astype(np.float32))
    source = "uint i = thread_position_in_grid.x; out[i] = T(x[i]);"
    got = run(source, x, x.size, dtype, template=[("T", dtype)])
    assert np.array_equal(as_float64(got), as_float64(x.astype(dtype)))
    back = run("uint i = thread_position_in_grid.x; out[i] = x[i];", got, x.size)
    assert np.array_equal(as_float64(back), as_float64(got))


def test_what_no_thread_writes_is_not_a_number():
    got = run("if (thread_position_in_grid.x != 1) out[thread_position_in_grid.x] = x[0];", mx.ones(9), 3)
    assert np.isnan(np.array(got)).tolist() == [False, True, False]


def test_lanes_exchange_within_their_simdgroup():
    x = mx.arange(64, dtype=mx.float32)
    i = "uint i = thread_position_in_grid.x; "
    sums = run(f"{i} out[i] = simd_sum(x[i]);", x, 64)
    assert np.array(sums).tolist() == [sum(range(32))] * 32 + [sum(range(32, 64))] * 32
    shifted = run(f"{i} out[i] = simd_shuffle_xor(simd_max(x[i]) + x[i], 1);", x, 64)
    assert np.array(shifted)[[0, 1, 33]].tolist() == [32.0, 31.0, 63.0 + 32.0]


def test_lanes_that_have_returned_take_no_part():
    source = (
        "uint i = thread_position_in_grid.x; if (i >= 5) { out[i] = 0; return; } out[i] = simd_sum(x[i]);"
    )
    got = run(source, mx.ones(40), 40)
    assert np.array(got).tolist() == [5.0] * 5 + [0.0] * 35


def test_threadgroups_share_memory_and_are_smaller_at_the_edge():
    source = """
        threadgroup float shared[64];
        uint i = thread_position_in_grid.x;
        uint mine = thread_index_in_threadgroup;
        shared[mine] = x[i];
        threadgroup_barrier(mem_flags::mem_threadgroup);
        uint last = min(63u, x_shape[0] - threadgroup_position_in_grid.x * 64 - 1);
        out[i] = shared[last - mine] + 1000 * simdgroup_index_in_threadgroup;
    """
    got = np.array(run(source, mx.arange(100, dtype=mx.float32), 100)) % 1000
    assert got.tolist() == [*range(63, -1, -1), *range(99, 63, -1)]


NOT_TOLD = [
    ("out[0] = x[thread_position_in_grid.x + 3];", r"k: x\[9\] is outside: there are 9 elements"),
    ("out[-1] = 0;", r"k: out\[-1\] is outside"),
    (
        "if (thread_position_in_grid.x == 0) threadgroup_barrier(mem_flags::mem_none); else simd_sum(1);"
        "simd_sum(1);",
        "k: threads wait at a barrier",
    ),
]


@pytest.mark.parametrize(("source", "says"), NOT_TOLD)
def test_what_a_gpu_would_not_tell(source, says):
    with pytest.raises(RuntimeError, match=says):
        run(source, mx.ones(9), 7)


def test_small_arrays_have_no_device_pointer():
    source = "const device float* p = x; out[0] = p[0];"
    assert run(source, mx.ones(8), 1).item() == 1
    with pytest.raises(SyntaxError, match="body:1"):
        run(source, mx.ones(7), 1)
    assert run("auto p = x + 1; out[0] = p[1];", mx.ones(7), 1).item() == 1


def test_helpers_stand_in_the_header():
    header = "inline float twice(float a) { return metal::max(a + a, exp(-INFINITY)); }"
    assert run("out[0] = twice(x);", mx.array(2.0), 1, header=header).item() == 4


def test_a_cut_body_is_a_task_to_do():
    with pytest.raises(NotImplementedError) as caught:
        run('#error "task 2.3.2"', mx.ones(9), 1)
    todo = find_todo(caught.value, metal_emulator._SHIM.parent)
    assert todo is not None
    assert str(todo) == "TODO 2.3.2: write the .metal file, from `BEGIN task 2.3.2` on"


def test_what_apples_compiler_says_of_a_cut_body_is_the_same():
    said = 'Unable to build metal library from source\nprogram_source:9:2: error: "task 2.5.2"'
    todo = find_todo(RuntimeError(said), metal_emulator._SHIM.parent)
    assert todo is not None
    assert todo.task == "2.5.2"


def test_without_a_compiler_the_cure_is_named(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(pytest.fail.Exception, match=r"needs a C\+\+ compiler"):
        run("out[0] = 17;", mx.ones(9), 1)
