"""What is stored of a matrix in blocks; test_invariance.py and test_elementwise.py compute with it."""

import math
import re
from itertools import pairwise
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.matrices import matrix
from tests.helpers.tolerance import EXACT, assert_close

from tiny_llm_lab.runtime.native import binding, in_blocks


@pytest.mark.parametrize("bits", [0, 4])
@pytest.mark.parametrize("shape", [(1,), (16,), (3, 17), (64,), (2, 65), (130,)], ids=str)
def test_blocks_hold_the_rows_and_zeros(dtype, shape, bits):
    """Rows that are views, and of several experts."""
    w = matrix(1, 2 * math.prod(shape), 192, bits, 32, dtype)
    part = lambda array: array[::-2].reshape(*shape, -1)  # noqa: E731
    w = w.mapped(part) if bits else part(w)
    got = in_blocks(w)
    assert (got.in_blocks, got.bits) == (shape[-1], bits) and in_blocks(got) is got
    pairs = [(getattr(w, name), getattr(got, name)) for name in ("weight", "scales", "biases") if bits]
    for before, after in pairs or [(w.view(mx.uint32), got.weight.view(mx.uint32))]:
        rows = after.swapaxes(-1, -2).flatten(-3, -2)
        want = mx.pad(before, [*[(0, 0)] * (len(shape) - 1), (0, -shape[-1] % 64), (0, 0)])
        assert_close(rows, want, EXACT, dtype=before.dtype)
    words = np.array(got.weight.view(mx.uint32), copy=False)
    assert words.ctypes.data % 64 == 0, "a block begins with a cache line"
    if bits:
        assert_close(got.dequantized(), w.dequantized(), EXACT)


def test_other_arrays_are_refused():
    for array in (mx.zeros(8), mx.zeros((8, 8), mx.int8)):
        with pytest.raises(ValueError, match=r"rows \[..., O, n\] of 16 or 32 bits"):
            binding().in_blocks([array])


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="no large pages here")
def test_matrices_share_memory_in_large_pages():
    made = binding().in_blocks([mx.full((512, 512), i, mx.uint32) for i in range(8)])
    places = [np.array(each, copy=False).ctypes.data for each in made]
    assert [b - a for a, b in pairwise(places)] == [512 * 512 * 4] * 7
    flags, inside = "", False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if match := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            inside = int(match[1], 16) <= places[4] < int(match[2], 16)
        flags = line if inside and line.startswith("VmFlags") else flags
    assert "hg" in flags.split()
