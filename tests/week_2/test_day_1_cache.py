"""Day 2.1: the KV cache of one request."""

import mlx.core as mx
import pytest
from tests.helpers.tolerance import EXACT, active_bytes, assert_close, peak_bytes
from tests.helpers.toy import random_array


def keys_and_values(seed, S, B=1, G=2, D=8, dtype=mx.float32):
    return random_array(seed, B, G, S, D, dtype=dtype), random_array(seed + 1, B, G, S, D, dtype=dtype)


def append_in_pieces(cache, key, value, sizes):
    start = 0
    for size in sizes:
        out = cache.update_and_fetch(key[:, :, start : start + size], value[:, :, start : start + size])
        start += size
        assert_close(out[0], key[:, :, :start], EXACT, legend="[B, G, S, D]", what="keys")
        assert_close(out[1], value[:, :, :start], EXACT, legend="[B, G, S, D]", what="values")
        assert cache.offset == start


@pytest.mark.task("2.1.1")
@pytest.mark.parametrize("sizes", [[1], [150], [5, 300], [5, 3, 1, 1], [63, 1, 1, 63, 1, 200], [64, 64, 65]])
@pytest.mark.parametrize("B", [1, 3])
def test_cache_returns_everything_stored(llm, sizes, B):
    key, value = keys_and_values(1, sum(sizes), B)
    append_in_pieces(llm.TinyKvFullCache(), key, value, sizes)


@pytest.mark.task("2.1.1")
def test_cache_keeps_the_dtype(llm):
    key, value = keys_and_values(2, 3, dtype=mx.bfloat16)
    out = llm.TinyKvFullCache().update_and_fetch(key, value)
    assert_close(out[0], key, EXACT, dtype=mx.bfloat16)
    assert_close(out[1], value, EXACT, dtype=mx.bfloat16)


@pytest.mark.task("2.1.1")
def test_cache_fetches_without_appending(llm):
    cache = llm.TinyKvFullCache()
    assert cache.offset == 0
    with pytest.raises(ValueError):
        cache.fetch()
    key, value = keys_and_values(3, 5)
    cache.update_and_fetch(key, value)
    for _ in range(2):
        assert_close(cache.fetch()[0], key, EXACT)
        assert_close(cache.fetch()[1], value, EXACT)
    assert cache.offset == 5


@pytest.mark.task("2.1.1")
def test_cache_copies_what_it_holds_only_now_and_then(llm):
    cache = llm.TinyKvFullCache()
    key, value = keys_and_values(4, 1, D=64)
    mx.eval(key, value)
    bytes_per_token = key.nbytes + value.nbytes

    def append():
        cache.update_and_fetch(key, value)
        cache.materialize()

    # An append that needs as much as half of what is stored has moved all of it.
    moves = sum(peak_bytes(append) > stored * bytes_per_token / 2 for stored in range(1000) if stored > 8)
    assert moves <= 10, (
        f"storage was copied {moves} times while 1,000 tokens came one by one; doubling needs 10"
    )


@pytest.mark.task("2.1.1")
def test_cache_does_not_hoard(llm):
    cache = llm.TinyKvFullCache()
    key, value = keys_and_values(5, 1000, D=64)
    mx.eval(key, value)
    before = active_bytes()
    cache.update_and_fetch(key, value)
    cache.materialize()
    assert active_bytes() - before < 2.5 * (key.nbytes + value.nbytes)


@pytest.mark.task("2.1.1")
@pytest.mark.parametrize(("L", "want"), [(1, None), (2, "causal"), (128, "causal")])
def test_cache_masks_several_new_tokens(llm, L, want):
    cache = llm.TinyKvFullCache()
    assert cache.attention_mask(L) == want
    cache.update_and_fetch(*keys_and_values(6, 4))
    assert cache.attention_mask(L) == want


@pytest.mark.task("2.1.1")
def test_cache_forgets_its_last_tokens(llm):
    cache = llm.TinyKvFullCache()
    key, value = keys_and_values(7, 70)
    cache.update_and_fetch(key, value)
    cache.rewind(0)
    assert cache.offset == 70
    cache.rewind(6)
    assert cache.offset == 64
    assert_close(cache.fetch()[0], key[:, :, :64], EXACT)
    new_key, new_value = keys_and_values(8, 3)
    out = cache.update_and_fetch(new_key, new_value)
    assert_close(out[0], mx.concatenate([key[:, :, :64], new_key], axis=2), EXACT)
    assert_close(out[1], mx.concatenate([value[:, :, :64], new_value], axis=2), EXACT)


@pytest.mark.task("2.1.1")
@pytest.mark.parametrize("n", [-1, 6, 100])
def test_cache_rejects_a_rewind_beyond_its_start(llm, n):
    cache = llm.TinyKvFullCache()
    cache.update_and_fetch(*keys_and_values(9, 5))
    with pytest.raises(ValueError):
        cache.rewind(n)
    assert cache.offset == 5


@pytest.mark.task("2.1.1")
@pytest.mark.parametrize(
    ("key_shape", "value_shape"),
    [
        ((1, 2, 3, 8), (1, 2, 4, 8)),
        ((1, 2, 3, 8), (1, 1, 3, 8)),
        ((2, 2, 3, 8), (2, 2, 3, 8)),
        ((1, 1, 3, 8), (1, 1, 3, 8)),
        ((1, 2, 3, 4), (1, 2, 3, 4)),
    ],
)
def test_cache_rejects_what_does_not_continue_it(llm, key_shape, value_shape):
    cache = llm.TinyKvFullCache()
    key, value = keys_and_values(10, 5)
    cache.update_and_fetch(key, value)
    with pytest.raises(ValueError):
        cache.update_and_fetch(mx.zeros(key_shape), mx.zeros(value_shape))
    assert cache.offset == 5
    assert_close(cache.fetch()[0], key, EXACT)


@pytest.mark.task("2.1.1")
def test_cache_computes_what_is_lazy(llm):
    cache = llm.TinyKvFullCache()
    cache.materialize()
    key, value = (x + mx.zeros((1, 2, 512, 64)) for x in keys_and_values(11, 1, D=64))
    stored = 2 * 2 * 512 * 64 * 4
    before = active_bytes()
    cache.update_and_fetch(key, value)
    assert peak_bytes(cache.materialize) > 0.9 * stored
    assert active_bytes() - before > 0.9 * stored
    assert peak_bytes(cache.materialize) == 0, "nothing was left to compute"


@pytest.mark.task("2.1.1")
def test_cache_gives_its_memory_back(llm):
    before = active_bytes()
    cache = llm.TinyKvFullCache()
    cache.update_and_fetch(mx.ones((1, 2, 512, 64)), mx.ones((1, 2, 512, 64)))
    cache.materialize()
    cache.release()
    kept = active_bytes() - before
    assert kept < 1024, f"{kept} bytes are still in use after release(): does the cache still hold an array?"
    assert cache.offset == 0
    with pytest.raises(ValueError):
        cache.fetch()
    cache.release()
    key, value = keys_and_values(12, 4, B=2, G=1)
    append_in_pieces(cache, key, value, [3, 1])
