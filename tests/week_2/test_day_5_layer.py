"""Day 2.5: a layer whose operators are fused."""

from dataclasses import replace

import mlx.core as mx
import pytest
from tests.helpers.devices import on_cpu
from tests.helpers.tolerance import F32, F32_MODEL, assert_close
from tests.helpers.toy import QWEN2, QWEN3, random_array, random_tokens, toy_weights

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.types import ALL, Wanted

pytestmark = pytest.mark.task("2.5.6")


@pytest.fixture
def layers(llm, kernels_on):
    """layers(name, kernels): the first layer of a small random model, of week 1 and on operators."""

    def of(name, kernels):
        checkpoint = load_checkpoint(name, dtype="float32")
        plain = llm.QwenModel(checkpoint.config, checkpoint.weights)
        with on_cpu(kernels):
            model = llm.build_model(checkpoint)
        assert model.ops.name == kernels, "build_model asks for operators"
        return plain.layers[0], model.layers[0], checkpoint.config.hidden_size

    return of


@pytest.mark.parametrize("keep", [ALL, 3, 1])
@pytest.mark.parametrize(
    "name", ["random:qwen3-shrunk", "random:qwen2.5-shrunk", "random:qwen3-shrunk,bits=4"]
)
def test_a_fused_layer_is_the_layer(llm, layers, name, keep):
    for kernels in ("off", "cpp"):
        plain, fused, size = layers(name, kernels)
        x, cache = random_array(1, 1, 12, size), llm.TinyKvFullCache(fused.mixer.ops)
        # Each chunk reads what those before it stored. The layer of week 1 needs no cache for all at once.
        for start, end in ((0, 5), (5, 9), (9, 12)):
            got = fused(x[:, start:end], [start], cache, Wanted(keep))
            want = plain(x[:, :end], [0], wanted=Wanted(min(keep, end - start)))
            assert_close(got, want, F32, legend="[B, keep, E]", dtype=mx.float32)
            assert cache.offset == end, "all tokens are stored, whatever goes on"


def test_the_model_builds_every_layer_by_its_method(llm, kernels_on):
    checkpoint, made = load_checkpoint("random:qwen3-shrunk", dtype="float32"), []

    class Counting(llm.Qwen):
        def layer(self, weights, *others):
            made.append(super().layer(weights, *others))
            return made[-1]

    with on_cpu("cpp"):
        ops = llm.build_model(checkpoint).ops
    assert Counting(checkpoint.config, checkpoint.weights, ops).layers == made
    assert len(made) == checkpoint.config.num_hidden_layers


@pytest.mark.parametrize("config", [QWEN3, replace(QWEN2, rms_norm_eps=0.3)], ids=["qwen3", "qwen2.5"])
def test_the_model_on_operators_is_the_model(llm, config):
    weights, tokens = toy_weights(config), random_tokens(40, 2, 12)
    plain, model = llm.QwenModel(config, weights), llm.Qwen(config, weights, llm.ArrayOps())
    want = plain(tokens)
    assert_close(model(tokens), want, F32_MODEL, legend="[B, L, V]", dtype=mx.float32)
    assert_close(model(tokens, 7), plain(tokens, 7), F32_MODEL, what="logits from position 7 on")
    for keep in (0, 1, 99):
        assert_close(model(tokens, wanted=Wanted(keep)), want[:, max(0, 12 - keep) :], F32_MODEL)
    cache = model.create_kv_cache()
    parts = [model(tokens[:, start:end], start, cache) for start, end in ((0, 5), (5, 6), (6, 12))]
    assert_close(mx.concatenate(parts, axis=1), want, F32_MODEL, what="in chunks")
    assert all(layer.storage is model.ops and layer.offset == 12 for layer in cache)
    with pytest.raises(ValueError):
        model(tokens, 11, cache)
