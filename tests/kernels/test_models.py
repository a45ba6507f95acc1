"""Whole models on the kernels say what they say without them, also where the kernels cannot read a part."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.tolerance import F32_MODEL, as_float64, assert_close
from tests.helpers.toy import random_tokens

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.runtime import native

NAMES = [
    "random:qwen3-shrunk,bits=3,tied=0",  # an embedding that no kernel reads
    "random:qwen2.5-shrunk,bits=6,tied=1",
    "random:qwen3-moe-shrunk",
    "random:qwen3-moe-shrunk,bits=4",
    "random:qwen3-moe-shrunk,bits=3,group=32",
    "random:qwen2-moe-shrunk,bits=4",
    "random:qwen3-moe-shrunk,bits=8,sparse_step=2,norm_topk=0",
]


@pytest.fixture
def logits(monkeypatch):
    """Logits of the reference with its kernels on or off."""

    def of(name, dtype, is_on):
        monkeypatch.setenv(native.VARIABLE, "cpp" if is_on else "off")
        model = load_solution("ref").build_model(load_checkpoint(name, dtype=dtype))
        tokens, cache = random_tokens(3, 1, 70), model.create_kv_cache()
        parts = [model(tokens[:, :69], 0, cache), model(tokens[:, 69:], 69, cache)]
        out = mx.concatenate(parts, axis=1)
        mx.eval(out)
        return out

    return of


@pytest.mark.parametrize("name", NAMES)
def test_float32(logits, name):
    got, want = (logits(name, "float32", is_on) for is_on in (True, False))
    assert_close(got, want, F32_MODEL, legend="[B, L, V]")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", NAMES)
def test_16_bits(logits, name, dtype):
    got, want = as_float64(logits(name, dtype, True)[0]), as_float64(logits(name, "float32", False)[0])
    errors = np.sqrt(np.mean((got - want) ** 2, axis=-1) / np.mean(want**2, axis=-1))
    # The median: where two experts' scores are nearly equal a rounding decides, and such a token is far off.
    assert np.median(errors) < {"bfloat16": 0.06, "float16": 0.0075}[dtype]
