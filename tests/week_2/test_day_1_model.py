"""Day 2.1: the model that uses the KV cache, and the loop that profits."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.fakes import FakeModel
from tests.helpers.tolerance import F32_MODEL, assert_close
from tests.helpers.toy import EOS, QWEN2, QWEN3, ByteTokenizer, plain_model, random_tokens

from tiny_llm_lab.types import SamplingParams, Wanted

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
