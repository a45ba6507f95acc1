"""What the engine schedules, step by step: counts that can be worked out by hand, on a model that runs."""

import random
from functools import partial
from typing import Any

import pytest
from tests.helpers.tracing import steps_to_first_token, totals

from tiny_llm_lab.measure.trace import TraceRequest, decode_step_costs, schedule_trace, trace_run
from tiny_llm_lab.types import SchedulerConfig, UserError

pytestmark = pytest.mark.usefixtures("kernels_on")

# What a decode sits through when it wants 16 tokens and a prompt of 256 arrives that wants 2.
COSTS = {
    0: [257, 2] + [1] * 13,
    16: [17] * 15,
    32: [33] * 8 + [2] + [1] * 6,
    64: [65] * 4 + [2] + [1] * 10,
    128: [129] * 2 + [2] + [1] * 12,
    256: [257, 2] + [1] * 13,
}
# Budget, threshold -> totals from step 1 on while five long prompts arrive, then twos; each one's TTFT.
STORMS = {
    (1024, 0): ([258, 259, 259, 259, 259, 3], [1] * 5),
    (1024, 32): ([34, 66, 98, 130, 162, 162, 162, 162, 131, 99, 67, 35, 3], [8] * 5),
    (128, 32): (None, [8, 8, 8, 9, 13]),
}
VICTIMS = [(0, f"victim {i}", 1, 60) for i in range(2)]
LONGS = [(i, f"long {i}", 256, 2) for i in range(1, 6)]


@pytest.fixture(scope="module")
def storms() -> dict[tuple[int, int], list[dict[str, int]]]:
    return {
        (budget, threshold): schedule_trace(
            [*VICTIMS, *LONGS], max_num_batched_tokens=budget, long_prefill_token_threshold=threshold
        )
        for budget, threshold in STORMS
    }


@pytest.mark.parametrize("threshold", COSTS)
def test_costs_of_a_decode_beside_a_long_prompt(threshold: int) -> None:
    costs = decode_step_costs(threshold)
    assert costs == COSTS[threshold]
    cap = threshold or 256
    assert max(costs) <= cap + 1 and costs.count(cap + 1) == min(256 // cap, 15)
    if threshold != 16:  # with 16 the prompt outlives the decode
        assert sum(costs) == 272, "the work is the same however it is cut"


@pytest.mark.parametrize(
    ("decodes", "threshold", "steps", "worst"),
    [(0, 0, 8, 512), (1, 0, 9, 512), (128, 0, 11, 512), (1, 32, 128, 33)],
)
def test_the_longest_prompt_of_the_default_model(
    decodes: int, threshold: int, steps: int, worst: int
) -> None:
    check_4096(partial(schedule_trace, max_num_seqs=129), decodes, threshold, steps, worst)


def check_4096(run: Any, decodes: int, threshold: int, steps: int, worst: int) -> None:
    """A prompt that fills all positions, so that its answer has one token, and `decodes` that outlive it."""
    others = [(0, f"decode {i}", 1, steps + 2) for i in range(decodes)]
    trace = run(
        [*others, (1, "long", 4096, 1)],
        max_num_batched_tokens=512,
        long_prefill_token_threshold=threshold,
    )
    assert steps_to_first_token(trace, "long", 1, 4096) == steps
    assert max(totals(trace)) == worst
    assert sum(totals(trace)) == 4096 + decodes * (steps + 2)


@pytest.mark.parametrize("setting", STORMS)
def test_a_storm_of_long_prompts(storms: Any, setting: tuple[int, int]) -> None:
    steps, (budget, threshold) = storms[setting], setting
    sums, (wanted, ttfts) = totals(steps), STORMS[setting]
    assert sums[0] == 2 and sum(sums[1:]) == 1403, "the work is the same however it is cut"
    assert sum(sums) == sum(length + tokens - 1 for _, _, length, tokens in [*VICTIMS, *LONGS])
    if wanted is None:
        assert max(sums) == budget
    else:
        assert sums[1:] == wanted + [2] * (59 - len(wanted))
    assert [steps_to_first_token(steps, name, at, length) for at, name, length, _ in LONGS] == ttfts
    assert max(max(step.values()) for step in steps) <= (threshold or 256)


@pytest.mark.parametrize("setting", STORMS)
def test_no_storm_starves_a_victim_and_who_comes_first_ends_first(
    storms: Any, setting: tuple[int, int]
) -> None:
    for _, victim, _, tokens in VICTIMS:
        assert [step.get(victim) for step in storms[setting]] == [1] * tokens
    ends = [max(i for i, step in enumerate(storms[setting]) if name in step) for _, name, _, _ in LONGS]
    assert ends == sorted(ends)


@pytest.mark.parametrize("policy", ["fcfs", "fair", "priority"])
@pytest.mark.parametrize("case", range(4))
def test_no_policy_adds_or_loses_work(case: int, policy: Any) -> None:
    draw = random.Random(case)
    requests = [(draw.randint(0, 8), str(i), draw.randint(1, 90), draw.randint(1, 12)) for i in range(6)]
    steps = schedule_trace(
        requests, max_num_batched_tokens=24, long_prefill_token_threshold=case * 5, policy=policy
    )
    for at, name, length, tokens in requests:
        assert sum(step.get(name, 0) for step in steps) == length + tokens - 1
        assert not any(name in step for step in steps[:at])
    assert max(totals(steps)) <= 24


def test_priority_goes_first_and_an_idle_engine_waits_for_the_next() -> None:
    config = SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=4, policy="priority")
    requests = [TraceRequest("late", 2, 8, 1, priority=1), TraceRequest("urgent", 2, 8, 1)]
    assert trace_run(requests, config) == [{}, {}, {"urgent": 8}, {"late": 8}]
    with pytest.raises(UserError, match="0 or more"):
        schedule_trace([(-1, "a", 1, 1)], max_num_batched_tokens=8)
