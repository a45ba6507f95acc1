"""A hybrid in the engine: chunked, batched, preempted and aborted, it answers as alone."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import mlx.core as mx
import pytest
from tests.helpers.devices import on_cpu

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.types import (
    Checkpoint,
    EngineOptions,
    Model,
    Prompt,
    QuantizedWeights,
    SamplingParams,
    SchedulerConfig,
    Wanted,
    Weight,
)

NAMES = ["random:qwen3.5-shrunk", "random:qwen3.5-moe-shrunk", "random:qwen3-next-shrunk"]
llm: Any = load_solution("ref")


def with_wide_gates(checkpoint: Checkpoint) -> Checkpoint:
    """As MLX's conversions have them: the router and the shared expert's gate of a 4-bit model have 8."""

    def widened(name: str, w: Weight) -> Weight:
        if not isinstance(w, QuantizedWeights) or not name.endswith(("mlp.gate.weight", "_gate.weight")):
            return w
        return QuantizedWeights(*mx.quantize(w.dequantized(), group_size=64, bits=8), 64, 8)

    return replace(checkpoint, weights={name: widened(name, w) for name, w in checkpoint.weights.items()})


def model_of(name: str, kernels: str = "cpp", dtype: str = "float32") -> Model:
    with on_cpu(kernels):
        model: Model = llm.build_model(with_wide_gates(load_checkpoint(name, dtype=dtype)))
    return model


def some_prompts() -> list[Prompt]:
    lengths = [(17, 9), (1, 12), (90, 5), (3, 20), (33, 7), (64, 3)]
    return [
        Prompt(
            [(7 * i + 3 * j) % 300 for j in range(length)],
            SamplingParams(max_tokens=answer, ignore_eos=True, temperature=i % 2, seed=i),
        )
        for i, (length, answer) in enumerate(lengths)
    ]


def answers(model: Model, name: str, config: SchedulerConfig, prompts: list[Prompt], **options: Any) -> Any:
    tokenizer = load_checkpoint(name).tokenizer
    engine = llm.Engine(model, tokenizer, config, EngineOptions(**({"num_blocks": 64} | options)))
    done = engine.generate(prompts)
    assert engine.core.scheduler.pool.num_free == engine.core.scheduler.pool.num_blocks
    return [each.token_ids for each in done]


SETTINGS = {
    "unchunked": ({}, {}),
    "small steps": ({"max_num_batched_tokens": 7, "max_num_seqs": 4}, {}),
    "one at a time": ({"max_num_seqs": 1, "max_num_batched_tokens": 16}, {}),
    "preempted": ({"max_num_batched_tokens": 16, "max_num_seqs": 6}, {"num_blocks": 32, "block_size": 4}),
    "fair": ({"max_num_batched_tokens": 12, "max_num_seqs": 6, "policy": "fair"}, {"block_size": 4}),
    "ahead": ({"max_num_batched_tokens": 32, "max_num_seqs": 3}, {"async_scheduling": True}),
    "few snapshots": (
        {"max_num_batched_tokens": 24, "max_num_seqs": 4},
        {"block_size": 4, "num_snapshots": 2, "snapshot_every": 8},
    ),
    "drafts": ({"max_num_batched_tokens": 40, "max_num_seqs": 4}, {"proposer": llm.NgramProposer()}),
    "8 bits": ({"max_num_batched_tokens": 16, "max_num_seqs": 6}, {"kv_bits": 8}),
}


PACKED = "random:qwen3.5-moe-shrunk,bits=4,group=32,value_dim=40"
MODELS = {
    **{name: (name, "cpp", "float32") for name in NAMES},
    "off": (NAMES[1], "off", "float32"),
    "bfloat16": (NAMES[0], "cpp", "bfloat16"),
    "experts in bfloat16": (NAMES[2], "cpp", "bfloat16"),
    "4 bits": (PACKED, "cpp", "bfloat16"),
}


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("how", MODELS.values(), ids=MODELS)
def test_answers_do_not_depend_on_the_schedule(how: tuple[str, str, str], settings: tuple[Any, Any]) -> None:
    (name, *_), (scheduler, options) = how, settings
    model, prompts = model_of(*how), some_prompts()
    bits = {"kv_bits": options.get("kv_bits")}
    alone = [answers(model, name, SchedulerConfig(), [each], **bits)[0] for each in prompts]
    assert len(set(alone)) == len(alone)
    assert answers(model, name, SchedulerConfig(**scheduler), prompts, **options) == alone


def in_chunks(model: Model, tokens: mx.array, size: int) -> mx.array:
    cache = model.create_kv_cache()
    ends = [*range(0, tokens.shape[1], size), tokens.shape[1]]
    parts = [model(tokens[:, start:end], start, cache) for start, end in pairwise(ends)]
    return mx.concatenate(parts, axis=1)


@pytest.mark.parametrize("name", [*NAMES, PACKED, "random:qwen3.5-shrunk,bits=8,group=32,value_dim=32"])
def test_a_cut_and_company_change_no_bit_of_a_logit(name: str) -> None:
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
def test_no_tokens_and_the_last_ones(name: str) -> None:
    """Only in the last layer, of either kind, are there fewer tokens than came in."""
    model = model_of(name, dtype="bfloat16")
    tokens = mx.random.randint(0, 320, (2, 9), key=mx.random.key(2))
    whole = model(tokens)
    for last in (0, 1, 5, 20):
        got = model(tokens, wanted=Wanted(last=last))
        assert mx.array_equal(got, whole[:, max(0, 9 - last) :]), f"the last {last}"
    assert model(tokens, wanted=Wanted(rows=[])).shape == (0, 9, 320)
    assert mx.array_equal(model(tokens, wanted=Wanted(rows=[1])), whole[1:])


def test_states_are_those_of_running_requests_only() -> None:
    """As many slots as requests ran at a time, whatever was aborted between."""
    name = NAMES[0]
    model = model_of(name)
    engine = llm.Engine(model, load_checkpoint(name).tokenizer, SchedulerConfig(max_num_seqs=2))
    prompts = some_prompts()
    for i, prompt in enumerate(prompts):
        engine.add(str(i), prompt.content, prompt.sampling)
    got: dict[str, list[int]] = {}
    while engine.has_requests:
        for output in engine.step():
            got.setdefault(output.request_id, []).extend(output.token_ids)
        engine.abort("0")
    assert all(set(layer.slots) == {0, 1} for layer in engine.core.kv_cache.states)
    assert [tuple(got[str(i)]) for i in (3, 5)] == [
        answers(model, name, SchedulerConfig(), [prompts[i]])[0] for i in (3, 5)
    ]
