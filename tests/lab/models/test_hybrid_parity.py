"""Hybrids compute what transformers and mlx-lm compute, whole and in chunks, alone and in a batch."""

from itertools import pairwise, product
from typing import cast

import mlx.core as mx
import numpy as np
import pytest
from tests.golden.make_hybrid_golden import EVERY, GREEDY_FROM, HYBRIDS, LENGTHS
from tests.helpers import hybrid_oracle
from tests.helpers.delta_nets import by_operator
from tests.helpers.devices import on_cpu
from tests.helpers.golden import golden

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.types import Prompt, SamplingParams, Wanted

# MLX's conversions: packed, with norms that have their 1, and inputs of Qwen3-Next still fused.
PACKED = [
    "random:qwen3.5-shrunk,bits=4,group=32,value_dim=32",
    "random:qwen3.5-moe-shrunk,bits=8,group=32,value_dim=40",
    "random:qwen3-next-shrunk,bits=4,group=32,value_dim=40",
]
CUTS = [1, 7, 64, 512]
# The largest difference of any logit over the largest logit; what was measured is below 1e-5.
RELATIVE = 1e-4


def model_of(name, kernels="cpp"):
    with on_cpu(kernels):
        return load_solution("ref").build_model(load_checkpoint(name, dtype="float32"))


def in_chunks(model, tokens, size):
    cache, length = model.create_kv_cache(), tokens.shape[1]
    ends = [*range(0, length, size), length]
    parts = [model(mx.array(tokens[:, start:end]), start, cache) for start, end in pairwise(ends)]
    return np.array(mx.concatenate(parts, axis=1))


def relative(got, want):
    assert got.shape == want.shape
    return float(np.abs(got - want).max() / np.abs(want).max())


@pytest.mark.parametrize(
    ("kernels", "size"),
    # The last chunk of several is shorter.
    [*product(("cpp", "off"), (*CUTS, 0)), *product(("mlx", "mlx operator"), (100, 0))],
)
@pytest.mark.parametrize("name", HYBRIDS)
def test_logits_equal_those_of_transformers_however_the_prompt_is_cut(name, size, kernels, monkeypatch):
    if kernels == "mlx operator":
        by_operator(monkeypatch)
    want, model = golden(name), model_of(name, kernels.split()[0])
    tokens = want["prompt"][None]
    got = (in_chunks(model, tokens, size) if size else np.array(model(mx.array(tokens))))[0]
    assert relative(got[:, ::EVERY], want["every"]) < RELATIVE
    assert relative(got[[length - 1 for length in LENGTHS]], want["last"]) < RELATIVE


@pytest.mark.parametrize("name", HYBRIDS)
def test_prompts_of_any_length(name):
    want, model = golden(name), model_of(name)
    for length, last in zip(LENGTHS, want["last"], strict=True):
        tokens = want["prompt"][:length]
        got = np.array(model(mx.array(tokens)[None], wanted=Wanted(last=1)))[0]
        assert relative(got, last[None]) < RELATIVE


@pytest.mark.parametrize("kernels", ["cpp", "mlx", "off"])
@pytest.mark.parametrize("name", [*HYBRIDS, *PACKED])
def test_logits_equal_those_of_float64(name, kernels):
    checkpoint = load_checkpoint(name, dtype="float32")
    tokens = np.random.default_rng(2).integers(0, 320, (2, 70)).astype(np.int32)
    got = in_chunks(model_of(name, kernels), tokens, 33)
    assert relative(got, hybrid_oracle.logits(checkpoint.config, checkpoint.weights, tokens)) < RELATIVE


def greedy(model, name, prompts, max_tokens=24, **settings):
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    tokenizer = load_checkpoint(name).tokenizer
    done = load_solution("ref").batch_generate(model, tokenizer, prompts, sampling=sampling, **settings)
    return [each.token_ids for each in done]


@pytest.mark.parametrize("name", HYBRIDS)
def test_greedy_tokens_equal_those_of_transformers(name):
    want = golden(name)
    prompt = want["prompt"][:GREEDY_FROM].tolist()
    (got,) = greedy(model_of(name), name, [prompt], len(want["greedy"]), prefill_step=7)
    assert got == tuple(want["greedy"].tolist())


@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("name", HYBRIDS)
def test_a_batch_answers_as_each_request_alone(name, ahead):
    """Rows join and leave, and the last row moves into a gap; prompts are cut in other places."""
    model, prompt = model_of(name), golden(name)["prompt"].tolist()
    parts = ((0, 17, 24), (17, 1, 5), (20, 90, 9), (5, 3, 30), (40, 33, 2))  # each ends at another step
    prompts = [
        Prompt(prompt[start : start + size], SamplingParams(max_tokens=most, ignore_eos=True))
        for start, size, most in parts
    ]
    alone = [greedy(model, name, [each])[0] for each in prompts]
    assert len(set(alone)) == len(alone)
    settings = {"batch_size": 3, "prefill_step": 16, "async_scheduling": ahead}
    assert greedy(model, name, prompts, **settings) == alone


@pytest.mark.parametrize("name", [*HYBRIDS, *PACKED])
def test_logits_equal_those_of_mlx_lm(name):
    from mlx_lm.utils import load_model

    checkpoint = load_checkpoint(name, dtype="float32")
    # It knows no type of text alone.
    network, _ = load_model(checkpoint.path, model_config={"model_type": checkpoint.config.model_type})
    network.set_dtype(mx.float32)
    tokens = mx.array(np.random.default_rng(1).integers(0, 320, (1, 130)).astype(np.int32))
    want = np.array(cast(mx.array, network(tokens)))
    assert relative(np.array(load_solution("ref").build_model(checkpoint)(tokens)), want) < RELATIVE
