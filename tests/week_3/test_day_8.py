"""Day 3.8: how long a step will take. The budget that follows from it: test_day_8_policy.py."""

import itertools
import random

import pytest
from tests.helpers.fakes import FakeClock
from tests.helpers.probe import ScheduleProbe
from tests.helpers.serving import make_engine, mixed_prompts, serve
from tests.helpers.step_samples import decodes_at, measured, prompt_chunk, seconds, steps_of_all_kinds
from tests.helpers.toy import ByteTokenizer, toy_model

from tiny_llm_lab.types import SamplingParams, SchedulerConfig, StepSample
from tiny_llm_lab.types.scheduling.step_time_fit import fit_step_times

# The task of each test that names no other.
pytestmark = pytest.mark.task("3.8.1")


def worst_error(model, time_of=seconds):
    return max(abs(model.predict(*work) / time_of(work) - 1) for work in steps_of_all_kinds())


def test_model_finds_both_regimes_of_exact_measurements(llm):
    model = llm.StepTimeModel(measured())
    assert model.split_tokens == 128
    # Rounding of sums over a few dozen samples, nothing else.
    assert worst_error(model) < 1e-6


def test_model_is_not_led_astray_by_a_few_wild_samples(llm):
    # Some steps were caught by something else; of some only the queueing was timed, not the computing.
    wild = {3: 2.5, 11: 0.2, 17: 20.0, 24: 0.1, 31: 3.0, 40: 0.25}
    model = llm.StepTimeModel(measured(wrong=lambda number: wild.get(number, 1.0)))
    assert worst_error(model) < 0.02


def test_model_averages_noise(llm):
    rng = random.Random(1)
    samples = [sample for _ in range(4) for sample in measured(lambda _: rng.lognormvariate(0, 0.05))]
    model = llm.StepTimeModel(samples)
    assert worst_error(model) < 0.05
    # Half of all normal errors are below 0.67 sigma, 90 % below 1.64 sigma.
    error = model.error()
    assert error.count == len(samples)
    assert error.p50 == pytest.approx(0.05 * 0.67, rel=0.25)
    assert error.p90 == pytest.approx(0.05 * 1.64, rel=0.25)


def test_model_never_predicts_less_for_more(llm):
    rng = random.Random(2)
    model = llm.StepTimeModel(measured(lambda _: rng.uniform(0.3, 3)))
    assert min(*model.small, *model.large) >= 0, "a negative coefficient promises time for more work"
    for tokens, attended, stored in itertools.product((1, 100, 129, 3000), (0, 5000, 10**7), (0, 5000)):
        here = model.predict(tokens, attended, stored)
        assert model.predict(tokens + 1 if tokens != 128 else 128, attended, stored) >= here
        assert model.predict(tokens, attended + 1000, stored) >= here
        assert model.predict(tokens, attended, stored + 1000) >= here
    assert model.predict(model.split_tokens + 1, 0) >= model.predict(model.split_tokens, 0)


def sum_of_errors(samples, split):
    """Of the rule in the docstring: each sample by the fit of its side."""
    sides = [[each for each in samples if (each.num_tokens <= split) == small] for small in (True, False)]
    fits = [(side, fit_step_times(side if len(side) >= 6 else samples)) for side in sides]
    works = [(fit, each, (each.num_tokens, 0, 0)) for side, fit in fits for each in side]
    return sum(abs(seconds(work, fit, fit) / each.seconds - 1) for fit, each, work in works)


def test_the_split_is_the_one_with_the_least_errors(llm):
    splits = (16, 32, 64, 128, 256, 512, 1024)
    for seed in range(6):
        rng = random.Random(seed)
        sizes = [rng.choice(splits) for _ in range(30)]
        samples = [StepSample(n, 0, 0, seconds((n, 0, 0)) * rng.lognormvariate(0, 0.5)) for n in sizes]
        expected = min(splits, key=lambda split: sum_of_errors(samples, split))
        assert llm.StepTimeModel(samples).split_tokens == expected, f"seed {seed}"


def test_model_with_few_samples_of_one_regime_uses_all(llm):
    line = [StepSample(n, 0, 0, 0.001 + 0.0002 * n) for n in (200, 300, 400, 500, 600, 700, 800)]
    model = llm.StepTimeModel([*line, StepSample(4, 0, 0, 0.0018)], split_tokens=64)
    assert model.small == pytest.approx((0.001, 0.0002, 0, 0), rel=1e-6)
    assert model.large == pytest.approx((0.001, 0.0002, 0, 0), rel=1e-6)


def test_model_rejects_what_it_cannot_fit(llm):
    good = [StepSample(n, n, n, 0.01) for n in (1, 2, 3)]
    for samples in (
        [],
        good[:2],
        [*good, StepSample(1, 1, 1, 0.0)],
        [*good, StepSample(1, 1, 1, -1.0)],
    ):
        with pytest.raises(ValueError):
            llm.StepTimeModel(samples)
    for newest in (-0.1, 1.1):
        with pytest.raises(ValueError):
            llm.StepTimeModel(good, newest=newest)
    with pytest.raises(ValueError):
        llm.StepTimeModel(good).record(1, 1, 1, 0.0)


def test_corrections_move_by_the_weight_of_the_newest_step(llm):
    model = llm.StepTimeModel(measured(), newest=0.25)
    work = decodes_at(8, 1000)
    fitted_s = model.predict(*work)
    model.record(*work, 1.4 * fitted_s)
    assert model.small_correction == pytest.approx(0.75 + 0.25 * 1.4)
    assert model.large_correction == 1, "a small step says nothing about large ones"
    # The second ratio is taken to the fit again, not to the corrected prediction.
    model.record(*work, 1.4 * fitted_s)
    assert model.small_correction == pytest.approx(0.75 * 1.1 + 0.25 * 1.4)
    assert model.predict(*work) == pytest.approx(fitted_s * (0.75 * 1.1 + 0.25 * 1.4))


def test_a_step_of_exactly_split_tokens_is_a_small_one(llm):
    model = llm.StepTimeModel(measured(), newest=0.25)
    for num_tokens, corrections in ((model.split_tokens, (1.25, 1)), (model.split_tokens + 1, (1.25, 1.25))):
        work = prompt_chunk(0, num_tokens)
        # The ratio to the fit, which the margin and the floor of large steps have no part in.
        fit = model.small if num_tokens == model.split_tokens else model.large
        fitted_s = seconds(work, fit, fit)
        if num_tokens == model.split_tokens:
            assert model.predict(*work) == pytest.approx(fitted_s), "predicted by the small fit"
        model.record(*work, 2 * fitted_s)
        assert (model.small_correction, model.large_correction) == pytest.approx(corrections)


def test_corrections_follow_a_machine_that_became_three_times_slower(llm):
    model = llm.StepTimeModel(measured())
    for work in list(steps_of_all_kinds()) * 3:
        model.record(*work, 3 * seconds(work))
    assert worst_error(model, lambda work: 3 * seconds(work)) < 0.02


def test_one_hiccup_is_not_a_new_machine(llm):
    model = llm.StepTimeModel(measured())
    work = prompt_chunk(0, 512)
    model.record(*work, 100 * seconds(work))
    assert model.large_correction == pytest.approx(0.9 + 0.1 * 2)
    model.record(*work, seconds(work) / 100)
    assert model.large_correction == pytest.approx(1.1 * (0.9 + 0.1 * 0.5))


def test_error_is_that_of_predictions_made_before_the_step(llm):
    model = llm.StepTimeModel(measured(), newest=0)
    work = decodes_at(8, 1000)
    for share in (1.0, 1.25, 2.0, 4.0, 0.8):
        model.record(*work, model.predict(*work) * share)
    # |1 / share - 1|: 0, 0.2, 0.5, 0.75, 0.25, by nearest rank.
    error = model.error()
    assert (error.count, error.p50, error.p90) == pytest.approx((5, 0.25, 0.75))


def test_error_forgets_all_but_the_last_256_steps(llm):
    model = llm.StepTimeModel(measured(), newest=0)
    work = decodes_at(8, 1000)
    for share in [2.0] * 100 + [1.0] * 256:
        model.record(*work, model.predict(*work) * share)
    assert model.error().count == 256
    assert model.error().p90 == pytest.approx(0)


def recorded(llm, ratios, model=None, work=None):
    """A model that never corrects itself, after chunks that took so many times what it predicts."""
    model = model or llm.StepTimeModel(measured(), newest=0)
    work = work or prompt_chunk(0, 512)
    for ratio in ratios:
        model.record(*work, model.predict(*work) * ratio)
    return model


def test_margin_is_the_percentile_of_measured_over_predicted(llm):
    ratios = [1 + n / 512 for n in range(1, 257)]
    random.Random(4).shuffle(ratios)
    model = recorded(llm, ratios)
    # By nearest rank of 256 steps: the 254th, the 128th, the first and the last.
    for share, rank in ((0.99, 254), (0.5, 128), (0.0, 1), (1.0, 256)):
        assert model.margin(share) == pytest.approx(1 + rank / 512), f"share {share}"


def test_margin_does_not_count_decodes_alone(llm):
    model = recorded(llm, [1.25] * 256)
    recorded(llm, [1.9] * 100, model, decodes_at(8, 1000))
    assert model.margin(0.99) == pytest.approx(1.25)
    assert model.error().count == 256 and model.error().p90 == pytest.approx(1 - 1 / 1.9), "errors count all"


def test_margin_stays_between_one_and_two(llm):
    assert recorded(llm, [0.5] * 256).margin(0.99) == 1, "a fast phase is no promise"
    assert recorded(llm, [30.0] * 256).margin(0.99) == 2, "prompts must not starve after a hiccup"


def test_margin_begins_with_what_the_fit_gets_wrong(llm):
    wild = {17: 1.5, 31: 1.5}  # two of 48 chunks
    model = llm.StepTimeModel(measured(wrong=lambda number: wild.get(number, 1.0)), newest=0)
    assert model.margin(1.0) == pytest.approx(1.5, rel=0.02)
    assert model.margin(0.9) == pytest.approx(1, rel=0.02)
    recorded(llm, [1.8], model)
    assert model.margin(1.0) == pytest.approx(1.8)
    assert model.margin(0.9) == pytest.approx(1, rel=0.02), "one hiccup among 49 steps"
    recorded(llm, [1.0] * 255, model)
    assert model.margin(0.99) == pytest.approx(1, rel=1e-6), "the window has moved on"


def test_margin_without_any_chunk_is_one(llm):
    assert llm.StepTimeModel([StepSample(n, n, n, 0.01) for n in (1, 2, 3)]).margin(0.99) == 1


# The engine asks the policy for a budget, and the model learns from its steps


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
