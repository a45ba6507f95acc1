"""Hybrids in bfloat16 and packed: cuts and company change no bit. The fuzz has their answers in an engine."""

from dataclasses import replace
from itertools import pairwise

import mlx.core as mx
import pytest
from tests.helpers.devices import on_cpu

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.types import EngineOptions, QuantizedWeights, SamplingParams, SchedulerConfig, Wanted

NAMES = ["random:qwen3.5-shrunk", "random:qwen3.5-moe-shrunk", "random:qwen3-next-shrunk"]
llm = load_solution("ref")


def with_wide_gates(checkpoint):
    """As MLX's conversions have them: the router and the shared expert's gate of a 4-bit model have 8."""

    def widened(name, w):
        if not isinstance(w, QuantizedWeights) or not name.endswith(("mlp.gate.weight", "_gate.weight")):
            return w
        return QuantizedWeights(*mx.quantize(w.dequantized(), group_size=64, bits=8), 64, 8)

    return replace(checkpoint, weights={name: widened(name, w) for name, w in checkpoint.weights.items()})


def model_of(name, kernels="cpp", dtype="float32"):
    with on_cpu(kernels):
        model = llm.build_model(with_wide_gates(load_checkpoint(name, dtype=dtype)))
    return model


PACKED = "random:qwen3.5-moe-shrunk,bits=4,group=32,value_dim=40"


def in_chunks(model, tokens, size):
    cache = model.create_kv_cache()
    ends = [*range(0, tokens.shape[1], size), tokens.shape[1]]
    parts = [model(tokens[:, start:end], start, cache) for start, end in pairwise(ends)]
    return mx.concatenate(parts, axis=1)


@pytest.mark.parametrize("name", [*NAMES, PACKED, "random:qwen3.5-shrunk,bits=8,group=32,value_dim=32"])
def test_a_cut_and_company_change_no_bit_of_a_logit(name):
    """In bfloat16 a state in another dtype than float32, or rounded at a cut, would show at once."""
    model = model_of(name, dtype="bfloat16")
    tokens = mx.random.randint(0, 320, (3, 90), key=mx.random.key(1))
    whole = model(tokens)
    assert whole.dtype == mx.bfloat16
    for size in (1, 7, 64):
        assert mx.array_equal(in_chunks(model, tokens, size), whole), f"chunks of {size}"
    for row in range(3):
        assert mx.array_equal(in_chunks(model, tokens[row : row + 1], 33)[0], whole[row])


@pytest.mark.parametrize("name", [NAMES[1], f"{NAMES[0]},layers=4"], ids=["a delta net", "attention"])
def test_no_tokens_and_the_last_ones(name):
    """Only in the last layer, of either kind, are there fewer tokens than came in."""
    model = model_of(name, dtype="bfloat16")
    tokens = mx.random.randint(0, 320, (2, 9), key=mx.random.key(2))
    whole = model(tokens)
    for last in (0, 1, 5, 20):
        got = model(tokens, wanted=Wanted(last=last))
        assert mx.array_equal(got, whole[:, max(0, 9 - last) :]), f"the last {last}"
    assert model(tokens, wanted=Wanted(rows=[])).shape == (0, 9, 320)
    assert mx.array_equal(model(tokens, wanted=Wanted(rows=[1])), whole[1:])


def test_states_are_those_of_running_requests():
    """And of snapshots: never more than there is memory for, whatever was aborted between."""
    name = NAMES[0]
    model = model_of(name)
    options = EngineOptions(num_states=3)
    engine = llm.Engine(model, load_checkpoint(name).tokenizer, SchedulerConfig(max_num_seqs=8), options)
    for i, (length, answer) in enumerate([(17, 9), (1, 12), (90, 5), (3, 20), (33, 7), (64, 3)]):
        prompt = [(7 * i + 3 * j) % 300 for j in range(length)]
        engine.add(str(i), prompt, SamplingParams(max_tokens=answer, ignore_eos=True))
    while engine.has_requests:
        engine.step()
        engine.abort("0")
    assert all(set(layer.states) == {0, 1, 2} for layer in engine.core.kv_cache.states)
