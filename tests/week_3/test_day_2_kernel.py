"""Day 3.2: attention over pages in C++."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.paging import STEPS, Requests
from tests.helpers.tolerance import EXACT, F32, assert_close, rounding

pytestmark = pytest.mark.task("3.2.3")


@pytest.mark.parametrize("block_size", [1, 3, 16, 32, 64])
@pytest.mark.parametrize(("lengths", "sizes"), STEPS)
def test_paged_attention_kernel(llm, kernels, lengths, sizes, block_size):
    step = Requests(llm, lengths, sizes, block_size, D=16)
    at = step.layout
    where = (at.query_starts, at.lengths, at.block_tables)
    got = kernels.paged_attention(step.new_q, step.keys, step.values, *where, 0.25)
    assert_close(got, step.want(), F32, dtype=mx.float32, legend="[T, 1, H * D]")


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_paged_attention_kernel_of_16_bits(llm, kernels, dtype):
    step = Requests(llm, [70, 31, 64, 9], [6, 1, 64, 1], 32, D=64, dtype=dtype)
    at = step.layout
    where = (at.query_starts, at.lengths, at.block_tables)
    got = kernels.paged_attention(step.new_q, step.keys, step.values, *where, 0.125)
    assert_close(got, step.want(), rounding(dtype, 1), dtype=dtype, legend="[T, 1, H * D]")


@pytest.mark.parametrize("block_size", [32, 64, 96])
def test_pages_of_whole_blocks_give_the_same_bits_as_a_row_of_its_own(llm, kernels, block_size):
    step = Requests(llm, [200], [50], block_size, D=64)
    at = step.layout
    where = (at.query_starts, at.lengths, at.block_tables)
    got = kernels.paged_attention(step.new_q, step.keys, step.values, *where, 0.125)
    alone = (step.q[0][None, :, 150:], step.k[0][None], step.v[0][None])
    want = kernels.attention(*alone, 200, True, 0.125, True)
    assert_close(got[:, 0], want[0], EXACT, legend="[T, H * D]")


def test_the_largest_items_come_first(probe):
    # A chunk of 30 rows after 500 tokens, between decodes of 40 and 2000: 4 heads share a kv head, so that
    # an item of 24 rows has 6 tokens.
    starts, lengths = np.array([0, 1, 31, 32], np.int32), np.array([40, 530, 2000], np.int32)
    got = np.full((20, 3), -1, np.int64)
    probe("attention").probe_items(starts, lengths, 3, 4, 1, got)
    items = [tuple(item) for item in got.tolist() if item[0] >= 0]
    chunk = [(1, 501 + first, 6) for first in (24, 18, 12, 6, 0)]
    assert sorted(items) == sorted([(0, 40, 1), (2, 2000, 1), *chunk]), (
        "request, what its first token sees, tokens"
    )
    assert items[:5] == chunk, "six tokens that see 500 are more work than one that sees 2000"
    assert items[5:] == [(2, 2000, 1), (0, 40, 1)]
