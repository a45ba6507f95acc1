"""Vectors from an engine: what float64 computes, however prompts are cut, cached, preempted and mixed."""

import random
from dataclasses import replace
from functools import cache

import mlx.core as mx
import numpy as np
import pytest
from tests.helpers import qwen_oracle
from tests.helpers.fragile import BrokenError, Fragile
from tests.helpers.serving import make_engine
from tests.helpers.tolerance import F32_MODEL, assert_close

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.models.loading import ANSWERS, with_head
from tiny_llm_lab.serving.async_engine.listener import AddedRequest
from tiny_llm_lab.serving.async_engine.reports import Reports, facts_of
from tiny_llm_lab.serving.pooling_engine import PoolingEngine
from tiny_llm_lab.serving.server.metrics.engine_metrics import EngineMetrics
from tiny_llm_lab.types import (
    DoneEvent,
    QuantizedWeights,
    SamplingParams,
    SchedulerConfig,
    TokenEvent,
    UserError,
)

POOLING = SamplingParams(pooling=True)
MODELS = ["qwen3-shrunk", "qwen3-shrunk,tied=0", "qwen2.5-shrunk", "qwen3-shrunk,bits=4", "qwen3-moe-shrunk"]
# Length of the error of a unit vector: each of some hundred roundings is off by at most 2^-9 (bfloat16) or
# 2^-12 (float16); test_parity.py allows the logits of these models the same.
SIXTEEN_BITS = {"bfloat16": 0.06, "float16": 0.0075}


@cache
def embedder(name, dtype="float32"):
    return with_head(load_checkpoint(f"random:{name}", dtype=dtype), "embed")


def wanted(checkpoint, prompt):
    """The last row in float64."""
    dense = {
        n: w.dequantized() if isinstance(w, QuantizedWeights) else w for n, w in checkpoint.weights.items()
    }
    return np.array(qwen_oracle.logits(checkpoint.config, dense, [list(prompt)])[0, -1])


def pooling_engine(checkpoint, config=None, **options):
    llm = load_solution("ref")
    return PoolingEngine(make_engine(llm, llm.build_model(checkpoint), config, **options))


def run(engine, prompts):
    for name, prompt in prompts.items():
        engine.add(name, prompt, POOLING)
    done = {}
    while engine.has_requests:
        done |= {each.request_id: each.completion for each in engine.step()}
    return done


def unit(vector):
    wide = np.array(vector, np.float64)
    return np.asarray(wide / np.linalg.norm(wide))


@pytest.fixture(params=["off", "cpp"])
def kernels(request, monkeypatch):
    monkeypatch.setenv(native.VARIABLE, request.param)
    return str(request.param)


@pytest.mark.parametrize("name", MODELS)
def test_vectors_are_the_hidden_states_of_the_last_token(name, kernels):
    checkpoint, draw = embedder(name), random.Random(3)
    prompts = {str(n): [draw.randrange(320) for _ in range(n)] for n in (1, 2, 15, 16, 17, 40)}
    done = run(
        pooling_engine(checkpoint, SchedulerConfig(max_num_batched_tokens=11, max_num_seqs=5)), prompts
    )
    for key, prompt in prompts.items():
        assert_close(done[key].vector, wanted(checkpoint, prompt), F32_MODEL, legend="[E]", what=key)


@pytest.mark.parametrize("dtype", list(SIXTEEN_BITS))
@pytest.mark.parametrize("name", ["qwen3-shrunk", "qwen3-shrunk,bits=4"])
def test_16_bit_vectors_are_near(name, dtype, kernels):
    checkpoint, draw = embedder(name, dtype), random.Random(4)
    prompts = {str(n): [draw.randrange(320) for _ in range(n)] for n in (1, 33)}
    done = run(pooling_engine(checkpoint, SchedulerConfig(max_num_batched_tokens=64)), prompts)
    for key, prompt in prompts.items():
        error = np.linalg.norm(unit(done[key].vector) - unit(wanted(checkpoint, prompt)))
        assert error < SIXTEEN_BITS[dtype], key


@pytest.mark.parametrize("seed", range(25))
def test_any_schedule_gives_the_same_vectors(seed):
    """Chunks, shared prefixes, few blocks, priorities, requests that come late or are aborted."""
    draw = random.Random(seed)
    checkpoint = embedder(draw.choice(MODELS))
    budget = draw.choice([1, 3, 16, 50, 200])
    config = SchedulerConfig(
        max_num_batched_tokens=budget,
        max_num_seqs=draw.randint(1, min(budget, 6)),
        max_model_len=48,
        long_prefill_token_threshold=draw.choice([0, 5]),
        policy=draw.choice(["fcfs", "fair", "priority"]),
        step_mode=draw.choice(["mixed", "alternate"]),
    )
    size = draw.choice([2, 8])
    options = {"block_size": size, "num_blocks": draw.choice([48 // size, 256])}
    options["enable_prefix_caching"] = draw.random() < 0.8
    options["async_scheduling"] = draw.random() < 0.5
    engine = pooling_engine(checkpoint, config, **options)
    texts = [[draw.randrange(320) for _ in range(48)] for _ in range(2)]
    prompts = {str(i): draw.choice(texts)[: draw.randint(1, 48)] for i in range(9)}
    waiting, aborted, done = list(prompts), set(), {}
    while waiting or engine.has_requests:
        while waiting and draw.random() < 0.6:
            name = waiting.pop()
            engine.add(name, prompts[name], POOLING, priority=draw.randrange(3))
        if draw.random() < 0.1:
            name = draw.choice(list(prompts))
            aborted |= {name} if engine.abort(name) else set()
        for output in engine.step():
            assert output.request_id not in done and output.completion is not None
            done[output.request_id] = output.completion
        engine.core.scheduler.check()
    assert done.keys() | aborted == prompts.keys() and not done.keys() & aborted
    for key, got in done.items():
        assert_close(got.vector, wanted(checkpoint, prompts[key]), F32_MODEL, legend="[E]", what=key)


def test_a_prefix_is_computed_once_but_for_the_last_token():
    engine, prompt = pooling_engine(embedder("qwen3-shrunk"), block_size=4), list(range(33))
    (first,) = run(engine, {"a": prompt}).values()
    engine.add("b", prompt[:32], POOLING)
    (output,) = engine.step()
    assert output.num_cached_tokens == 28, "of 8 blocks all but the last, whose last token has the vector"
    assert_close(output.completion.vector, wanted(embedder("qwen3-shrunk"), prompt[:32]), F32_MODEL)
    assert output.completion.vector != first.vector


def test_an_output_has_a_vector_and_no_token():
    engine = pooling_engine(embedder("qwen3-shrunk"), SchedulerConfig(4, max_num_seqs=4))
    engine.add("a", list(range(6)), POOLING)
    assert engine.step() == [], "a chunk has no output"
    (output,) = engine.step()
    assert (output.token_ids, output.text, output.completion.finish_reason) == ((), "", "stop")
    assert output.completion.token_ids == () and len(output.completion.vector) == 64
    assert output.events[-1] == DoneEvent(output.completion)
    assert not any(isinstance(each, TokenEvent) for each in output.events)


def test_metrics_count_prompts_and_no_answers():
    engine, metrics = pooling_engine(embedder("qwen3-shrunk")), EngineMetrics()
    metrics.started(facts_of(engine, embedder("qwen3-shrunk").config))
    for name, prompt in {"a": [1, 2, 3], "b": [4, 5]}.items():
        engine.add(name, prompt, POOLING)
        metrics.added(AddedRequest(name, len(prompt), POOLING, 0.0), Reports(engine).queues())
    metrics.produced(engine.step())
    totals = metrics.totals()
    assert (totals.prompt_tokens, totals.generation_tokens, totals.request_success["stop"]) == (5, 0, 2)
    assert sum(totals.time_to_first_token_seconds.counts) == 0


def test_a_score_is_of_two_logits_of_the_model(kernels):
    whole = load_checkpoint("random:qwen3-shrunk,bits=4,tied=0", dtype="float32")
    ids = {"no": 7, "yes": 300}
    tokenizer = type("Words", (), {"encode": lambda self, text: [ids[text]]})()
    scored = with_head(replace(whole, tokenizer=tokenizer), "score")
    (done,) = run(pooling_engine(scored), {"a": [5, 6, 7]}).values()
    want = wanted(whole, [5, 6, 7])[[ids[each] for each in ANSWERS]]
    assert_close(done.vector, want, F32_MODEL, what="the logits of no and yes")


REFUSED = [
    (SamplingParams(), "this model gives vectors"),
    (SamplingParams(pooling=True, temperature=1), "draws no token"),
    (SamplingParams(pooling=True, max_tokens=5), "draws no token"),
]


@pytest.mark.parametrize(("sampling", "says"), REFUSED)
def test_other_requests_are_refused(sampling, says):
    engine = pooling_engine(embedder("qwen3-shrunk"))
    with pytest.raises(UserError, match=says):
        engine.add("a", [1], sampling)
    with pytest.raises(UserError, match="vectors"):
        engine.generate([[1]])
    assert not engine.has_requests


def test_an_engine_that_generates_refuses_pooling():
    llm = load_solution("ref")
    engine = make_engine(llm, llm.build_model(load_checkpoint("random:qwen3-shrunk")))
    with pytest.raises(UserError, match="--task embed"):
        engine.add("a", [1], POOLING)


def test_a_step_that_fails_loses_its_requests_alone():
    llm = load_solution("ref")
    checkpoint = embedder("qwen3-shrunk")
    model = Fragile(llm.build_model(checkpoint))
    engine = PoolingEngine(make_engine(llm, model))
    engine.add("a", [1, 2], POOLING)
    model.error = BrokenError()
    with pytest.raises(BrokenError):
        engine.step()
    model.error = None
    (done,) = run(engine, {"a": [3, 4]}).values()
    assert_close(done.vector, wanted(checkpoint, [3, 4]), F32_MODEL)


def test_weights_that_overflow_give_no_vector_that_looks_right():
    checkpoint = embedder("qwen3-shrunk")
    norm = mx.full((64,), mx.inf)
    broken = replace(checkpoint, weights={**checkpoint.weights, "model.norm.weight": norm})
    (done,) = run(pooling_engine(broken), {"a": [1]}).values()
    assert not np.isfinite(done.vector).all()
