"""Day 2.6: a batch of caches in place."""

import mlx.core as mx
import pytest
from tests.helpers.batching import batch_of, prefilled
from tests.helpers.tolerance import EXACT, active_bytes, assert_close
from tests.helpers.toy import random_array

T, F = True, False


@pytest.mark.task("2.6.1")
def test_batch_of_three_lengths(llm):
    batch = batch_of(llm, [2, 5, 3], rows=4)
    assert batch.offset == [2, 5, 3], "the tokens stored by row"
    want = [[T, T, T, F, F, F], [T, T, T, T, T, T], [T, T, T, T, F, F]]
    got = batch.attention_mask(1)
    assert got.shape == (3, 1, 1, 6)
    assert got[:, 0, 0].tolist() == want
    key = random_array(10, 3, 2, 1, 4)
    keys, values = batch.update_and_fetch(key, -key)
    assert batch.offset == [3, 6, 4]
    assert keys.shape == values.shape == (3, 2, 6, 4), "[B, G, S, D], S of the longest row"
    for row, length in enumerate([2, 5, 3]):
        own = mx.concatenate([prefilled(llm, length, seed=row).fetch()[0][0], key[row]], axis=1)
        assert_close(keys[row, :, : length + 1], own, EXACT, legend="[G, S, D]", what=f"keys of row {row}")
        assert_close(
            values[row, :, : length + 1], -own, EXACT, legend="[G, S, D]", what=f"values of row {row}"
        )


@pytest.mark.task("2.6.1")
def test_batch_does_not_touch_the_cache_that_it_copies(llm):
    batch, cache = llm.BatchingKvCache(2), prefilled(llm, 3)
    want = mx.array(cache.fetch()[0])
    batch.add_request(cache)
    batch.update_and_fetch(mx.ones((1, 2, 1, 4)), mx.ones((1, 2, 1, 4)))
    assert_close(cache.fetch()[0], want, EXACT)
    cache.release()
    assert_close(
        batch.update_and_fetch(mx.ones((1, 2, 1, 4)), mx.ones((1, 2, 1, 4)))[0][:, :, :3], want, EXACT
    )


@pytest.mark.task("2.6.1")
def test_batch_keeps_the_dtype(llm):
    batch = batch_of(llm, [3], dtype=mx.bfloat16)
    new = random_array(1, 1, 2, 1, 4, dtype=mx.bfloat16)
    for stored in batch.update_and_fetch(new, new):
        assert_close(stored[:, :, 3:], new, EXACT, dtype=mx.bfloat16)


@pytest.mark.task("2.6.1")
def test_batch_gives_its_memory_back(llm):
    before = active_bytes()
    batch = batch_of(llm, [500, 400], D=64)
    mx.eval(batch.update_and_fetch(mx.ones((2, 2, 1, 64)), mx.ones((2, 2, 1, 64))))
    assert active_bytes() - before > 2 * 2 * 400 * 64 * 4
    batch.release()
    assert active_bytes() - before < 1024
    assert batch.offset == [], "no request is left, and no length"
    batch.release()
    assert batch.add_request(prefilled(llm, 3)) == 0
