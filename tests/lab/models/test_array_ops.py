"""The model on arrays against week 1's, which has its own layers: the same numbers, to the last bit."""

from itertools import pairwise

import mlx.core as mx
import pytest
from tests.helpers.experts import in_dtype, pack
from tests.helpers.toy import QWEN2, QWEN3, random_tokens, toy_weights

from tiny_llm_lab.types import Wanted
from tiny_llm_ref.models.array_ops import ArrayOps
from tiny_llm_ref.models.model import Qwen
from tiny_llm_ref.models.qwen import QwenModel


def weights_of(config, dtype, is_packed):
    weights = in_dtype(toy_weights(config), dtype)
    return {
        name: pack(w) if is_packed and name.endswith(("proj.weight", "embed_tokens.weight")) else w
        for name, w in weights.items()
    }


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
@pytest.mark.parametrize("config", [QWEN3, QWEN2], ids=["qwen3", "qwen2.5"])
def test_both_models_compute_the_same(config, dtype, is_packed):
    weights, tokens = weights_of(config, dtype, is_packed), random_tokens(1, 2, 37)
    models = QwenModel(config, weights), Qwen(config, weights, ArrayOps())
    whole = [model(tokens) for model in models]
    assert whole[1].dtype == dtype and mx.array_equal(*whole)
    caches = [model.create_kv_cache() for model in models]
    for start, end in pairwise((0, 5, 25, 26, 37)):
        parts = [
            model(tokens[:, start:end], start, cache, wanted=Wanted(last=3))
            for model, cache in zip(models, caches, strict=True)
        ]
        assert mx.array_equal(*parts), f"tokens {start} to {end - 1}"
