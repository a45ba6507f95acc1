"""Day 2.7: where a prompt is cut, and the mask of a chunk."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import oracle
from tests.helpers.phases import UNCHUNKED
from tests.helpers.tolerance import EXACT, F32, assert_close, rounding
from tests.helpers.toy import random_array

# Where a prompt is cut


def sizes(spans):
    return [end - start for start, end in spans]


@pytest.mark.task("2.7.1")
@pytest.mark.parametrize(
    ("prompt_len", "step", "want"),
    [
        (10, 4, [(0, 4), (4, 8), (8, 10)]),
        (1, 1, [(0, 1)]),
        (1, 128, [(0, 1)]),
        (127, 128, [(0, 127)]),
        (128, 128, [(0, 128)]),
        (129, 128, [(0, 128), (128, 129)]),
        (256, 128, [(0, 128), (128, 256)]),
        (4, 1, [(0, 1), (1, 2), (2, 3), (3, 4)]),
        (500, UNCHUNKED, [(0, 500)]),
    ],
)
def test_chunk_spans(llm, prompt_len, step, want):
    assert list(llm.chunk_spans(prompt_len, step)) == want


@pytest.mark.task("2.7.1")
def test_chunk_spans_of_long_prompts(llm):
    assert sizes(list(llm.chunk_spans(1000, 128))) == [128] * 7 + [104]
    assert sizes(list(llm.chunk_spans(5000, 2048))) == [2048, 2048, 904]
    spans = list(llm.chunk_spans(30_000, 2048))
    assert len(spans) == 15
    assert spans[-1] == (28_672, 30_000)
    assert sizes(spans)[-1] == 1328


@pytest.mark.task("2.7.1")
def test_chunk_spans_have_no_gaps(llm):
    for prompt_len in range(1, 40):
        for step in range(1, 45):
            spans = list(llm.chunk_spans(prompt_len, step))
            assert [start for start, _ in spans] == [0, *(end for _, end in spans[:-1])], (prompt_len, step)
            assert spans[-1][1] == prompt_len
            assert all(size == step for size in sizes(spans)[:-1])
            assert 1 <= sizes(spans)[-1] <= step


@pytest.mark.task("2.7.1")
def test_chunk_spans_go_on_from_any_token(llm):
    assert list(llm.chunk_spans(10, 4, 4)) == [(4, 8), (8, 10)]
    assert next(llm.chunk_spans(10, 4, 5)) == (5, 9)
    assert list(llm.chunk_spans(10, 4, 9)) == [(9, 10)]


@pytest.mark.task("2.7.1")
@pytest.mark.parametrize(
    ("prompt_len", "step", "start"), [(0, 4, 0), (-1, 4, 0), (4, 0, 0), (4, -1, 0), (4, 2, 4), (4, 2, -1)]
)
def test_chunk_spans_rejects_nothing_to_cut(llm, prompt_len, step, start):
    try:
        spans = llm.chunk_spans(prompt_len, step, start)
    except ValueError:
        return
    try:
        found = next(spans, None)
    except ValueError:
        found = "a ValueError: a function with `yield` checks nothing before its first value is asked for"
    pytest.fail(f"the call raised no ValueError; asked for the first chunk it gave {found}", pytrace=False)


# The mask of a chunk


@pytest.mark.task("2.7.2")
def test_chunked_prefill_mask_of_three_tokens_after_five(llm):
    I = -np.inf  # noqa: E741
    want = [[0, 0, 0, 0, 0, 0, I, I], [0, 0, 0, 0, 0, 0, 0, I], [0, 0, 0, 0, 0, 0, 0, 0]]
    assert_close(llm.chunked_attention_mask(5, 3, 8), want, EXACT, legend="[L, S]", dtype=mx.float32)
    # What comes after the chunk does not make the mask wider.
    assert_close(llm.chunked_attention_mask(5, 3, 100), want, EXACT, legend="[L, S]")


@pytest.mark.task("2.7.2")
@pytest.mark.parametrize("step", [1, 3, 4, 7, 10, 11])
def test_chunked_prefill_masks_are_the_rows_of_the_whole_mask(llm, step):
    whole = np.where(oracle.visible_causal(10, 10), 0.0, -np.inf)
    for start in range(0, 10, step):
        end = min(start + step, 10)
        got = llm.chunked_attention_mask(start, end - start, 10)
        assert_close(got, whole[start:end, :end], EXACT, legend="[L, S]", what=f"chunk {start} to {end}")


@pytest.mark.task("2.7.2")
@pytest.mark.parametrize(("start", "size"), [(0, 1), (0, 9), (5, 3), (64, 65)])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_chunked_prefill_mask_equals_causal_in_mlx(llm, start, size, dtype):
    end = start + size
    mask = llm.chunked_attention_mask(start, size, end, dtype)
    assert mask.dtype == dtype
    q = random_array(1, 1, 4, size, 16, dtype=dtype)
    k, v = (random_array(2 + i, 1, 2, end, 16, dtype=dtype) for i in range(2))
    got = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.25, mask=mask)
    want = mx.fast.scaled_dot_product_attention(q, k, v, scale=0.25, mask="causal")
    assert_close(got, want, F32 if dtype == mx.float32 else rounding(dtype, 2))


@pytest.mark.task("2.7.2")
@pytest.mark.parametrize(
    ("start", "size", "total"), [(-1, 2, 8), (0, 0, 8), (3, -1, 8), (6, 3, 8), (8, 1, 8)]
)
def test_chunked_prefill_mask_rejects_what_is_no_chunk(llm, start, size, total):
    with pytest.raises(ValueError):
        llm.chunked_attention_mask(start, size, total)
