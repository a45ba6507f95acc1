"""Timing steps before the first request: which ones, how often, and what remains of them."""

from dataclasses import replace

import pytest
from tests.helpers.fakes import FakeClock
from tests.helpers.toy import QWEN3, toy_model

import tiny_llm_ref
from tiny_llm_lab.runtime.solution import load_serving
from tiny_llm_lab.runtime.steps.calibration import calibrate, time_steps
from tiny_llm_lab.runtime.steps.runner import chunk, decodes
from tiny_llm_lab.types import UserError


class Watched:
    """A model that counts the rows of its passes and remembers its caches; each pass costs `cost_s`."""

    def __init__(self, clock, cost_s=0.001, limit=1024):
        self.model = toy_model(tiny_llm_ref, replace(QWEN3, max_position_embeddings=limit))
        self.config, self.clock, self.cost_s = self.model.config, clock, cost_s
        self.passes = []
        self.caches = []

    def create_paged_kv_cache(self, num_blocks, block_size):
        self.caches.append(self.model.create_paged_kv_cache(num_blocks, block_size))
        return self.caches[-1]

    def __call__(self, tokens, *args, **kwargs):
        self.passes.append(len(tokens))
        self.clock.now += self.cost_s * len(tokens)
        return self.model(tokens, *args, **kwargs)


def test_samples_say_what_a_step_costs():
    clock = FakeClock()
    model = Watched(clock)
    samples = calibrate(model, load_serving("ref"), clock=clock, limit_s=1e9)
    assert len(samples) == 18
    assert {sample.num_tokens for sample in samples} == {1, 4, 16, 64, 256}
    assert all(sample.seconds == pytest.approx(0.001 * sample.num_tokens) for sample in samples)
    shapes = {(sample.num_tokens, sample.attention_tokens, sample.kv_tokens_read) for sample in samples}
    assert {(1, 1, 1), (1, 129, 129), (16, 16, 16), (16, 136, 16), (16, 8208, 8208)} <= shapes
    assert len(model.passes) == 1 + 18 * 4, "one to warm up, then each once more than it counts"
    assert [cache.nbytes for cache in model.caches] == [0], "the memory is given back"
    fitted = tiny_llm_ref.StepTimeModel(samples)
    assert fitted.predict(64, 64 * 65 // 2, 64) == pytest.approx(0.064, rel=0.05)


def test_a_slow_machine_is_not_asked_for_long():
    clock = FakeClock()
    model = Watched(clock, cost_s=0.1)
    samples = calibrate(model, load_serving("ref"), clock=clock, limit_s=3.0)
    assert 3 <= len(samples) < 18
    assert clock.now < 3.0 + 1.6 * 4, "no step began after the limit"
    assert len(calibrate(Watched(clock, 100.0), load_serving("ref"), clock=clock)) == 3


def test_a_model_without_room_cannot_be_timed():
    clock = FakeClock()
    assert len(calibrate(Watched(clock, limit=17), load_serving("ref"), clock=clock)) == 4
    with pytest.raises(UserError, match="leave out the SLO"):
        calibrate(Watched(clock, limit=0), load_serving("ref"), clock=clock)


def clocked(clock, cold_s, warm_s):
    """What was run, and a `run` that takes `cold_s` for a step the first time and `warm_s` later."""
    ran = []

    def run(step):
        clock.now += warm_s if step in ran else cold_s
        ran.append(step)

    return ran, run


def test_steps_take_turns_and_the_first_time_of_each_does_not_count():
    clock, steps = FakeClock(), [chunk(0, n) for n in (1, 2, 4)]
    ran, run = clocked(clock, 5.0, 1.0)
    assert time_steps(run, steps, 2, clock=clock) == [[1.0, 1.0]] * 3
    assert ran == steps * 3, "in rounds, so that a slow phase meets them all"


def test_when_time_is_up_the_first_times_stand_in():
    clock, steps = FakeClock(), [chunk(0, n) for n in range(1, 6)]
    _, run = clocked(clock, 2.0, 1.0)
    # Begun at 0, 2, 4, 6, 8; the second round at 10 and 11, and 12 is after the limit.
    assert time_steps(run, steps, 3, limit_s=11.5, clock=clock) == [[1.0], [1.0], [2.0], [2.0], [2.0]]
    _, run = clocked(clock, 2.0, 1.0)
    assert time_steps(run, steps, 3, limit_s=7.0, clock=clock) == [[2.0]] * 4, "the fifth never began"
    _, run = clocked(clock, 2.0, 1.0)
    assert time_steps(run, steps, 3, limit_s=0.5, clock=clock) == [[2.0]] * 3, "three are the least"


def test_the_steps_may_be_given():
    clock = FakeClock()
    model = Watched(clock, limit=64)
    steps = [decodes(2, 8) + chunk(0, 3), decodes(1, 8), chunk(60, 5), chunk(60, 4), chunk(0, 3)]
    samples = calibrate(model, load_serving("ref"), steps, rounds=1, clock=clock)
    # Small ones first; the chunk up to token 65 does not fit.
    assert [(each.num_tokens, each.attention_tokens, each.kv_tokens_read) for each in samples] == [
        (1, 9, 9),
        (3, 6, 3),
        (4, 61 + 62 + 63 + 64, 64),
        (5, 2 * 9 + 6, 2 * 9 + 3),
    ]
