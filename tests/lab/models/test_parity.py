"""The reference computes what mlx-lm and transformers compute from the same folders."""

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers.checkpoints import SHRUNK
from tests.helpers.golden import golden
from tests.helpers.tolerance import F32_MODEL, as_float64, assert_close

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.types import SamplingParams, Wanted

# To compare the default model too, add "default" here and run the script named below.
GOLDEN_CHECKPOINTS = [*SHRUNK, "random:qwen2-moe-shrunk", "default"]
RECORD = "make_transformers_golden"

# Two to eight bits, groups of 32 and 64, shared heads (so a packed embedding is the head) and others.
PACKED = [
    "random:qwen3-shrunk,bits=4",
    "random:qwen3-shrunk,tied=0,bits=8,group=32",
    "random:qwen2.5-shrunk,bits=4,group=32",
    "random:qwen2.5-shrunk,tied=1,bits=6",
    "random:qwen3-shrunk,bits=3,seed=1",
    "random:llama-shrunk,tied=1,bits=4",
]
# Experts: dense and packed, in all layers and in every other, their weights renormalised or not.
EXPERTS = [
    "random:qwen3-moe-shrunk",
    "random:qwen3-moe-shrunk,norm_topk=0,sparse_step=2,tied=1",
    "random:qwen3-moe-shrunk,bits=4",
    "random:qwen3-moe-shrunk,bits=8,group=32,active=8,seed=1",
    "random:qwen2-moe-shrunk",
    "random:qwen2-moe-shrunk,bits=4,tied=1",
]
# Root mean square of the error over that of the logits, twice the largest that was measured. Each of some
# hundred roundings is off by at most 2^-9 (bfloat16) or 2^-12 (float16), in an order of the engine's own.
SIXTEEN_BITS = {"bfloat16": 0.06, "float16": 0.0075}

NUM_GREEDY = 64


def tokens_of(size, seed=0):
    return mx.array(np.random.default_rng(seed).integers(0, 320, (1, size)).astype(np.int32))


def both(name, dtype="float32"):
    checkpoint = load_checkpoint(name, dtype=dtype)
    ref, mlx_lm = (load_solution(solution).build_model(checkpoint) for solution in ("ref", "mlx-lm"))
    return ref, mlx_lm


def greedy(solution, name, prompt):
    llm = load_solution(solution)
    checkpoint = load_checkpoint(name, dtype="float32")
    sampling = SamplingParams(max_tokens=NUM_GREEDY, ignore_eos=True)
    (done,) = llm.batch_generate(
        llm.build_model(checkpoint), checkpoint.tokenizer, [prompt], sampling=sampling, prefill_step=7
    )
    return done.token_ids


@pytest.mark.parametrize("name", [*SHRUNK, *PACKED, *EXPERTS, "default"])
def test_logits_with_a_cache_equal_those_of_mlx_lm(name):
    ref, mlx_lm = both(name)
    tokens = tokens_of(80)
    caches = [model.create_kv_cache() for model in (ref, mlx_lm)]
    for begin, end in ((0, 33), (33, 34), (34, 80)):
        got, want = (
            model(tokens[:, begin:end], begin, cache)
            for model, cache in zip((ref, mlx_lm), caches, strict=True)
        )
        assert_close(got, want, F32_MODEL, legend="[B, L, V]", dtype=mx.float32)


def relative_error(got, want):
    a, b = as_float64(got), as_float64(want)
    return float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2)))


@pytest.mark.parametrize("dtype", list(SIXTEEN_BITS))
@pytest.mark.parametrize("model", ["qwen3-shrunk", "qwen2.5-shrunk"])
@pytest.mark.parametrize("bits", [16, 4])
def test_16_bit_logits_are_as_near_to_float32_as_those_of_mlx_lm(model, bits, dtype):
    name, tokens = f"random:{model},bits={bits}", tokens_of(48)
    judge, _ = both(name)
    ref, mlx_lm = both(name, dtype)
    assert ref(tokens).dtype == getattr(mx, dtype)
    error, theirs = (relative_error(m(tokens), judge(tokens)) for m in (ref, mlx_lm))
    assert error < SIXTEEN_BITS[dtype] and error < 1.5 * theirs


@pytest.mark.parametrize("name", [*SHRUNK, *PACKED, *EXPERTS, "default"])
def test_greedy_tokens_equal_those_of_mlx_lm(name):
    prompt = np.array(tokens_of(40, seed=1)[0]).tolist()
    mine, theirs = (greedy(solution, name, prompt) for solution in ("ref", "mlx-lm"))
    assert len(mine) == NUM_GREEDY and mine == theirs


@pytest.mark.parametrize("name", GOLDEN_CHECKPOINTS)
@pytest.mark.parametrize("solution", ["ref", "mlx-lm"])
def test_logits_equal_those_of_transformers(name, solution):
    recorded = golden(name, RECORD)
    model = load_solution(solution).build_model(load_checkpoint(name, dtype="float32"))
    logits = model(mx.array(recorded["prompt"])[None], wanted=Wanted(last=len(recorded["logits"])))
    assert_close(logits[0], recorded["logits"], F32_MODEL, legend="[L, V]", what=f"{name}, else run {RECORD}")


@pytest.mark.parametrize("name", GOLDEN_CHECKPOINTS)
def test_greedy_tokens_equal_those_of_transformers(name):
    recorded = golden(name, RECORD)
    assert len(recorded["greedy"]) == NUM_GREEDY
    assert greedy("ref", name, recorded["prompt"].tolist()) == tuple(recorded["greedy"].tolist())
