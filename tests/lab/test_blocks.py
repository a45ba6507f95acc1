"""Weights in blocks: every kind of model computes the bits that it computes on rows."""

import random

import mlx.core as mx
import pytest
from tests.helpers.devices import on_cpu

import tiny_llm_ref
from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.models.loading import load_checkpoint
from tiny_llm_lab.serving.options.engine_settings import ModelSettings
from tiny_llm_lab.serving.options.model_options import load
from tiny_llm_lab.types import QuantizedWeights

KINDS = ("qwen3-shrunk", "qwen2.5-shrunk", "qwen3-moe-shrunk", "qwen3.5-shrunk", "qwen3.5-moe-shrunk")


@pytest.fixture(autouse=True)
def _kernels():
    with on_cpu("cpp"):
        yield


@pytest.mark.parametrize("seed", range(15))
def test_a_model_in_blocks_gives_the_bits_of_the_same_in_rows(seed):
    draw = random.Random(seed)
    kind, bits = KINDS[seed % len(KINDS)], draw.choice(("", ",bits=4,group=32", ",bits=8,group=32"))
    width = ",value_dim=32" if kind.startswith("qwen3.5") else ""  # a multiple of the group
    name = f"random:{kind}{bits}{width}{draw.choice(('', ',tied=1'))}"
    found, checkpoint = load(ModelSettings(name)), load_checkpoint(name)
    in_rows = tiny_llm_ref.build_model(checkpoint)
    prompt = [draw.randrange(checkpoint.config.vocab_size) for _ in range(draw.choice((1, 3, 9, 70)))]
    answers = []
    for model in (found.model, in_rows):
        cache = model.create_kv_cache()
        answers.append([model(mx.array([prompt]), 0, cache)])
        answers[-1] += [model(mx.array([[token]]), len(prompt) + token, cache) for token in range(2)]
    assert all(mx.array_equal(*pair) for pair in zip(*answers, strict=True)), name
    matrices = [w for name, w in found.checkpoint.weights.items() if isinstance(w, QuantizedWeights)]
    assert len(matrices) > 10 and all(w.in_blocks for w in matrices)


def test_memory_holds_no_matrix_twice_while_a_model_is_laid_out():
    checkpoint = load_checkpoint("random:qwen3-shrunk,bits=4")
    ops = tiny_llm_ref.build_model(checkpoint).ops
    weights = dict(checkpoint.weights)
    made = native.laid_out(ops, weights)
    assert not weights and list(made) == list(checkpoint.weights)
    assert native.laid_out(None, made) is made, "plain arrays stay rows"
