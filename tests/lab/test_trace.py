"""The engine run for its schedule, on a model: what tests of week 3 work out for the scheduler alone."""

import pytest
from tests.helpers.tracing import steps_to_first_token, totals, traced

from tiny_llm_lab.measure.trace import TraceRequest, trace_run
from tiny_llm_lab.types import SchedulerConfig, UserError
from tiny_llm_ref.engine.step_costs import decode_step_costs

pytestmark = pytest.mark.usefixtures("kernels_on")


# What steps cost a decode, and storms, are in tests/week_3/test_day_4_step_costs.py.
def test_the_engine_computes_what_the_scheduler_alone_plans():
    """A decode that wants 16 tokens, and a prompt of 256 that arrives one step later and wants two."""
    arrivals = [(0, "reader", 1, 16), (1, "long", 256, 2)]
    for threshold in (0, 16, 32):
        trace = traced(arrivals, 272, threshold)
        costs = [sum(step.values()) for step in trace if "reader" in step][1:]
        assert costs == decode_step_costs(threshold)


def test_the_longest_prompt_of_the_default_model():
    """It fills all positions, so that its answer has one token; the decode outlives it."""
    trace = traced([(0, "decode", 1, 130), (1, "long", 4096, 1)], 512, threshold=32)
    assert steps_to_first_token(trace, "long", 1, 4096) == 128
    assert max(totals(trace)) == 33 and sum(totals(trace)) == 4096 + 130


def test_priority_goes_first_and_an_idle_engine_waits_for_the_next():
    config = SchedulerConfig(max_num_batched_tokens=8, max_num_seqs=4, policy="priority")
    requests = [TraceRequest("late", 2, 8, 1, priority=1), TraceRequest("urgent", 2, 8, 1)]
    assert trace_run(requests, config) == [{}, {}, {"urgent": 8}, {"late": 8}]
    with pytest.raises(UserError, match="0 or more"):
        traced([(-1, "a", 1, 1)], 8)
