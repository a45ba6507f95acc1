"""Day 4.3: hybrid models compute what transformers computes, whole and in chunks, alone and in an engine."""

from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from tests.golden.make_hybrid_golden import EVERY, GREEDY_FROM, HYBRIDS, LENGTHS
from tests.helpers.devices import on_cpu
from tests.helpers.golden import golden
from tests.helpers.hybrid_layers import SIZES, rule_alone, rule_of
from tests.helpers.tolerance import EXACT, assert_close
from tests.helpers.toy import random_array

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.types import SamplingParams

# The largest difference of any logit over the largest logit; what was measured is below 1e-5.
RELATIVE = 1e-4

pytestmark = pytest.mark.task("4.3.6")


def assert_logits(got, want):
    assert got.shape == want.shape
    worst = float(np.abs(got - want).max() / np.abs(want).max())
    assert worst < RELATIVE, f"off by {worst:.2g} of the largest logit"


@pytest.mark.parametrize("size", [1, 7, 64, 512])
@pytest.mark.parametrize("name", HYBRIDS)
def test_logits_equal_those_of_transformers_however_the_prompt_is_cut(llm, name, size):
    want = golden(name)
    model = llm.Qwen(*_loaded(name), llm.ArrayOps())
    tokens, cache = want["prompt"].tolist(), model.create_kv_cache()
    ends = [*range(0, len(tokens), size), len(tokens)]
    parts = [model(mx.array([tokens[start:end]]), start, cache) for start, end in pairwise(ends)]
    got = np.array(mx.concatenate(parts, axis=1))[0]
    assert_logits(got[:, ::EVERY], want["every"])
    assert_logits(got[[length - 1 for length in LENGTHS]], want["last"])


def _loaded(name):
    checkpoint = load_checkpoint(name, dtype="float32")
    return checkpoint.config, checkpoint.weights


@pytest.mark.parametrize("kernels", ["cpp", "off"])
def test_greedy_tokens_equal_those_of_transformers(llm, kernels):
    """Through `build_model`, which takes the C++ kernel where there is one."""
    name = HYBRIDS[0]
    want, checkpoint = golden(name), load_checkpoint(name, dtype="float32")
    with on_cpu(kernels):
        model = llm.build_model(checkpoint)
        assert isinstance(model, llm.Qwen)
        sampling = SamplingParams(max_tokens=len(want["greedy"]), ignore_eos=True)
        prompt = want["prompt"][:GREEDY_FROM].tolist()
        (done,) = llm.batch_generate(model, checkpoint.tokenizer, [prompt], sampling=sampling, prefill_step=7)
    assert done.token_ids == tuple(want["greedy"].tolist())


def test_the_kernel_gets_the_weights_as_it_reads_them(llm):
    weights, parts = rule_alone()
    rule, x = rule_of(llm, weights), random_array(50, 3, len(weights["in_proj_a.weight"][0]))
    rows, states = [x[:, part] for part in parts], [llm.no_state(SIZES)]
    calls = []

    def kernel(rows, weights, states, starts):
        calls.append(weights)
        return rule(rows, states, starts)

    out, _ = llm.KernelDeltaRule(kernel, rule)(rows, states, [0, 3])
    assert_close(out, rule(rows, states, [0, 3])[0], EXACT, legend="[T, Hv Dv]")
    (got,) = calls
    assert_close(got.conv, weights["conv1d.weight"].T, EXACT, legend="[K, C]", what="conv")
    for mine, want in ((got.a_log, "A_log"), (got.dt_bias, "dt_bias"), (got.norm, "norm.weight")):
        assert_close(mine, weights[want], EXACT, what=want)
    assert got.eps == rule.norm.eps


@pytest.mark.parametrize("name", [HYBRIDS[0], HYBRIDS[2]])
def test_a_batch_answers_as_each_request_alone(llm, name):
    model = llm.Qwen(*_loaded(name), llm.ArrayOps())
    tokens, tokenizer = golden(name)["prompt"].tolist(), load_checkpoint(name).tokenizer
    prompts = [tokens[start : start + size] for start, size in ((0, 17), (17, 1), (20, 40), (5, 3))]
    sampling = SamplingParams(max_tokens=12, ignore_eos=True)

    def answers(prompts, **settings):
        done = llm.batch_generate(model, tokenizer, prompts, sampling=sampling, **settings)
        return [each.token_ids for each in done]

    alone = [answers([each])[0] for each in prompts]
    assert len(set(alone)) == len(alone)
    assert answers(prompts, batch_size=3, prefill_step=16) == alone
