"""Day 2.5: FlashAttention with masks, groups and long rows."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import oracle
from tests.helpers.attention import qkv
from tests.helpers.tolerance import F32, assert_close, peak_bytes, rounding

pytestmark = pytest.mark.task("2.5.1")


@pytest.mark.parametrize(
    ("L", "S"),
    [(1, 1), (1, 65), (5, 5), (64, 64), (65, 65), (3, 64), (3, 130), (64, 200), (130, 130), (70, 129)],
)
def test_flash_attention_causal(llm, L, S):
    q, k, v = qkv(1, 1, 4, 2, L, S, 8)
    got = llm.flash_attention(q, k, v, mask="causal")
    assert_close(got, oracle.attention(q, k, v, causal=True), F32, dtype=mx.float32)
    want = mx.fast.scaled_dot_product_attention(q, k, v, scale=8**-0.5, mask="causal")
    assert_close(got, want, F32)


@pytest.mark.parametrize(("H", "G"), [(1, 1), (4, 4), (4, 2), (6, 1), (12, 3)])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_flash_attention_of_groups(llm, H, G, mask):
    q, k, v = qkv(2, 2, H, G, 5, 70, 8)
    got = llm.flash_attention(q, k, v, mask=mask)
    assert_close(got, oracle.attention(q, k, v, causal=mask is not None), F32)
    assert_close(got, llm.scaled_dot_product_attention_grouped(q, k, v, mask=mask), F32)


@pytest.mark.parametrize(
    "shape", [(5, 130), (1, 1, 5, 130), (2, 1, 5, 130), (2, 6, 5, 130), (1, 6, 1, 130), (130,)]
)
@pytest.mark.parametrize("kind", ["added", "boolean"])
def test_flash_attention_with_an_array_mask(llm, shape, kind):
    q, k, v = qkv(3, 2, 6, 3, 5, 130, 8)
    if kind == "added":
        mask = np.random.default_rng(4).normal(size=shape).astype(np.float32) * 3
    else:
        mask = np.random.default_rng(4).random(shape) < 0.3
        mask[..., 77] = True
    got = llm.flash_attention(q, k, v, mask=mx.array(mask))
    assert_close(got, oracle.attention(q, k, v, mask=mask), F32)


@pytest.mark.parametrize("first_seen", [63, 64, 65, 128, 199])
@pytest.mark.parametrize("kind", ["added", "boolean"])
def test_flash_attention_of_rows_that_see_nothing_at_first(llm, first_seen, kind):
    q, k, v = qkv(5, 1, 4, 2, 3, 200, 8)
    visible = np.ones((3, 200), bool)
    visible[1, :first_seen] = False
    mask = mx.array(visible) if kind == "boolean" else mx.where(mx.array(visible), 0.0, -mx.inf)
    assert_close(llm.flash_attention(q, k, v, mask=mask), oracle.attention(q, k, v, mask=visible), F32)


def test_flash_attention_of_rows_that_see_one_block_in_the_middle(llm):
    q, k, v = qkv(6, 2, 2, 1, 4, 200, 8)
    visible = np.zeros((2, 1, 4, 200), bool)
    for row in range(4):
        visible[:, :, row, 40 * row : 40 * row + 1 + row] = True
    got = llm.flash_attention(q, k, v, mask=mx.array(visible))
    assert_close(got, oracle.attention(q, k, v, mask=visible), F32)


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
@pytest.mark.parametrize("kind", ["causal", "added", "boolean"])
def test_flash_attention_of_16_bits_with_a_mask(llm, dtype, kind):
    q, k, v = qkv(7, 1, 4, 2, 9, 140, 16, dtype)
    visible = oracle.visible_causal(9, 140)
    added = mx.where(mx.array(visible), 0.0, -mx.inf).astype(dtype)
    mask = {"causal": "causal", "boolean": mx.array(visible), "added": added}[kind]
    got = llm.flash_attention(q, k, v, mask=mask)
    assert_close(got, oracle.attention(q, k, v, causal=True), rounding(dtype, 1), dtype=dtype)


@pytest.mark.parametrize("mask", [None, "causal"])
def test_flash_attention_holds_a_block_of_scores_not_all(llm, mask):
    B, H, L, S = 1, 8, 128, 4096
    q, k, v = qkv(8, B, H, 2, L, S, 8)
    mx.eval(q, k, v)
    scores = B * H * L * S * 4
    assert peak_bytes(lambda: llm.flash_attention(q, k, v, mask=mask)) < scores / 4


@pytest.mark.parametrize(("H", "G"), [(4, 3), (2, 4)])
def test_flash_attention_rejects_heads_that_do_not_divide(llm, H, G):
    q, k, v = qkv(10, 1, H, G, 2, 2, 8)
    with pytest.raises(ValueError):
        llm.flash_attention(q, k, v)


@pytest.mark.parametrize("mask", ["", "Causal", "full"])
def test_flash_attention_rejects_masks_that_it_does_not_know(llm, mask):
    with pytest.raises(ValueError):
        llm.flash_attention(*qkv(23, 1, 2, 1, 2, 2, 8), mask=mask)
