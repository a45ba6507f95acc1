"""Day 3.5: the engine asks the policy for a budget, and the model learns from its steps."""

import pytest
from tests.helpers.fakes import FakeClock
from tests.helpers.serving import make_engine, mixed_prompts, serve
from tests.helpers.toy import ByteTokenizer, random_tokens, toy_model

from tiny_llm_lab.types import SamplingParams, SchedulerConfig


class RecordingPolicy:
    """Answers with a fixed budget and remembers what it was asked and told."""

    def __init__(self, budget=None):
        self.budget, self.asked, self.told, self.model = budget, [], [], self

    def token_budget(self, now_s, decodes, prefills):
        self.asked.append((now_s, list(decodes), list(prefills)))
        return self.budget

    def record(self, num_tokens, num_attended, num_stored, seconds):
        self.told.append((num_tokens, num_attended, num_stored, seconds))


@pytest.mark.task("3.5.3")
def test_what_the_policy_is_asked(llm):
    policy = RecordingPolicy()
    clock = FakeClock(tick=1.0)
    model = toy_model(llm)
    engine = make_engine(
        llm, model, SchedulerConfig(max_num_batched_tokens=64), pacer=llm.StepPacer(policy), clock=clock
    )
    engine.add("a", [97] * 3, SamplingParams(max_tokens=9, ignore_eos=True), arrival_s=0.25)
    engine.step()
    engine.add("b", [98] * 100, SamplingParams(max_tokens=9), is_batch_class=True, arrival_s=0.5)
    engine.step()
    engine.step()
    (_, none, first), (_, decodes, second), (_, _, third) = policy.asked
    assert none == []
    assert first == [llm.PrefillWork(0, 3, 0.25)]
    assert [(d.num_computed, d.is_batch_class) for d in decodes] == [(3, False)]
    assert policy.asked[0][0] < decodes[0].last_token_s < policy.asked[1][0], "when its first token came"
    assert second == [llm.PrefillWork(0, 100, 0.5, True)]
    assert third == [llm.PrefillWork(63, 37, 0.5, True)], "63 of its tokens ran beside the decode"


@pytest.mark.task("3.5.3")
def test_what_the_model_is_told(llm):
    policy = RecordingPolicy()
    engine = make_engine(
        llm,
        toy_model(llm),
        pacer=llm.StepPacer(policy),
        clock=FakeClock(tick=1.0),
        enable_prefix_caching=False,
    )
    engine.add("a", [97] * 3, SamplingParams(max_tokens=2, ignore_eos=True))
    engine.add("b", [98] * 2, SamplingParams(max_tokens=2, ignore_eos=True))
    engine.step()
    engine.step()
    # Tokens; stored tokens that they see, one by one (1 + 2 + 3 and 1 + 2, then 4 and 3); read per request.
    assert [told[:3] for told in policy.told] == [(5, 9, 5), (2, 7, 7)]
    assert all(told[3] > 0 for told in policy.told)


@pytest.mark.task("3.5.3")
def test_the_budget_of_a_step_is_the_policys(llm):
    model = toy_model(llm)
    engine = make_engine(llm, model, pacer=llm.StepPacer(RecordingPolicy(budget=7)))
    prompts = mixed_prompts()
    totals = []
    schedule = engine.scheduler.schedule

    def watched(*args):
        plan = schedule(*args)
        totals.append(plan.total_num_scheduled_tokens)
        return plan

    engine.scheduler.schedule = watched
    done = serve(engine, prompts)
    assert max(totals) == 7
    wanted = llm.batch_generate(model, ByteTokenizer(), prompts, batch_size=1)
    assert [done[i].token_ids for i in range(len(prompts))] == [want.token_ids for want in wanted]


@pytest.mark.task("3.5.3")
def test_a_real_policy_paces_a_real_engine(llm):
    # A made-up machine: 1 ms a step and 0.1 ms a token, so that 10 ms hold 73 tokens with a safety of 1.2.
    sizes = [(n, seen) for n in (1, 2, 4, 8, 16, 32, 64, 128) for seen in (1, 50)]
    samples = [llm.StepSample(n, n * seen, n + seen, 0.001 + 0.0001 * n) for n, seen in sizes]
    policy = llm.LatencyPolicy(llm.StepTimeModel(samples, newest=0.0), itl_slo_s=0.010)
    clock = FakeClock()
    engine = make_engine(llm, toy_model(llm), pacer=llm.StepPacer(policy), clock=clock)
    engine.add("reader", [97], SamplingParams(max_tokens=30, ignore_eos=True))
    engine.step()
    engine.add("long", random_tokens(1, 300).tolist(), SamplingParams(max_tokens=1, ignore_eos=True))
    computed = []
    plan = engine.scheduler.schedule
    engine.scheduler.schedule = lambda *args: computed.append(plan(*args)) or computed[-1]
    for _ in range(6):
        engine.step()
    computed = [step.num_scheduled_tokens.get("long") for step in computed]
    assert computed == [72, 72, 72, 72, 12, None], "the reader's token takes one place of 73"
