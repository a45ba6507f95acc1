"""Day 3.2: attention over pages in Metal."""

import math

import mlx.core as mx
import pytest
from tests.helpers.paging import Requests
from tests.helpers.tolerance import F32, assert_close, rounding

from tiny_llm_lab.types import Slice, UserError

pytestmark = pytest.mark.task("3.2.4")


def rows_of(layout):
    """The tables of a layout, each row's request and how many stored tokens it sees."""
    starts = layout.query_starts
    owners = [r for r, start in enumerate(starts[:-1]) for _ in range(start, starts[r + 1])]
    visible = [position + 1 for position in layout.positions]
    return layout.block_tables, mx.array(owners, mx.int32), mx.array(visible, mx.int32)


@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize(("lengths", "sizes"), [([1], [1]), ([40], [1]), ([9, 5, 33], [2, 5, 1])])
def test_paged_attention_metal(llm, metal, lengths, sizes, block_size):
    step = Requests(llm, lengths, sizes, block_size, D=64)
    got = llm.paged_attention_metal(step.new_q, step.keys, step.values, *rows_of(step.layout))
    assert_close(got, step.want(), F32, dtype=mx.float32, legend="[T, 1, H * D]")


@pytest.mark.parametrize(("H", "G", "D"), [(1, 1, 4), (6, 1, 24), (12, 3, 80), (4, 2, 256)])
def test_paged_attention_metal_of_other_heads(llm, metal, H, G, D):
    step = Requests(llm, [9, 20], [1, 2], H=H, G=G, D=D)
    got = llm.paged_attention_metal(step.new_q, step.keys, step.values, *rows_of(step.layout), 0.3)
    step.q = [q * (0.3 * math.sqrt(D)) for q in step.q]
    assert_close(got, step.want(), rounding(mx.float32, 400), legend="[T, 1, H * D]")


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_paged_attention_metal_of_16_bits(llm, metal, dtype):
    step = Requests(llm, [70, 5], [1, 2], 16, D=64, dtype=dtype)
    got = llm.paged_attention_metal(step.new_q, step.keys, step.values, *rows_of(step.layout))
    assert_close(got, step.want(), rounding(dtype, 1), dtype=dtype, legend="[T, 1, H * D]")


def test_paged_attention_metal_rejects_what_it_cannot_do(llm, metal, monkeypatch):
    layout = llm.StepLayout.of(4, [Slice([0], 0, 1)])
    pool = mx.zeros((1, 2, 4, 8))
    with pytest.raises(UserError):
        llm.paged_attention_metal(mx.zeros((1, 3, 1, 8)), pool, pool, *rows_of(layout))
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    with pytest.raises(UserError):
        llm.paged_attention_metal(mx.zeros((1, 4, 1, 8)), pool, pool, *rows_of(layout))
