"""The shipped model in the engine: whatever a schedule does, answers are those of one request at a time."""

import random
from dataclasses import replace

import pytest
from tests.helpers.devices import on_cpu
from tests.helpers.probe import ScheduleProbe
from tests.helpers.serving import serve

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.measure.corpus.recall import recall_questions, render_prompt
from tiny_llm_lab.types import EngineOptions, Prompt, SamplingParams, SchedulerConfig

CONFIGS = {
    "defaults": (SchedulerConfig(), {}),
    "budget 16": (SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=8), {}),
    "threshold 7": (SchedulerConfig(max_num_batched_tokens=128, long_prefill_token_threshold=7), {}),
    "fair": (SchedulerConfig(max_num_batched_tokens=96, policy="fair"), {"block_size": 16}),
    "priority": (SchedulerConfig(max_num_batched_tokens=96, policy="priority"), {"block_size": 5}),
    "alternate": (SchedulerConfig(max_num_batched_tokens=64, step_mode="alternate"), {}),
    "grid": (SchedulerConfig(max_num_batched_tokens=128, chunk_grid=32), {}),
    "tiny pool": (SchedulerConfig(max_num_batched_tokens=128, max_model_len=400), {"num_blocks": 13}),
    "no prefix cache": (SchedulerConfig(), {"enable_prefix_caching": False}),
    "a step ahead": (SchedulerConfig(max_num_batched_tokens=128), {"async_scheduling": True}),
    "ahead, tiny pool": (SchedulerConfig(max_model_len=400), {"num_blocks": 13, "async_scheduling": True}),
}


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def served(request, llm):
    """The model, prompts of all kinds, and what week 2 answers to one after the other.

    With kernels, unless the parameter says "float32 without kernels".
    """
    dtype, _, without = request.param.partition(" ")
    with on_cpu("off" if without else "cpp"):
        checkpoint = load_checkpoint("default", dtype=dtype)
        model = llm.build_model(checkpoint)
        prompts = _prompts(checkpoint)
        wanted = llm.batch_generate(model, checkpoint.tokenizer, prompts, max_seq_len=400, batch_size=1)
        yield checkpoint, model, prompts, wanted


def _prompts(checkpoint):
    draw = random.Random(7)
    questions = recall_questions(3, 3, 120, checkpoint.tokenizer.encode)
    texts = [render_prompt(question.user) for question in questions]
    greedy = SamplingParams(max_tokens=24)
    drawn = SamplingParams(max_tokens=24, temperature=0.9, top_p=0.9, seed=11, ignore_eos=True)
    numbers = [[draw.randrange(5, 2000) for _ in range(length)] for length in (1, 64, 150)]
    again = texts[0]  # a prompt twice, in flight together
    return [*(Prompt(text, greedy) for text in (*texts, again)), *(Prompt(each, drawn) for each in numbers)]


def answers(engine, prompts, order, neighbours=()):
    """Answer in this order of arrival, two a step; `neighbours` come at once and are aborted one by one."""
    first = len(prompts)
    arrivals = {i: place // 2 for place, i in enumerate(order)}
    aborts = {first + i: i for i in range(len(neighbours))}
    done = serve(engine, [*prompts, *neighbours], arrivals, aborts)
    assert engine.core.scheduler.pool.num_free == engine.core.scheduler.pool.num_blocks, "all blocks are back"
    return [done[i].token_ids for i in range(first)]


@pytest.mark.parametrize("name", CONFIGS)
def test_no_schedule_changes_an_answer(llm, served, name):
    checkpoint, model, prompts, wanted = served
    config, settings = CONFIGS[name]
    options = EngineOptions(**({"num_blocks": 256} | settings))
    engine = llm.Engine(model, checkpoint.tokenizer, config, options)
    order = list(range(len(prompts)))
    random.Random(name).shuffle(order)
    neighbours = [Prompt([9] * 90, SamplingParams(max_tokens=30, ignore_eos=True)) for _ in range(2)]
    got = answers(engine, prompts, order, neighbours)
    assert got == [completion.token_ids for completion in wanted]


@pytest.mark.parametrize("policy", ["fcfs", "fair", "priority"])
def test_no_class_changes_an_answer(llm, served, policy):
    checkpoint, model, prompts, wanted = served
    config = SchedulerConfig(max_num_batched_tokens=200, max_num_seqs=2, max_model_len=400, policy=policy)
    engine = llm.Engine(model, checkpoint.tokenizer, config, EngineOptions(13))
    probe = ScheduleProbe(engine.core.scheduler)
    mixed = [
        replace(prompt, priority_class="batch" if i % 2 == 0 else "interactive")
        for i, prompt in enumerate(prompts)
    ]
    order = sorted(range(len(mixed)), key=lambda i: i % 2)
    assert answers(engine, mixed, order) == [completion.token_ids for completion in wanted]
    assert probe.preempted, "no request was preempted: this test shows nothing"


# In bfloat16 plain MLX rounds a row of several otherwise than a single one, so draws may differ there.
@pytest.mark.parametrize("served", ["float32", "bfloat16", "float32 without kernels"], indirect=True)
@pytest.mark.parametrize("speculate", ["ngram", "draft model"])
def test_no_draft_changes_an_answer(llm, served, speculate):
    checkpoint, model, prompts, wanted = served
    proposer = llm.NgramProposer() if speculate == "ngram" else llm.DraftModelProposer(model)
    config = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=16)
    engine = llm.Engine(model, checkpoint.tokenizer, config, EngineOptions(128, proposer=proposer))
    got = answers(engine, prompts, range(len(prompts)))
    assert got == [completion.token_ids for completion in wanted]
    assert engine.core.spec_stats.num_accepted_tokens > 0, "no draft token was accepted: this shows nothing"


def test_recall_through_the_engine(llm, served):
    checkpoint, model, _, _ = served
    questions = recall_questions(1, 20, 96, checkpoint.tokenizer.encode)
    config = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8, policy="fair")
    engine = llm.Engine(model, checkpoint.tokenizer, config, EngineOptions(64))
    for i, question in enumerate(questions):
        engine.add(str(i), render_prompt(question.user), SamplingParams(max_tokens=16))
    texts = {}
    while engine.has_requests:
        texts |= {o.request_id: o.completion.text for o in engine.step() if o.completion is not None}
    wrong = [i for i, question in enumerate(questions) if texts[str(i)].strip() != question.answer]
    assert wrong == []
