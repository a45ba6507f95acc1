"""Day 3.8: what batch-class requests get of a step's token budget."""

import pytest
from tests.helpers.latency import PerToken, decoding, policy_of


@pytest.mark.task("3.8.2")
def test_batch_class_decodes_have_no_deadline(llm):
    policy = policy_of(llm)
    late = decoding(llm, 9.0, priority_class="batch")
    assert policy.slack_s(5.0, late) == float("inf")
    assert policy.slack_s(5.0, late + decoding(llm, 0.0)) == pytest.approx(0.1)


@pytest.mark.task("3.8.2")
def test_prompts_are_served_in_order_interactive_ones_first(llm):
    # The deep prompt is dear, the fresh one cheap: whose tokens come first decides how many fit.
    deep, fresh = llm.PrefillWork(16_000, 50), llm.PrefillWork(0, 50)
    decodes = decoding(llm, 0.0)
    budget = policy_of(llm, min_prefill_tokens=1).token_budget
    assert budget(5.0, decodes, [deep, fresh]) == 1 + 5
    assert budget(5.0, decodes, [fresh, deep]) == 1 + 50 + 2
    deep_batch = llm.PrefillWork(16_000, 50, priority_class="batch")
    assert budget(5.0, decodes, [deep_batch, fresh]) == 1 + 50 + 2


@pytest.mark.task("3.8.2")
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


@pytest.mark.task("3.8.2")
def test_batch_class_prompts_get_nothing_while_an_interactive_one_is_unfinished(llm):
    model = PerToken()
    policy = llm.LatencyPolicy(model, 0.1, 5.0, safety=1.0)
    prompts = [llm.PrefillWork(0, 500), llm.PrefillWork(0, 500, priority_class="batch")]
    assert policy.token_budget(5.0, decoding(llm, 0.0), prompts) == 1 + 94


@pytest.mark.task("3.8.2")
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
