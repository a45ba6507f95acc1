"""Day 3.6: what `on_step` sees of the engine's core."""

from dataclasses import replace

import pytest
from tests.helpers.core import make_core
from tests.helpers.fakes import FakeClock
from tests.helpers.fragile import BrokenError, Fragile

from tiny_llm_lab.types import SamplingParams, SchedulerConfig

LONG = SamplingParams(max_tokens=12, ignore_eos=True)
TWO_AT_A_TIME = SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=2)


class Steps:
    """An `on_step` that keeps what it is told, and the state of its core at that moment."""

    def __init__(self):
        self.plans, self.stats, self.states, self.core = [], [], [], None

    def __call__(self, plan, stats):
        self.plans.append(dict(plan.num_scheduled_tokens))
        self.stats.append(stats)
        scheduler = self.core.scheduler
        self.states.append((len(scheduler.running), len(scheduler.waiting), scheduler.pool.num_free))


def watched(llm, model, config=None, **settings):
    steps = Steps()
    steps.core = make_core(llm, model, config, on_step=steps, **settings)
    return steps.core, steps


@pytest.mark.task("3.6.4")
def test_on_step_sees_every_step_with_its_numbers(llm, model):
    core, steps = watched(llm, model, replace(TWO_AT_A_TIME, max_num_batched_tokens=16), clock=FakeClock(1.0))
    core.add("a", [97] * 20, replace(LONG, max_tokens=2))
    core.add("b", [98] * 3, replace(LONG, max_tokens=1))
    core.add("c", [99] * 3, replace(LONG, max_tokens=1))
    while core.has_requests:
        core.step()
    assert steps.plans == [{"a": 16}, {"a": 4, "b": 3}, {"a": 1, "c": 3}]
    got = [(each.num_running, each.num_waiting) for each in steps.stats]
    assert got == [(1, 2), (1, 1), (0, 0)], "(running, waiting) after each step"
    assert [each.num_prompt_tokens for each in steps.stats] == [16, 7, 3], "and decodes are none"
    assert [each.num_free_blocks for each in steps.stats] == [255, 254, 256], "free after each step"
    assert [
        (each.num_running, each.num_waiting, each.num_free_blocks) for each in steps.stats
    ] == steps.states, "the state after the step: ended requests have left"
    assert core.step() == []
    assert len(steps.plans) == 3, "without requests there is no step"


@pytest.mark.task("3.6.4")
def test_a_step_is_timed_from_its_plan_to_its_tokens(llm, model):
    clock = FakeClock()

    class Slow(Fragile):
        def __call__(self, *args, **kwargs):
            clock.now += 3.0
            return self.model(*args, **kwargs)

    core, steps = watched(llm, Slow(model), clock=clock)
    core.add("a", [97], replace(LONG, max_tokens=2))
    clock.now = 5.0
    core.step()
    clock.now = 10.0
    plan = core.scheduler.schedule

    def slowly(*given):
        clock.now += 1.0
        return plan(*given)

    core.scheduler.schedule = slowly
    core.step()
    got = [(each.start_s, each.end_s) for each in steps.stats]
    assert got == [(5.0, 8.0), (10.0, 14.0)], (
        "steps begin at 5 and 10 s, the model takes 3 s, and planning the second one a second"
    )


@pytest.mark.task("3.7.2")
@pytest.mark.parametrize("error", [BrokenError, KeyboardInterrupt])
def test_a_step_ahead_of_one_that_failed_is_not_read(llm, model, error):
    fragile = Fragile(model)
    core, steps = watched(llm, fragile, async_scheduling=True)
    for name in ("a", "b"):
        core.add(name, [97, 98], LONG)
    core.step()
    fragile.error = error()
    with pytest.raises(error):
        core.step()
    fragile.error = None
    steps.plans.clear()
    core.add("next", [97], replace(LONG, max_tokens=1))
    assert [each.sequence.request_id for each in core.step()] == ["next"]
    assert steps.plans == [{"next": 1}]


@pytest.mark.task("3.7.2")
def test_on_step_sees_steps_that_were_launched_ahead(llm, model):
    def told(**settings):
        core, steps = watched(llm, model, **settings)
        core.add("a", [97, 98], replace(LONG, max_tokens=5))
        core.add("b", [99], replace(LONG, max_tokens=5))
        while core.has_requests:
            core.step()
        return steps

    usual, ahead = told(), told(async_scheduling=True)
    assert usual.plans == [{"a": 2, "b": 1}, *[{"a": 1, "b": 1}] * 4]
    assert ahead.plans == usual.plans
    assert [each.num_running for each in ahead.stats] == [2, 2, 2, 2, 0]
    starts, ends = zip(*((each.start_s, each.end_s) for each in ahead.stats), strict=True)
    assert all(later < end for later, end in zip(starts[1:4], ends[:3], strict=True)), "launched ahead"


@pytest.mark.task("3.6.4")
def test_a_failed_step_is_not_told(llm, model):
    fragile = Fragile(model)
    core, steps = watched(llm, fragile)
    core.add("a", [97], LONG)
    core.step()
    fragile.error = BrokenError()
    with pytest.raises(BrokenError):
        core.step()
    assert len(steps.plans) == 1
