"""Day 2.8: keys and values of a paused prompt in 8 bits."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.prefills import BYTES_OF_A_TOKEN, D, G, arrival, computed
from tests.helpers.tolerance import as_float64
from tests.helpers.toy import random_array, random_tokens, toy_model


def filled(llm, keys, values):
    layer = llm.TinyKvFullCache()
    layer.update_and_fetch(keys, values)
    return layer


def round_trip(llm, keys, values):
    layer = filled(llm, keys, values)
    packed = llm.PackedKv(layer)
    packed.restore(layer)
    return layer.fetch()


def largest(x, axis):
    """The largest number of each group that shares a scale."""
    return np.abs(as_float64(x)).max(axis=axis, keepdims=True)


@pytest.mark.task("2.8.4")
@pytest.mark.parametrize("shape", [(1, 2, 1, 8), (1, 2, 50, 16), (1, 3, 7, 5)])
def test_every_number_is_off_by_at_most_half_a_step_of_its_scale(llm, shape):
    keys, values = random_array(1, *shape), 3 * random_array(2, *shape)
    for got, want, axis in zip(round_trip(llm, keys, values), (keys, values), (2, 3), strict=True):
        half_steps = largest(want, axis) / 254
        off = np.abs(as_float64(got) - as_float64(want))
        # Half a step, and the rounding of a float32 quotient of up to 127.
        assert (off <= half_steps * (1 + 254 * 2**-23)).all(), (off / half_steps).max()


@pytest.mark.task("2.8.4")
def test_what_is_large_leaves_the_rest_exact(llm):
    # With a scale for each token of the keys the other dimensions would all become 0, and with one for each
    # dimension of the values the other tokens.
    keys, values = random_array(1, 1, G, 20, D), random_array(2, 1, G, 20, D)
    keys[..., 3], values[:, :, 7] = 1000.0, 1000 * values[:, :, 7]
    off = [
        np.abs(as_float64(got) - as_float64(want))
        for got, want in zip(round_trip(llm, keys, values), (keys, values), strict=True)
    ]
    assert off[0].max() < 4 / 254, "the other dimensions of the keys are below 4"
    assert np.delete(off[1], 7, axis=2).max() < 4 / 254, "the other tokens' values are below 4"


@pytest.mark.task("2.8.4")
def test_zeros_stay_zeros(llm):
    keys, values = mx.zeros((1, G, 5, D)), random_array(1, 1, G, 5, D)
    values[:, :, 2] = 0.0
    got_keys, got_values = round_trip(llm, keys, values)
    assert not np.array(got_keys).any() and not np.array(got_values[:, :, 2]).any()
    assert np.isfinite(np.array(got_values)).all()


@pytest.mark.task("2.8.4")
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_the_dtype_comes_back(llm, dtype):
    shape = (1, G, 5, D)
    got = round_trip(llm, random_array(1, *shape, dtype=dtype), random_array(2, *shape, dtype=dtype))
    assert [part.dtype for part in got] == [dtype, dtype]
    assert [part.shape for part in got] == [shape, shape]


@pytest.mark.task("2.8.4")
def test_packing_gives_the_layer_back_and_counts_bytes(llm):
    length = 64
    layer = filled(llm, random_array(1, 1, G, length, D), random_array(2, 1, G, length, D))
    packed = llm.PackedKv(layer)
    assert layer.offset == 0 and layer.keys.size == 0, "its memory is given back"
    assert packed.unpacked_nbytes == 2 * 4 * G * length * D
    # A byte for each number; a float32 for each head and dimension of the keys, head and token of the values.
    assert packed.nbytes == 2 * G * length * D + 4 * G * D + 4 * G * length
    assert packed.unpacked_nbytes / packed.nbytes > 3.4


@pytest.mark.task("2.8.4")
def test_an_empty_layer_cannot_be_packed(llm):
    with pytest.raises(ValueError):
        llm.PackedKv(llm.TinyKvFullCache())


@pytest.mark.task("2.8.4")
def test_a_paused_prompt_is_packed_and_restored(llm):
    paused, prefill = llm.PausedPrefills(kv_bits=8), computed(0, 40)
    before = [as_float64(part) for part in prefill.stored]
    paused.add(prefill, arrival(0))
    assert not prefill.holds_memory
    assert 0 < paused.nbytes < 0.4 * 40 * BYTES_OF_A_TOKEN
    assert paused.resume(0.0) is prefill and prefill.offset == 40
    for now, was in zip(prefill.stored, before, strict=True):
        assert now.shape == was.shape
        assert np.abs(as_float64(now) - was).max() <= np.abs(was).max() / 254 * (1 + 254 * 2**-23)
    paused.add(prefill, arrival(0))
    paused.release()
    assert not prefill.holds_memory and paused.nbytes == 0


@pytest.mark.task("2.8.4")
@pytest.mark.parametrize("seed", range(4))
def test_logits_behind_a_packed_prompt_are_close(llm, seed):
    # 50 tokens are packed, 10 follow. Errors of up to half a step move the logits of this model by 0.9 to
    # 1.2 % of their spread, root mean square; one scale for a layer by 1.2 to 2.2 %, 4 bits by 15 to 23 %.
    model, tokens = toy_model(llm), random_tokens(seed, 1, 60)
    logits = []
    for is_packed in (False, True):
        cache = model.create_kv_cache()
        model(tokens[:, :50], 0, cache)
        if is_packed:
            for layer in cache:
                llm.PackedKv(layer).restore(layer)
        logits.append(as_float64(model(tokens[:, 50:], 50, cache)))
    off = np.sqrt(np.mean((logits[1] - logits[0]) ** 2)) / logits[0].std()
    assert 0 < off < 0.015, f"the logits are off by {off:.2%} of their spread"
