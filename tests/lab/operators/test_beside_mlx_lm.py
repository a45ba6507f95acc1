"""On MLX's operators the reference computes what mlx-lm does: to the last bit, but for experts."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.any_order import check_in_any_order
from tests.helpers.any_order_caches import AnyBatch, AnyPages
from tests.helpers.tolerance import EXACT, Tolerance, as_float64, assert_close

import tiny_llm_ref
from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.native.cpp_ops import CppOps
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.runtime.task_names import TaskNames

# mlx-lm sums a token's experts in another order, which rounds float32 differently.
EXPERTS = Tolerance(0, 2e-5)
MODELS = [
    ("random:qwen2.5-shrunk", EXACT),
    ("random:qwen2.5-shrunk,bits=4,group=32", EXACT),
    ("random:qwen3-shrunk", EXACT),
    ("random:qwen3-shrunk,bits=4", EXACT),
    ("random:qwen3-moe-shrunk", EXPERTS),
    ("random:qwen3-moe-shrunk,bits=4", EXPERTS),
]


def logits_of(model, tokens, ends):
    """The logits of every chunk that ends at one of `ends`."""
    cache, start, found = model.create_kv_cache(), 0, []
    for end in ends:
        found.append(model(tokens[:, start:end], start, cache))
        start = end
    return found


@pytest.mark.parametrize(("name", "tolerance"), MODELS)
def test_logits_are_those_of_mlx_lm(name, tolerance, monkeypatch):
    """Of a chunk, of one across the growth of both caches, and of single tokens."""
    monkeypatch.setenv(native.VARIABLE, "mlx")
    checkpoint = load_checkpoint(name, dtype="float32")
    ref, mlx_lm = (load_solution(solution).build_model(checkpoint) for solution in ("ref", "mlx-lm"))
    assert isinstance(ref.ops, MlxOps)
    tokens = mx.array(np.random.default_rng(1).integers(0, 320, (1, 270)).astype(np.int32))
    ends = [93, 100, 262, *range(263, 271)]
    pairs = zip(logits_of(ref, tokens, ends), logits_of(mlx_lm, tokens, ends), strict=True)
    for end, (got, want) in zip(ends, pairs, strict=True):
        assert_close(got, as_float64(want), tolerance, dtype=mx.float32, what=f"the chunk that ends at {end}")


# Caches on the operators of a model, under calls in any order: what is kept between steps is right


LLM = TaskNames(tiny_llm_ref)


@pytest.fixture(params=["cpp", "mlx", "mlx with masks"])
def any_ops(request):
    if request.param == "cpp":
        return CppOps(native.load("tiny_llm_ref"))
    return MlxOps(widens=True, masks=request.param != "mlx")


def test_a_batch_in_any_order(any_ops):
    check_in_any_order(lambda: AnyBatch(LLM, any_ops, may_reserve=True), examples=15)


@pytest.mark.parametrize("kv_bits", [None, 8])
def test_pages_in_any_order(any_ops, kv_bits):
    check_in_any_order(lambda: AnyPages(LLM, any_ops, kv_bits), examples=6, steps=20)
