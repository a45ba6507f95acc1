"""Day 3.7: a step that begins before the tokens of the one in front are read, and changes no answer."""

from dataclasses import replace
from types import SimpleNamespace

import mlx.core as mx
import pytest
from tests.helpers.fragile import Fragile
from tests.helpers.serving import make_engine, mixed_prompts, serve
from tests.helpers.toy import ByteTokenizer, random_tokens

from tiny_llm_lab.types import Prompt, SamplingParams, SchedulerConfig, StepPlan

pytestmark = pytest.mark.task("3.7.2")
AHEAD = {"async_scheduling": True}
PROMPTS = mixed_prompts()
LONG = SamplingParams(max_tokens=40, ignore_eos=True)


class Counted(Fragile):
    """A model that counts its forward passes."""

    num_calls = 0

    def __call__(self, *args, **kwargs):
        self.num_calls += 1
        return super().__call__(*args, **kwargs)


def decoding(llm, name, num_prompt=5, num_output=2, **fields):
    done = {"output_token_ids": [7] * num_output, "num_computed_tokens": num_prompt + num_output - 1}
    return llm.TokenSequence(name, list(range(num_prompt)), **(done | fields))


# What is certain


def is_certain(llm, sequences, counts, running=None, waiting=(), max_draft_tokens=1):
    answer = SimpleNamespace(max_draft_tokens=max_draft_tokens)
    requests = [SimpleNamespace(sequence=each, answer=answer, processors=()) for each in sequences]
    plan = StepPlan({each.request_id: count for each, count in zip(sequences, counts, strict=True)})
    queue = SimpleNamespace(running=list(sequences if running is None else running), waiting=list(waiting))
    return llm.may_launch_early(SimpleNamespace(plan=plan, requests=requests), queue)


def test_the_next_step_is_certain_of_decodes_and_last_chunks(llm):
    a, b = decoding(llm, "a"), decoding(llm, "b", 9, 1)
    assert is_certain(llm, [a, b], [1, 1], running=[b, a])
    assert is_certain(llm, [a, llm.TokenSequence("c", list(range(9)), num_computed_tokens=4)], [1, 5])


def test_nothing_is_certain_when(llm):
    a, b, c = (decoding(llm, name) for name in "abc")
    assert not is_certain(llm, [a, b], [1, 1], waiting=[c])
    assert not is_certain(llm, [a, b], [1, 1], running=[a, b, c]), "one that runs has nothing in the step"
    assert not is_certain(llm, [a, b], [1, 1], running=[a, decoding(llm, "b")]), "the id is used again"
    assert not is_certain(llm, [a, b], [1, 1], max_draft_tokens=0), "the token under way is the last"
    assert not is_certain(llm, [a, decoding(llm, "b", spec_token_ids=[1])], [1, 2]), "a draft"
    chunk = llm.TokenSequence("b", list(range(9)), num_computed_tokens=4)
    assert not is_certain(llm, [a, chunk], [1, 4]), "and the chunk is not the last"


def a_scheduler(llm, num_blocks=64, block_size=4, lengths=(3, 6, 9), **config):
    pool = llm.BlockPool(num_blocks, block_size)
    scheduler = llm.Scheduler(SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=8, **config), pool)
    for i, length in enumerate(lengths):
        scheduler.add(llm.TokenSequence(str(i), random_tokens(i, length).tolist()))
    return scheduler


def plan_of(plan):
    return list(plan.num_scheduled_tokens.items()), plan.preempted


@pytest.mark.parametrize("policy", ["fcfs", "fair", "priority"])
@pytest.mark.parametrize("step_mode", ["mixed", "alternate"])
def test_the_plan_is_that_of_schedule_after_commit(llm, policy, step_mode):
    ahead, usual = (a_scheduler(llm, policy=policy, step_mode=step_mode) for _ in range(2))
    plan = ahead.schedule()
    assert plan_of(usual.schedule()) == plan_of(plan)
    for step in range(12):  # over several borders of blocks
        behind = ahead.schedule_next(plan)
        sampled = {name: [step] for name in plan.num_scheduled_tokens}
        for scheduler in (ahead, usual):
            scheduler.commit(plan, sampled)
            scheduler.check()
        following = usual.schedule()
        assert behind is not None and plan_of(behind) == plan_of(following)
        assert [len(r.block_ids) for r in ahead.running] == [len(r.block_ids) for r in usual.running]
        plan = behind
    if step_mode == "alternate":
        for scheduler in (ahead, usual):
            scheduler.commit(plan, {name: [0] for name in plan.num_scheduled_tokens})
            scheduler.add(llm.TokenSequence("new", [1, 2]))
        assert plan_of(ahead.schedule()) == plan_of(usual.schedule()), "which kind was last is the same"


def test_no_plan_takes_blocks_from_anybody(llm):
    # 4 and 4 tokens: the next token of each needs a block, and only one is free.
    scheduler = a_scheduler(llm, num_blocks=3, lengths=(4, 4))
    plan = scheduler.schedule()
    assert scheduler.schedule_next(plan) is None
    assert [len(request.block_ids) for request in scheduler.running] == [1, 1]
    assert scheduler.pool.num_free == 1
    scheduler = a_scheduler(llm, num_blocks=4, lengths=(4, 4))
    assert scheduler.schedule_next(scheduler.schedule()) is not None
    assert scheduler.pool.num_free == 0


# What it does to an engine


CONFIGS = {
    "defaults": (SchedulerConfig(), {}),
    "small budget": (SchedulerConfig(max_num_batched_tokens=16, max_num_seqs=8), {"block_size": 5}),
    "fair": (SchedulerConfig(max_num_batched_tokens=64, policy="fair"), {}),
    "alternate": (SchedulerConfig(max_num_batched_tokens=64, step_mode="alternate"), {}),
    "small pool": (SchedulerConfig(max_num_batched_tokens=64), {"num_blocks": 13}),
}


@pytest.mark.parametrize(("config", "settings"), CONFIGS.values(), ids=CONFIGS)
def test_answers_are_those_of_week_2(llm, model, config, settings):
    wanted = llm.batch_generate(model, ByteTokenizer(), PROMPTS, max_seq_len=208, batch_size=1)
    neighbours = [Prompt(random_tokens(20 + i, 20).tolist(), LONG) for i in range(3)]
    count = len(PROMPTS)
    engine = make_engine(llm, model, replace(config, max_model_len=208), **(settings | AHEAD))
    arrivals = {i: 3 * i for i in range(count)}
    done = serve(engine, [*PROMPTS, *neighbours], arrivals, {count: 3, count + 1: 8, count + 2: 15})
    assert [done[i].token_ids for i in range(count)] == [each.token_ids for each in wanted]
    assert engine.core.scheduler.pool.num_free == engine.core.scheduler.pool.num_blocks


def test_the_next_step_begins_before_this_one_is_told(llm, model):
    counted = Counted(model)
    engine = make_engine(llm, counted, **AHEAD)
    engine.add("a", [97, 98], replace(LONG, max_tokens=4))
    num_calls = []
    while engine.has_requests:
        [output] = engine.step()
        assert len(output.token_ids) == 1
        num_calls.append(counted.num_calls)
    assert num_calls == [2, 3, 4, 4], "and none begins behind the last token"
    usual = make_engine(llm, counted := Counted(model), async_scheduling=False)
    usual.add("a", [97, 98], LONG)
    usual.step()
    assert counted.num_calls == 1 and not usual.core.async_scheduling


def test_an_answer_that_ends_by_surprise_takes_nothing_from_others(llm, model):
    prompts = [Prompt([97, 98], LONG), Prompt([99] * 10, LONG)]
    texts = [each.text for each in llm.batch_generate(model, ByteTokenizer(), prompts)]
    cut = Prompt([97, 98], replace(LONG, stop=(texts[0][5:8],)))
    engine = make_engine(llm, model, **AHEAD)
    done = serve(engine, [cut, prompts[1]])
    assert (done[0].text, done[0].finish_reason) == (texts[0][: texts[0].index(texts[0][5:8])], "stop")
    assert done[1].text == texts[1]
    assert serve(engine, [cut])[0].text == done[0].text, "alone, with a step under way that serves no request"
    engine.add("next", [97], replace(LONG, max_tokens=1))
    assert [output.request_id for output in engine.step()] == ["next"], "and that step is forgotten"


def test_an_id_may_be_used_again_while_its_step_is_under_way(llm, model):
    [wanted] = llm.batch_generate(model, ByteTokenizer(), [Prompt([98] * 7, LONG)])
    engine = make_engine(llm, model, **AHEAD)
    for name in ("again", "other"):
        engine.add(name, [97] * 3, LONG)
    engine.step()
    engine.abort("again")
    engine.add("again", [98] * 7, LONG)
    tokens = []
    while engine.has_requests:
        for output in engine.step():
            tokens += output.token_ids if output.request_id == "again" else ()
    assert tuple(tokens) == wanted.token_ids


def test_an_arrival_waits_for_the_step_under_way_only(llm, model):
    engine = make_engine(llm, model, **AHEAD)
    engine.add("a", [97], LONG)
    engine.step()
    engine.add("b", [98], LONG)
    told = [[output.request_id for output in engine.step()] for _ in range(3)]
    assert told == [["a"], ["a", "b"], ["a", "b"]]


@pytest.mark.parametrize(("device", "chosen"), [("cpu", None), ("gpu", None), ("cpu", True), ("gpu", False)])
def test_a_gpu_is_kept_busy_unless_asked_otherwise(llm, model, monkeypatch, device, chosen):
    monkeypatch.setattr(mx, "default_device", lambda: getattr(mx, device))
    is_ahead = make_engine(llm, model, async_scheduling=chosen).core.async_scheduling
    assert is_ahead is (device == "gpu" if chosen is None else chosen)


def test_paced_steps_need_the_tokens_first(llm, model):
    assert not make_engine(llm, model, budget_controller=object(), **AHEAD).core.async_scheduling
