"""Day 2.5: a layer whose operators are fused."""

import mlx.core as mx
import pytest
from tests.helpers.tolerance import F32, as_float64, assert_close
from tests.helpers.toy import random_array

from tiny_llm_lab.models.loading import load_checkpoint
from tiny_llm_lab.types import QuantizedWeights


def layer_of(llm, name):
    """The first layer of a small random model, and its configuration."""
    checkpoint = load_checkpoint(name, dtype="float32")
    return llm.build_model(checkpoint).layers[0], checkpoint.config


@pytest.mark.task("2.5.6")
@pytest.mark.parametrize("keep", [None, 3, 1])
@pytest.mark.parametrize(
    "name", ["random:qwen3-shrunk", "random:qwen2.5-shrunk", "random:qwen3-shrunk,bits=4"]
)
def test_a_fused_layer_is_the_layer(llm, kernels, name, keep):
    layer, config = layer_of(llm, name)
    past, x = (random_array(seed, 1, length, config.hidden_size) for seed, length in ((1, 5), (2, 4)))
    plain, fused = llm.TinyKvFullCache(), llm.TinyKvFullCache()
    layer(past, 0, plain)
    llm.fused_layer(kernels, layer.parts, past, 0, fused)
    got = llm.fused_layer(kernels, layer.parts, x, 5, fused, keep)
    assert_close(got, layer(x, 5, plain, "causal", keep), F32, legend="[B, keep, E]", dtype=mx.float32)
    assert_close(fused.fetch()[0], plain.fetch()[0], F32, legend="[B, G, S, D]", dtype=mx.float32)


@pytest.mark.task("2.5.6")
@pytest.mark.parametrize("length", [1, 5])
@pytest.mark.parametrize("mask", [None, "causal"])
def test_a_mask_means_the_same_with_and_without_kernels(llm, request, length, mask):
    layer, config = layer_of(llm, "random:qwen3-shrunk")
    x = random_array(3, 1, length, config.hidden_size)
    want = as_float64(layer(x, mask=mask))
    request.getfixturevalue("kernels_on")
    assert_close(layer(x, mask=mask), want, F32, legend="[B, L, E]")


@pytest.mark.task("2.5.6")
@pytest.mark.parametrize("is_on", [False, True])
def test_a_layer_rejects_masks_that_it_does_not_know(llm, request, is_on):
    layer, config = layer_of(llm, "random:qwen3-shrunk")
    if is_on:
        request.getfixturevalue("kernels_on")
    for length in (1, 5):
        with pytest.raises(ValueError):
            layer(random_array(3, 1, length, config.hidden_size), mask="full")


@pytest.mark.task("2.5.6")
def test_what_can_be_fused(llm):
    def weights(bits, group=64, **other):
        names = [f"self_attn.{n}_proj" for n in "qkvo"] + [f"mlp.{n}_proj" for n in ("gate", "up", "down")]
        kinds = dict.fromkeys(names, (bits, group))
        kinds |= {name.replace("__", "."): kind for name, kind in other.items()}
        blank = mx.zeros((1, 1))
        return {
            f"{name}.weight": QuantizedWeights(blank, blank, blank, kind[1], kind[0]) if kind[0] else blank
            for name, kind in kinds.items()
        }

    assert all(llm.can_fuse(weights(bits)) for bits in (0, 4, 8))
    assert not llm.can_fuse(weights(3)) and not llm.can_fuse(weights(4, 16))
    assert llm.can_fuse(weights(4, mlp__down_proj=(8, 32))), "down stands alone"
    assert not llm.can_fuse(weights(4, self_attn__v_proj=(8, 64))), "q, k and v come from one operator"
    assert not llm.can_fuse(weights(4, mlp__up_proj=(0, 64))), "so do gate and up"
