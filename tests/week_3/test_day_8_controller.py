"""Day 3.8: the engine asks the policy for a budget, and the model learns from its steps."""

import pytest
from tests.helpers.fakes import FakeClock
from tests.helpers.probe import ScheduleProbe
from tests.helpers.serving import make_engine, mixed_prompts, serve
from tests.helpers.toy import ByteTokenizer, toy_model

from tiny_llm_lab.types import SamplingParams, SchedulerConfig


class RecordingPolicy:
    """Answers with a fixed budget and remembers what it was asked and told."""

    def __init__(self, budget=None):
        self.budget, self.asked, self.told, self.model = budget, [], [], self

    def token_budget(self, now_s, decodes, prefills):
        self.asked.append((now_s, list(decodes), list(prefills)))
        return self.budget

    def record(self, num_tokens, attention, kv_read, seconds):
        self.told.append((num_tokens, attention, kv_read, seconds))


@pytest.mark.task("3.8.3")
def test_what_the_policy_is_asked(llm):
    policy = RecordingPolicy()
    clock = FakeClock(tick=1.0)
    model = toy_model(llm)
    engine = make_engine(
        llm,
        model,
        SchedulerConfig(max_num_batched_tokens=64),
        budget_controller=llm.BudgetController(policy),
        clock=clock,
    )
    engine.add("a", [97] * 3, SamplingParams(max_tokens=9, ignore_eos=True), arrival_s=0.25)
    engine.step()
    engine.add("b", [98] * 100, SamplingParams(max_tokens=9), priority_class="batch", arrival_s=0.5)
    engine.step()
    engine.step()
    (_, none, first), (_, decodes, second), (_, _, third) = policy.asked
    assert none == []
    assert first == [llm.PrefillWork(0, 3, 0.25)]
    assert [(d.num_computed, d.priority_class == "batch") for d in decodes] == [(3, False)]
    assert policy.asked[0][0] < decodes[0].last_token_s < policy.asked[1][0], "when its first token came"
    assert second == [llm.PrefillWork(0, 100, 0.5, "batch")]
    assert third == [llm.PrefillWork(63, 37, 0.5, "batch")], "63 of its tokens ran beside the decode"


@pytest.mark.task("3.8.3")
def test_what_the_model_is_told(llm):
    policy = RecordingPolicy()
    engine = make_engine(
        llm,
        toy_model(llm),
        budget_controller=llm.BudgetController(policy),
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


@pytest.mark.task("3.8.3")
def test_the_budget_of_a_step_is_the_policys(llm):
    model = toy_model(llm)
    engine = make_engine(llm, model, budget_controller=llm.BudgetController(RecordingPolicy(budget=7)))
    prompts = mixed_prompts()
    probe = ScheduleProbe(engine.core.scheduler)
    done = serve(engine, prompts)
    assert max(plan.total_num_scheduled_tokens for plan in probe.plans) == 7
    wanted = llm.batch_generate(model, ByteTokenizer(), prompts, batch_size=1)
    assert [done[i].token_ids for i in range(len(prompts))] == [want.token_ids for want in wanted]


def asked_about(llm, requests, **config):
    """What a controller asks its policy about requests of a scheduler that has planned nothing yet."""
    scheduler = llm.Scheduler(SchedulerConfig(**config), llm.BlockPool(64, 16))
    for request in requests:
        scheduler.add(request)
    policy = RecordingPolicy(budget=5)
    budget = llm.BudgetController(policy).token_budget(1.0, scheduler, lambda name: 0.5)
    return budget, policy.asked, scheduler


def waiting(llm, *lengths, **options):
    return [llm.TokenSequence(str(i), [97] * length, **options) for i, length in enumerate(lengths)]


@pytest.mark.task("3.8.3")
def test_a_prompt_takes_no_more_than_the_threshold_lets_it(llm):
    limits = {"max_num_batched_tokens": 100, "long_prefill_token_threshold": 30}
    budget, [(_, _, prefills)], _ = asked_about(llm, waiting(llm, 200, 10, 40, 200, 200), **limits)
    assert budget == 5
    # 30 + 10 + 30 leave 30 tokens for the fourth and nothing for the fifth.
    assert [work.num_new for work in prefills] == [30, 10, 30, 30]


@pytest.mark.task("3.8.3")
def test_the_policy_is_asked_about_sequences_that_can_get_tokens_in_this_step(llm):
    _, [(_, _, prefills)], scheduler = asked_about(llm, waiting(llm, *[9] * 5), max_num_seqs=3)
    assert len(prefills) == 3, "the other two find no free slot"
    scheduler.schedule()
    policy = RecordingPolicy()
    llm.BudgetController(policy).token_budget(1.0, scheduler, lambda name: 0.5)
    assert [len(works) for works in policy.asked[0][1:]] == [0, 3], "running sequences hold the slots"
    _, [(_, _, prefills)], _ = asked_about(llm, waiting(llm, *[40] * 5), max_num_batched_tokens=64)
    assert len(prefills) == 2, "the second takes what the first leaves"
    _, _, scheduler = asked_about(llm, waiting(llm, 100, 40, 40), max_num_batched_tokens=64)
    scheduler.commit(scheduler.schedule(), {})
    llm.BudgetController(policy).token_budget(1.0, scheduler, lambda name: 0.5)
    news = [work.num_new for work in policy.asked[-1][2]]
    assert news == [36, 40], "36 tokens of the prompt that runs leave 28, and no third prompt gets any"


@pytest.mark.task("3.8.3")
def test_prompts_are_priced_in_the_schedulers_order(llm):
    first, urgent = llm.TokenSequence("a", [97] * 9, 1), llm.TokenSequence("b", [97] * 7, 0)
    for policy, lengths in (("priority", [7, 9]), ("fcfs", [9, 7])):
        _, [(_, _, prefills)], _ = asked_about(llm, [first, urgent], policy=policy)
        assert [work.num_new for work in prefills] == lengths, policy


@pytest.mark.task("3.8.3")
def test_batch_class_requests_do_not_hide_interactive_ones(llm):
    # Both slots are taken and b could take all tokens, but the step will admit i and leave b 11.
    config = SchedulerConfig(max_num_batched_tokens=20, max_num_seqs=2)
    scheduler = llm.Scheduler(config, llm.BlockPool(64, 16))
    for name, length in (("a", 9), ("b", 200)):
        scheduler.add(llm.TokenSequence(name, [97] * length, priority_class="batch"))
    scheduler.commit(scheduler.schedule(), {"a": [97]})
    scheduler.add(llm.TokenSequence("i", [97] * 9))
    policy = RecordingPolicy()
    llm.BudgetController(policy).token_budget(1.0, scheduler, lambda name: 0.5)
    [(_, decodes, prefills)] = policy.asked
    assert [(work.num_new, work.priority_class == "batch") for work in decodes] == [(1, True)]
    assert [(work.num_new, work.priority_class == "batch") for work in prefills] == [(9, False), (189, True)]


@pytest.mark.task("3.8.3")
def test_without_a_prompt_there_is_no_limit(llm):
    # A decode takes one token and its draft: a budget could only take the draft away.
    scheduler = llm.Scheduler(SchedulerConfig(), llm.BlockPool(64, 16))
    scheduler.add(waiting(llm, 9)[0])
    scheduler.commit(scheduler.schedule(), {"0": [97]})
    policy = RecordingPolicy(budget=5)
    assert llm.BudgetController(policy).token_budget(1.0, scheduler, lambda name: 0.5) is None
    assert policy.asked == []


@pytest.mark.task("3.8.3")
def test_drafts_are_part_of_what_a_decode_takes(llm):
    # Otherwise the drafts of the first decodes would take the tokens of the last ones.
    requests = waiting(llm, 9, 9, 30)
    scheduler = llm.Scheduler(
        SchedulerConfig(max_num_batched_tokens=18, max_num_seqs=8), llm.BlockPool(64, 16)
    )
    for request in requests:
        scheduler.add(request)
    scheduler.commit(scheduler.schedule(), {"0": [97], "1": [97]})
    requests[0].spec_token_ids = [98, 99, 97]
    policy = RecordingPolicy()
    llm.BudgetController(policy).token_budget(1.0, scheduler, lambda name: 0.5)
    [(_, decodes, prefills)] = policy.asked
    assert [(work.num_computed, work.num_new) for work in decodes] == [(9, 4), (9, 1)]
    assert [work.num_new for work in prefills] == [30]
