"""The emulated memory of Metal: which thread misused it, and after which barrier."""

import mlx.core as mx
import numpy as np
import pytest
from tests.lab.test_metal_emulator import run

START = """
    threadgroup float shared[64];
    uint i = thread_position_in_threadgroup.x;
    shared[i] = x[i];
"""
OF_DEVICE = "threadgroup_barrier(mem_flags::mem_device);"
BARRIER = "threadgroup_barrier(mem_flags::mem_threadgroup);"


def blamed(source, x=None, size=64):
    with pytest.raises(RuntimeError) as caught:
        run(source, mx.ones(64) if x is None else x, size)
    return str(caught.value)


def place(thread, num_barriers, group=0):
    who = f"thread ({thread}, 0, 0) of threadgroup ({group}, 0, 0)"
    return f"[{who}, threadgroup_barrier calls before: {num_barriers}]"


def test_a_race_names_both_threads_and_the_barrier_they_passed():
    said = blamed(f"{START} {BARRIER} {BARRIER} if (i == 3) shared[5] = 0; out[i] = shared[i];")
    assert (
        "k: a race: this thread reads shared[5], which thread (3, 0, 0) wrote (its barriers before: 2)"
        in said
    )
    assert said.endswith(place(5, 2))


def test_a_write_races_with_a_read_as_well():
    # The last thread to come to the barrier runs on first: it reads the element that thread 0 overwrites.
    said = blamed(f"{START} {BARRIER} float next = shared[(i + 1) % 64]; shared[i] = next; out[i] = next;")
    assert "this thread writes shared[0], which thread (63, 0, 0) read (its barriers before: 1)" in said
    assert said.endswith(place(0, 1))


def test_the_second_of_two_readers_is_found_when_the_first_one_writes():
    body = f"{START} {BARRIER} if (i < 2) out[i] = shared[7]; simd_sum(1); if (i == 0) shared[7] = 0;"
    assert "this thread writes shared[7], which thread (1, 0, 0) read (" in blamed(body)


def test_two_writes_race():
    said = blamed("threadgroup float shared; shared = thread_position_in_threadgroup.x; out[0] = 1;")
    assert "this thread writes shared[0], which thread (0, 0, 0) wrote (its barriers before: 0)" in said


def test_a_read_of_what_was_never_written_is_told():
    said = blamed(f"threadgroup float shared[64]; {BARRIER} out[thread_index_in_threadgroup] = shared[9];")
    assert "k: shared[9] is read and no thread has written it: is a barrier missing?" in said
    assert said.endswith(place(63, 1))


def test_a_threadgroup_finds_nothing_of_the_one_before():
    source = f"""
        threadgroup float shared[64];
        uint i = thread_position_in_threadgroup.x;
        if (threadgroup_position_in_grid.x == 0) shared[i] = 1;
        {BARRIER}
        out[thread_position_in_grid.x] = shared[i];
    """
    assert blamed(source, size=128).endswith(place(63, 1, group=1))


ACCESSES = [
    ("out[i + 1] = 0;", "out", 64, 63),
    ("const device float* p = x + 2; p += i; if (i == 62) out[i] = p[0];", "x", 64, 62),
    (
        "const device uchar* p = reinterpret_cast<const device uchar*>(x); out[i] = p[4 * i + 4];",
        "x",
        256,
        63,
    ),
    ("threadgroup float shared[8]; if (i == 8) shared[i] = 0;", "shared", 8, 8),
    ("threadgroup float a[8]; threadgroup float* p = a; if (i == 8) p[i] = 0;", "a", 8, 8),
]


@pytest.mark.parametrize(("access", "name", "size", "thread"), ACCESSES)
def test_who_left_a_buffer_is_told(access, name, size, thread):
    said = blamed(f"uint i = thread_position_in_threadgroup.x; {BARRIER} {access}")
    assert f"{name}[{size}] is outside: there are {size} elements" in said
    assert said.endswith(place(thread, 1))


def test_a_barrier_for_other_memory_orders_nothing():
    rest = "out[i] = shared[i ^ 32];"
    assert "a race" in blamed(f"{START} {OF_DEVICE} {rest}")
    both = "threadgroup_barrier(mem_flags::mem_device | mem_flags::mem_threadgroup);"
    assert np.array(run(f"{START} {both} {rest}", mx.ones(64), 64)).tolist() == [1.0] * 64


def test_a_simdgroup_barrier_orders_its_own_lanes_only():
    barrier = "simdgroup_barrier(mem_flags::mem_threadgroup);"
    within = run(f"{START} {barrier} out[i] = shared[i ^ 1];", mx.arange(64, dtype=mx.float32), 64)
    assert np.array(within)[:4].tolist() == [1.0, 0.0, 3.0, 2.0]
    assert "shared[0], which thread (0, 0, 0) wrote" in blamed(
        f"{START} {barrier} if (i > 31) out[i] = shared[0];"
    )


def test_elements_of_threadgroup_memory_are_values_like_others():
    source = f"""
        threadgroup half a[2][32], b[64];  // two arrays
        threadgroup float total;
        uint i = thread_position_in_threadgroup.x;
        a[i / 32][i % 32] = half(x[i]);
        threadgroup half* mine = b + 1;
        mine[int(i) - 1] = half(2);
        {BARRIER}
        b[i] *= a[i / 32][i % 32];
        float sum = simd_sum(float(b[i])) + simd_max(b[i]) + max(b[i], half(0)) + (b[i] + b[i] * b[i]);
        if (i == 0) total = sum;
        {BARRIER}
        out[i] = total + min(total, 0.0f);
    """
    got = run(source, mx.ones(64), 64)
    assert np.array(got).tolist() == [64 + 2 + 2 + 6.0] * 64
