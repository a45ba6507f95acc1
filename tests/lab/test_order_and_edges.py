"""Two things that touch one value, the one that ends a loop, both sides of a boundary, layers in company.

Each row is a mistake that people make and that the other tests let pass.
"""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import AsyncMock, Mock

import mlx.core as mx
import numpy as np
import pytest
from starlette.responses import PlainTextResponse
from starlette.testclient import TestClient
from tests.helpers.checkpoints import copy_of, edit_tensors
from tests.helpers.devices import on_cpu
from tests.helpers.fake_engine import FakeEngine, start_fake
from tests.helpers.hybrids import HYBRID
from tests.helpers.toy import ByteTokenizer, toy_checkpoint
from tests.week_3.test_day_9_core import Repeater

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.runtime.models.config.fields import one_line
from tiny_llm_lab.runtime.solution import load_serving
from tiny_llm_lab.runtime.structured.grammars import Grammars
from tiny_llm_lab.runtime.structured.json_schema.schema_pass import short
from tiny_llm_lab.serving.async_engine.reports import facts_of
from tiny_llm_lab.serving.building import build_engine
from tiny_llm_lab.serving.options.engine_settings import EngineSettings
from tiny_llm_lab.serving.options.model_options import Loaded
from tiny_llm_lab.serving.picture_queue import PictureQueue
from tiny_llm_lab.serving.server.app import create_app
from tiny_llm_lab.serving.server.guard import Guard
from tiny_llm_lab.serving.server.run_server import startup_line
from tiny_llm_lab.serving.server.schemas.responses import _reasoning
from tiny_llm_lab.serving.server.settings import ServerSettings
from tiny_llm_lab.types import (
    Arrival,
    EngineOptions,
    Prompt,
    SamplingParams,
    SchedulerConfig,
    StructuredOutputs,
    UserError,
)

VOCAB, PROMPT = 300, [7, 9, 7]
CONFIG = SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=4)


# Order


def forced(row, prompt, answer):
    """The caller's processor: token 7 and no other, whatever the row holds."""
    return mx.where(mx.arange(len(row)) == 7, mx.array(5.0), -mx.inf)


def doubled(row, prompt, answer):
    return row * 2


PROCESSORS = [
    (forced, {"logit_bias": {7: -100.0}}, 7, 5.0),
    (forced, {"repetition_penalty": 2.0}, 7, 5.0),
    (doubled, {"logit_bias": {7: 3.0}}, 7, 8.0),
    (doubled, {"presence_penalty": 1.0}, 9, 0.0),
    (doubled, {"repetition_penalty": 2.0}, 7, 1.0),
    (doubled, {"logit_bias": {9: 4.0}, "repetition_penalty": 2.0}, 9, 5.0),
]


@pytest.mark.parametrize(("processor", "sampling", "token", "want"), PROCESSORS)
def test_the_callers_processors_come_after_the_penalties(llm, processor, sampling, token, want):
    sequence = llm.TokenSequence("r", PROMPT)
    sequence.advance(len(PROMPT), [9])
    arrival = Arrival(0, Prompt(PROMPT, SamplingParams(**sampling)), 0.0)
    state = llm.RequestState(sequence, llm.Answer(ByteTokenizer(), arrival, PROMPT, 64), None, [processor])
    [row] = state.process(mx.ones((1, VOCAB)))
    assert row[token].item() == want


def test_thoughts_are_the_content_before_its_summary():
    content, summary = ([{"type": kind, "text": kind}] for kind in ("reasoning_text", "summary_text"))
    rows = {
        "reasoning_text": [{"content": content, "summary": summary}, {"content": content}],
        "summary_text": [{"summary": summary}, {"content": [], "summary": summary}],
    }
    for text, items in rows.items():
        for item in items:
            assert _reasoning(item) == [{"type": "text", "text": text}], item


# Rounding: each number once, at its end


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
def test_a_norm_rounds_once(llm, dtype):
    with on_cpu("off"):
        x = mx.random.normal((64, 256), key=mx.random.key(1)).astype(dtype)
        weight = (1 + mx.random.normal((256,), key=mx.random.key(2)) / 4).astype(dtype)
        got = llm.RMSNorm(256, weight, 1e-6)(x)
        wide, scale = (np.array(each.astype(mx.float32), np.float64) for each in (x, weight))
        exact = wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-6) * scale
        want = mx.array(exact.astype(np.float32)).astype(dtype)
        assert got.dtype == dtype
        assert mx.mean(got != want).item() < 2e-3, "float32 and float64 rarely round to two sides"


@pytest.mark.parametrize("dtype", [mx.bfloat16, mx.float16])
@pytest.mark.parametrize("transpose", [True, False])
def test_weights_are_decoded_in_float32_whatever_their_scales_are(llm, dtype, transpose):
    with on_cpu("off"):
        dense = mx.random.normal((64, 64), key=mx.random.key(3))
        packed, scales, biases = mx.quantize(dense, group_size=32, bits=4)
        scales, biases = scales.astype(dtype), biases.astype(dtype)
        a = mx.random.normal((5, 64), key=mx.random.key(4))
        got = llm.quantized_matmul(scales, biases, 32, 4, a, packed, transpose)
        words = np.array(packed)[..., None] >> np.arange(0, 32, 4, dtype=np.uint32) & 15
        s, b = (np.array(each.astype(mx.float32), np.float64).repeat(32, 1) for each in (scales, biases))
        exact = words.reshape(64, 64) * s + b
        want = np.array(a, np.float64) @ (exact.T if transpose else exact)
        np.testing.assert_allclose(np.array(got), want, rtol=0, atol=2e-5)


# One of several


@pytest.mark.parametrize("fails_for", ["a", "b", "c"])
def test_all_requests_are_dropped_even_if_dropping_one_fails(llm, fails_for):
    with on_cpu("off"):
        checkpoint, proposer = toy_checkpoint(), Repeater((fails_for,))
        options = EngineOptions(num_blocks=16, proposer=proposer)
        engine = llm.Engine(llm.build_model(checkpoint), checkpoint.tokenizer, SchedulerConfig(), options)
        for name in "abc":
            engine.add(name, [1, 2, 3], SamplingParams(max_tokens=4))
        engine.step()
        with pytest.raises(LookupError, match=fails_for):
            engine.core.abort_all()
        assert not engine.core.has_requests and sorted(proposer.forgotten) == ["a", "b", "c"]
        assert engine.core.scheduler.pool.num_free == 16


# Both sides of a boundary


@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize(("size", "status"), [(99, 200), (100, 200), (101, 413)])
def test_a_body_of_exactly_the_limit_is_taken(size, status, is_chunked):
    app = TestClient(
        Guard(PlainTextResponse("got it"), ServerSettings(max_body_size=100)), "http://localhost"
    )
    body = b'"' + b"x" * (size - 2) + b'"'
    content = iter([body[:40], body[40:]]) if is_chunked else body
    answer = app.post("/", content=content, headers={"Content-Type": "application/json"})
    assert answer.status_code == status


@pytest.mark.parametrize("size", [0, 59, 60, 61, 159, 160, 161, 900])
def test_a_message_is_cut_only_if_it_is_too_long(size):
    line = one_line(ValueError("x" * size))
    assert line == ("x" * size if size <= 160 else "x" * 157 + "...")
    assert short(10**size) == ("1" + "0" * size if size < 60 else "1" + "0" * 59 + "…")


# What there is, and what was asked for


FACTS = [
    ({"num_states": 2}, True),
    ({"num_states": 1}, False),
    ({"num_states": 9, "enable_prefix_caching": False}, False),
]


@pytest.mark.parametrize(("options", "is_cached"), FACTS)
def test_facts_are_of_what_an_engine_has(llm, options, is_cached):
    dense, hybrid = (load_checkpoint(f"random:{name}") for name in ("qwen3-shrunk", "qwen3.5-shrunk"))
    for checkpoint, num_states, found in ((hybrid, options["num_states"], is_cached), (dense, 0, None)):
        model, config = llm.build_model(checkpoint), checkpoint.config
        core = llm.Engine(model, checkpoint.tokenizer, CONFIG, EngineOptions(num_blocks=16, **options)).core
        facts = facts_of(SimpleNamespace(core=core), config, 7, Path("here"))
        assert facts.num_states == num_states and found in (None, facts.has_prefix_cache)
        assert (facts.num_blocks, facts.block_bytes, facts.folder) == (16, 7, Path("here"))


def test_drafts_are_planned_for_whoever_makes_them(llm):
    checkpoint = load_checkpoint("random:qwen3.5-shrunk")
    loaded = Loaded(checkpoint, llm, llm.build_model(checkpoint))

    def num_states(speculate="off", **more):
        settings = EngineSettings(CONFIG, enable_prefix_caching=False, speculate=speculate)
        engine = build_engine(load_serving("ref"), loaded, settings, num_requests=3, **more)
        return engine.core.options.num_states

    assert num_states(proposer=Repeater()) == num_states("ngram") == 2 * num_states()


def test_an_engine_that_reads_pictures_lets_the_tower_have_its_share(llm):
    checkpoint = load_checkpoint("random:qwen3-vl-shrunk", has_pictures=True)
    loaded = Loaded(checkpoint, llm, llm.build_model(checkpoint))
    engine = build_engine(load_serving("ref"), loaded, EngineSettings(CONFIG), num_requests=3)
    options = engine.core.options
    assert isinstance(options.prefix_disk, PictureQueue) and options.budget_controller is options.prefix_disk


def test_no_form_for_a_tokenizer_that_cannot_have_one():
    with pytest.raises(UserError, match="structured outputs do not work with this tokenizer"):
        Grammars(ByteTokenizer(), VOCAB).require(StructuredOutputs(json_object=True))


def test_an_application_that_ends_lets_requests_finish():
    engine = Mock(stop=AsyncMock())
    start = AsyncMock(return_value=SimpleNamespace(engine=engine))
    with TestClient(create_app(start, ServerSettings(drain_s=7.0, disable_log_stats=True))):
        assert not engine.stop.called
    engine.stop.assert_awaited_once_with(7.0)


# Layers and parts in company


@pytest.mark.parametrize("shape", ["sparse_step=2", "sparse_step=2,layers=4", "sparse_step=3,interval=3"])
def test_a_hybrid_with_dense_layers_among_experts(llm, shape):
    """On the C++ kernels and without, alone and in an engine."""
    name, answers = f"random:qwen3-next-shrunk,{shape}", []
    checkpoint = load_checkpoint(name, dtype="float32")
    kinds = [checkpoint.config.has_experts(layer) for layer in range(checkpoint.config.num_hidden_layers)]
    assert len(set(kinds)) == 2
    ids = [[(7 * i + 3 * j) % 300 for j in range(20)] for i in range(3)]
    prompts = [Prompt(each, SamplingParams(max_tokens=6)) for each in ids]
    for kernels in ("cpp", "off"):
        with on_cpu(kernels):
            model = llm.build_model(checkpoint)
            engine = llm.Engine(model, checkpoint.tokenizer, CONFIG, EngineOptions(num_blocks=32))
            answers.append([each.token_ids for each in engine.generate(prompts)])
    assert answers[0] == answers[1]


@pytest.mark.parametrize("part", ["bias", "scales", "weight_scale_inv"])
def test_a_tied_head_has_no_part_that_the_embedding_lacks(tmp_path, part):
    folder = copy_of("random:qwen3-shrunk,tied=1", tmp_path / "copy")
    edit_tensors(folder, {f"lm_head.{part}": mx.ones((320,))})
    with pytest.raises(UserError, match=rf"lm_head\.{part} differs from model\.embed_tokens"):
        load_checkpoint(folder)


def test_the_line_of_a_hybrid_counts_the_bytes_of_a_token():
    async def line():
        served = await start_fake(FakeEngine(), model=HYBRID)
        await served.engine.stop()
        served.engine.facts = replace(served.facts, num_states=9)
        return startup_line(served, "here")

    said = asyncio.run(line())
    assert "1,024 KV blocks of 16 tokens (1.0 MiB)" in said and "a sequence, 64 B a token" in said
    assert "9 states" in said
