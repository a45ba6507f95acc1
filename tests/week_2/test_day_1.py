"""Day 2.1: the KV cache of one request, and the model that uses it."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.fakes import FakeModel
from tests.helpers.tolerance import EXACT, F32_MODEL, active_bytes, assert_close, peak_bytes
from tests.helpers.toy import EOS, QWEN2, QWEN3, ByteTokenizer, plain_model, random_array, random_tokens

from tiny_llm_lab.types import SamplingParams, Wanted

# The task of each test that names no other.
pytestmark = pytest.mark.task("2.1.1")


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


@pytest.mark.parametrize("sizes", [[1], [150], [5, 300], [5, 3, 1, 1], [63, 1, 1, 63, 1, 200], [64, 64, 65]])
@pytest.mark.parametrize("B", [1, 3])
def test_cache_returns_everything_stored(llm, sizes, B):
    key, value = keys_and_values(1, sum(sizes), B)
    append_in_pieces(llm.TinyKvFullCache(), key, value, sizes)


def test_cache_keeps_the_dtype(llm):
    key, value = keys_and_values(2, 3, dtype=mx.bfloat16)
    out = llm.TinyKvFullCache().update_and_fetch(key, value)
    assert_close(out[0], key, EXACT, dtype=mx.bfloat16)
    assert_close(out[1], value, EXACT, dtype=mx.bfloat16)


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


def test_cache_does_not_hoard(llm):
    cache = llm.TinyKvFullCache()
    key, value = keys_and_values(5, 1000, D=64)
    mx.eval(key, value)
    before = active_bytes()
    cache.update_and_fetch(key, value)
    cache.materialize()
    assert active_bytes() - before < 2.5 * (key.nbytes + value.nbytes)


@pytest.mark.parametrize(("L", "want"), [(1, None), (2, "causal"), (128, "causal")])
def test_cache_masks_several_new_tokens(llm, L, want):
    cache = llm.TinyKvFullCache()
    assert cache.attention_mask(L) == want
    cache.update_and_fetch(*keys_and_values(6, 4))
    assert cache.attention_mask(L) == want


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


@pytest.mark.parametrize("n", [-1, 6, 100])
def test_cache_rejects_a_rewind_beyond_its_start(llm, n):
    cache = llm.TinyKvFullCache()
    cache.update_and_fetch(*keys_and_values(9, 5))
    with pytest.raises(ValueError):
        cache.rewind(n)
    assert cache.offset == 5


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


# The model that uses the KV cache, and the loop that profits


CONFIGS = pytest.mark.parametrize("config", [QWEN3, QWEN2], ids=lambda config: config.model_type)
TOKENIZER = ByteTokenizer()


@pytest.mark.task("2.1.2")
@CONFIGS
def test_model_makes_one_cache_per_layer(llm, config):
    model = plain_model(llm, config)
    first, second = model.create_kv_cache(), model.create_kv_cache()
    assert len(first) == config.num_hidden_layers
    assert len({id(cache) for cache in first + second}) == 2 * len(first)
    assert [cache.offset for cache in first] == [0] * len(first)


@pytest.mark.task("2.1.2")
@CONFIGS
@pytest.mark.parametrize("sizes", [[12], [1] * 12, [5, 7], [7, 5], [3, 1, 8], [11, 1]])
def test_model_with_a_cache_equals_the_model_without(llm, config, sizes):
    model, tokens = plain_model(llm, config), random_tokens(20, 2, 12)
    want = model(tokens)
    cache, pieces, start = model.create_kv_cache(), [], 0
    for size in sizes:
        pieces.append(model(tokens[:, start : start + size], start, cache))
        start += size
        assert [layer.offset for layer in cache] == [start] * len(cache)
    assert_close(mx.concatenate(pieces, axis=1), want, F32_MODEL, legend="[B, L, V]", dtype=mx.float32)


@pytest.mark.task("2.1.2")
@pytest.mark.parametrize("keep", [0, 1, 3])
def test_model_keeps_the_last_logits_and_stores_all_tokens(llm, keep):
    model, tokens = plain_model(llm), random_tokens(22, 1, 9)
    cache = model.create_kv_cache()
    got = model(tokens, 0, cache, wanted=Wanted(last=keep))
    assert_close(got, model(tokens)[:, 9 - keep :], F32_MODEL, legend="[B, n, V]")
    assert [layer.offset for layer in cache] == [9, 9]


@pytest.mark.task("2.1.2")
@pytest.mark.parametrize("offset", [0, 4, 6, 10])
def test_model_rejects_an_offset_that_the_cache_does_not_have(llm, offset):
    model, tokens = plain_model(llm), random_tokens(23, 1, 5)
    cache = model.create_kv_cache()
    model(tokens, 0, cache)
    with pytest.raises(ValueError):
        model(tokens, offset, cache)
    assert [layer.offset for layer in cache] == [5, 5]


@pytest.mark.task("2.1.2")
def test_model_goes_on_after_a_rewind(llm):
    model, tokens, other = plain_model(llm), random_tokens(24, 1, 8), random_tokens(25, 1, 4)
    cache = model.create_kv_cache()
    model(tokens, 0, cache)
    for layer in cache:
        layer.rewind(3)
    got = model(other, 5, cache)
    assert_close(got, model(mx.concatenate([tokens[:, :5], other], axis=1))[:, 5:], F32_MODEL)


def generate(llm, model, prompt, **settings):
    return list(llm.simple_generate_with_kv_cache(model, TOKENIZER, prompt, **settings))


@pytest.mark.task("2.1.3")
@CONFIGS
@pytest.mark.parametrize("prompt", ["a", "once upon a time"])
def test_cached_loop_gives_the_same_tokens(llm, config, prompt):
    model = plain_model(llm, config)
    got = generate(llm, model, prompt, max_tokens=12)
    want = list(llm.simple_generate(model, TOKENIZER, prompt, max_tokens=12))
    assert [(event.token_id, event.text) for event in got] == [(event.token_id, event.text) for event in want]


@pytest.mark.task("2.1.3")
@pytest.mark.parametrize("prompt", ["a", "abc", "a longer prompt"])
def test_cached_loop_shows_every_token_once(llm, prompt):
    model, n = FakeModel(), len(prompt)
    events = generate(llm, model, prompt, max_tokens=5)
    want = model.answer_to(prompt.encode(), 5)
    assert [event.token_id for event in events] == want
    assert [call.tokens[0] for call in model.calls] == [list(prompt.encode()), *([t] for t in want[:4])]
    assert [call.offset for call in model.calls] == [0, n, n + 1, n + 2, n + 3]


@pytest.mark.task("2.1.3")
def test_cached_loop_asks_for_no_more_than_the_last_logits(llm):
    model = FakeModel()
    generate(llm, model, "hello", max_tokens=3)
    assert [call.last for call in model.calls] == [1, 1, 1]


@pytest.mark.task("2.1.3")
def test_cached_loop_samples(llm):
    model, prompt = plain_model(llm), "once upon"
    sampler = llm.Sampler(SamplingParams(temperature=1.0, seed=3))
    got = generate(llm, model, prompt, sampler=sampler, max_tokens=8)
    want = llm.simple_generate(model, TOKENIZER, prompt, sampler, max_tokens=8)
    assert [event.token_id for event in got] == [event.token_id for event in want]


@pytest.mark.task("2.1.3")
def test_cached_loop_ends_before_the_end_token_and_keeps_the_tail(llm):
    events = generate(llm, FakeModel({"ab": [120, "é".encode()[0], EOS]}), "ab")
    assert [event.text for event in events] == ["x", "", "\N{REPLACEMENT CHARACTER}"]
    assert events[-1].token_id is None
    with pytest.raises(ValueError):
        generate(llm, FakeModel(), "")


@pytest.mark.task("2.1.3")
def test_cached_loops_do_not_share_a_cache(llm):
    model = FakeModel()
    first = llm.simple_generate_with_kv_cache(model, TOKENIZER, "one", max_tokens=4)
    second = llm.simple_generate_with_kv_cache(model, TOKENIZER, "two", max_tokens=4)
    pairs = [(a.token_id, b.token_id) for a, b in zip(first, second, strict=True)]
    assert pairs == list(zip(model.answer_to(b"one", 4), model.answer_to(b"two", 4), strict=True))
    assert np.array(pairs).shape == (4, 2)
