"""Day 3.8: how many tokens a step may hold inside a latency limit. Batch class: test_day_8_policy.py."""

import random

import pytest
from tests.helpers.step_samples import measured, prompt_chunk, seconds, together


class PerToken:
    """A millisecond per token and a microsecond per attended token."""

    def __init__(self):
        self.asked, self.shares = [], []

    def margin(self, share):
        self.shares.append(share)
        return 1.0 + 0.25 * len(self.shares)

    def predict(self, num_tokens, attention, kv_read=0):
        self.asked.append((num_tokens, attention, kv_read))
        return 1e-3 * num_tokens + 1e-6 * attention


def policy_of(llm, itl_slo_s=0.1, ttft_slo_s=None, **options):
    return llm.LatencyPolicy(PerToken(), itl_slo_s, ttft_slo_s, **{"safety": 1.0, **options})


def decoding(llm, *ages_s, now_s=5.0, num_computed=0, **options):
    return [llm.DecodeWork(num_computed, now_s - age_s, **options) for age_s in ages_s]


pytestmark = pytest.mark.task("3.8.2")


def test_slack_is_that_of_the_most_urgent_decode(llm):
    policy = policy_of(llm)
    assert policy.slack_s(5.0, decoding(llm, 0.01, 0.07, 0.03)) == pytest.approx(0.03)
    assert policy.slack_s(5.0, decoding(llm, 0.25)) == pytest.approx(-0.15)
    assert policy.slack_s(5.0, []) == float("inf")


def test_budget_is_the_largest_step_inside_the_slack(llm):
    # 4 decodes and n new tokens of a fresh prompt: 1 ms (4 + n) + 1 us (4 + n (n + 1) / 2) <= 60.5 ms.
    # n = 55: 59 + 0.004 + 1.54 = 60.544 is too long; n = 54: 58 + 0.004 + 1.485 = 59.489 is not.
    policy = policy_of(llm)
    budget = policy.token_budget(5.0, decoding(llm, 0.0395, 0.0, 0.0, 0.0), [llm.PrefillWork(0, 1000)])
    assert budget == 4 + 54


def test_a_decode_with_a_draft_takes_more_than_one_token(llm):
    # 4 tokens behind 1,000 look 1,001 + ... + 1,004 = 4,010 times; with the other decode and n of a prompt:
    # 1 ms (5 + n) + 1 us (4,011 + n (n + 1) / 2) <= 60.5 ms: n = 50 makes 60.286, n = 51 61.337.
    drafting = llm.DecodeWork(1000, 5.0 - 0.0395, num_new=4)
    policy = policy_of(llm)
    budget = policy.token_budget(5.0, [drafting, *decoding(llm, 0.0)], [llm.PrefillWork(0, 1000)])
    assert budget == 4 + 1 + 50
    assert policy.model.asked[-1][2] - policy.model.asked[-1][0] == 1000, "stored: 1,000 and what is new"


def test_budget_equals_trying_every_size(llm):
    rng = random.Random(3)
    model = llm.StepTimeModel(measured())
    policy = llm.LatencyPolicy(model, 0.05, safety=1.2, min_prefill_tokens=8)
    for _ in range(60):
        decodes = [
            llm.DecodeWork(rng.randrange(4000), -rng.random() * 0.03) for _ in range(rng.randint(1, 40))
        ]
        prompts = [
            llm.PrefillWork(rng.randrange(6000), rng.randint(1, 900)) for _ in range(rng.randint(0, 3))
        ]
        slack_s = policy.slack_s(0.0, decodes)

        def inside(count, decodes=decodes, prompts=prompts, slack_s=slack_s):
            parts = [(1, decode.num_computed + 1, decode.num_computed + 1) for decode in decodes]
            for prompt in prompts:
                taken = min(count, prompt.num_new)
                parts += [prompt_chunk(prompt.num_computed, taken)] if taken else []
                count -= taken
            return 1.2 * model.predict(*together(*parts)) <= slack_s

        wanted = sum(prompt.num_new for prompt in prompts)
        best = max([count for count in range(wanted + 1) if inside(count)], default=0)
        got = policy.token_budget(0.0, decodes, prompts)
        assert got == len(decodes) + max(best, min(8, wanted))


@pytest.mark.parametrize("age_s", [0.095, 0.1, 0.2, 100.0])
def test_late_decodes_leave_the_progress_floor(llm, age_s):
    # 10 decodes alone take 10 ms: no slack is left for a prompt, and it still may not starve.
    policy = policy_of(llm, min_prefill_tokens=32)
    decodes = decoding(llm, *[age_s] * 10)
    assert policy.token_budget(5.0, decodes, [llm.PrefillWork(0, 500)]) == 10 + 32
    assert policy.token_budget(5.0, decodes, [llm.PrefillWork(0, 7)]) == 10 + 7
    assert policy.token_budget(5.0, decodes, []) == 10, "every decode takes its token, late or not"


def test_no_limit_when_nothing_decodes(llm):
    policy = policy_of(llm)
    assert policy.token_budget(5.0, [], [llm.PrefillWork(0, 100_000)]) is None
    assert policy.token_budget(5.0, [], []) is None
    due = llm.PrefillWork(0, 100, arrival_s=4.9)
    assert policy_of(llm, ttft_slo_s=0.2).token_budget(5.0, [], [due]) is None, "no batch class to hold back"
    only_batch = decoding(llm, 7.0, priority_class="batch")
    assert policy.token_budget(5.0, only_batch, [llm.PrefillWork(0, 100_000)]) is None


def test_choosing_a_budget_asks_the_model_a_few_times_only(llm):
    policy = policy_of(llm)
    policy.token_budget(5.0, decoding(llm, 0.0), [llm.PrefillWork(0, 100_000)])
    # Halving 100,000 takes 17 rounds. It happens before every step and delays all requests.
    assert len(policy.model.asked) <= 20


@pytest.mark.parametrize(
    "options",
    [
        {"itl_slo_s": 0.0},
        {"itl_slo_s": -1.0},
        {"ttft_slo_s": 0.0},
        {"safety": 0.9},
        {"min_prefill_tokens": 0},
    ],
)
def test_policy_rejects_what_cannot_be_meant(llm, options):
    with pytest.raises(ValueError):
        policy_of(llm, **options)


def test_without_a_safety_the_models_margin_with_room_multiplies_the_prediction(llm):
    policy = llm.LatencyPolicy(PerToken(), 0.1)
    decodes, prompts = decoding(llm, 0.0), [llm.PrefillWork(0, 500)]
    for margin in (1.25, 1.5, 1.75):  # PerToken wants more each time
        wanted = policy_of(llm, safety=1.04 * margin).token_budget(5.0, decodes, prompts)
        assert policy.token_budget(5.0, decodes, prompts) == wanted, f"margin {margin}"
    assert policy.model.shares == [0.995] * 3, "once for every budget"


@pytest.mark.parametrize("sigma", [0.02, 0.1, 0.2])
def test_the_promise_is_kept_on_a_machine_with_noise(llm, sigma):
    rng = random.Random(5)
    model = llm.StepTimeModel(measured())
    policy = llm.LatencyPolicy(model, 0.05)
    num_late, sizes = 0, []
    for _ in range(1000):
        decodes = [llm.DecodeWork(rng.randrange(4000), 0.0) for _ in range(8)]
        prompt = llm.PrefillWork(rng.randrange(6000), 2000)
        sizes.append(policy.token_budget(0.0, decodes, [prompt]))
        chunk = prompt_chunk(prompt.num_computed, sizes[-1] - 8)
        work = together(*[(1, each.num_computed + 1, each.num_computed + 1) for each in decodes], chunk)
        took_s = seconds(work) * rng.lognormvariate(0, sigma)
        num_late += took_s > 0.05
        model.record(*work, took_s)
    # 1 % would be late without the room. The correction follows the noise as well, which makes some more.
    assert num_late <= 15, f"{num_late} of 1000 steps were longer than the SLO"
    assert sum(sizes) / 1000 > 100, f"a mean budget of {sum(sizes) / 1000:.0f} is timid"


# What batch-class requests get of a step's token budget


def test_batch_class_decodes_have_no_deadline(llm):
    policy = policy_of(llm)
    late = decoding(llm, 9.0, priority_class="batch")
    assert policy.slack_s(5.0, late) == float("inf")
    assert policy.slack_s(5.0, late + decoding(llm, 0.0)) == pytest.approx(0.1)


def test_prompts_are_served_in_order_interactive_ones_first(llm):
    # The deep prompt is dear, the fresh one cheap: whose tokens come first decides how many fit.
    deep, fresh = llm.PrefillWork(16_000, 50), llm.PrefillWork(0, 50)
    decodes = decoding(llm, 0.0)
    budget = policy_of(llm, min_prefill_tokens=1).token_budget
    assert budget(5.0, decodes, [deep, fresh]) == 1 + 5
    assert budget(5.0, decodes, [fresh, deep]) == 1 + 50 + 2
    deep_batch = llm.PrefillWork(16_000, 50, priority_class="batch")
    assert budget(5.0, decodes, [deep_batch, fresh]) == 1 + 50 + 2


def test_batch_class_prompts_may_not_delay_a_first_token_beyond_its_slo(llm):
    waiting = llm.PrefillWork(0, 10, arrival_s=4.77)
    batch = llm.PrefillWork(0, 500, priority_class="batch")
    # Without a TTFT SLO the batch prompt takes what the decode's 100 ms leave.
    assert policy_of(llm).token_budget(5.0, decoding(llm, 0.0), [waiting, batch]) == 1 + 95
    # With one of 250 ms, the first token is due in 20 ms: 11 tokens are spoken for, 8 more fit.
    policy = policy_of(llm, ttft_slo_s=0.25)
    assert policy.token_budget(5.0, decoding(llm, 0.0), [waiting, batch]) == 1 + 10 + 8
    # Nothing decodes: the first token's deadline is the only one.
    assert policy.token_budget(5.0, [], [waiting, batch]) == 10 + 9
    # Already too late for the first token: it comes as soon as it can.
    too_late = llm.PrefillWork(0, 10, arrival_s=4.0)
    assert policy.token_budget(5.0, decoding(llm, 0.0), [too_late, batch]) == 1 + 10
    assert policy.token_budget(5.0, decoding(llm, 0.0), [batch]) == 1 + 94


def test_batch_class_prompts_get_nothing_while_an_interactive_one_is_unfinished(llm):
    model = PerToken()
    policy = llm.LatencyPolicy(model, 0.1, 5.0, safety=1.0)
    prompts = [llm.PrefillWork(0, 500), llm.PrefillWork(0, 500, priority_class="batch")]
    assert policy.token_budget(5.0, decoding(llm, 0.0), prompts) == 1 + 94


def test_batch_class_decodes_take_what_interactive_prompts_leave(llm):
    # 20 deep decodes of 1 + 1 ms: beside 30 tokens of a prompt, 30.465 ms, 34 of them would fit.
    batch = decoding(llm, *[0.0] * 20, num_computed=999, priority_class="batch")
    decodes = [*batch, *decoding(llm, 0.0)]
    budget = policy_of(llm, min_prefill_tokens=1).token_budget
    assert budget(5.0, decodes, [llm.PrefillWork(0, 30)]) == 1 + 30 + 20
    assert budget(5.0, decodes, [llm.PrefillWork(0, 70)]) == 1 + 70 + 13, "26.5 ms are left"
    assert budget(5.0, decodes, [llm.PrefillWork(0, 500)]) == 1 + 94, "as if they were not there"
    batch_prompt = llm.PrefillWork(999, 500, priority_class="batch")
    assert budget(5.0, decodes, [batch_prompt]) == 1 + 20 + 29, "their prompts come after them"
