"""The fit of step times that is given to day 3.8, and what a step's time depends on."""

import random
from dataclasses import replace

import pytest
from tests.helpers.fakes import FakeClock
from tests.helpers.step_samples import decodes_at, measured, prompt_chunk, seconds
from tests.helpers.toy import QWEN3, toy_model

import tiny_llm_ref
from tiny_llm_lab.runtime.solution import load_serving
from tiny_llm_lab.runtime.steps.calibration import calibrate, time_steps
from tiny_llm_lab.runtime.steps.runner import chunk, decodes
from tiny_llm_lab.types import StepSample, UserError, attention_tokens
from tiny_llm_lab.types.scheduling.step_time_fit import fit_step_times

# A machine with one regime; each coefficient matters in some of the samples.
TRUE = (0.002, 9e-5, 4e-9, 1e-7)
WILD = {3: 2.5, 11: 0.2, 17: 20.0, 24: 0.1, 31: 3.0, 40: 0.25}


def samples_of(coefficients, sigma=0.0):
    rng = random.Random(1)
    exact = measured(time_of=lambda work: seconds(work, coefficients, coefficients))
    return [
        StepSample(
            each.num_tokens,
            each.attention_tokens,
            each.kv_tokens_read,
            each.seconds * rng.lognormvariate(0, sigma),
        )
        for each in exact
    ]


ATTENDED = [
    (10, 1, 11),
    (10, 3, 36),
    (0, 1, 1),
    (0, 4, 10),
    (7, 0, 0),
    (4096, 512, 4096 * 512 + 512 * 513 // 2),
]


@pytest.mark.parametrize(("num_computed", "num_new", "want"), ATTENDED)
def test_attention_tokens(num_computed, num_new, want):
    assert attention_tokens(num_computed, num_new) == want


def test_attention_tokens_do_not_depend_on_where_a_prompt_is_cut():
    for cut in range(1, 40):
        assert attention_tokens(0, cut) + attention_tokens(cut, 40 - cut) == attention_tokens(0, 40)


def test_exact_samples_give_back_the_coefficients():
    assert fit_step_times(samples_of(TRUE)) == pytest.approx(TRUE, rel=1e-9)


def test_wild_samples_do_not_move_the_fit():
    wild = measured(lambda number: WILD.get(number, 1.0), lambda work: seconds(work, TRUE, TRUE))
    assert fit_step_times(wild) == pytest.approx(TRUE, rel=0.01)


def test_errors_count_relative_to_the_measured_time():
    # Three short steps agree on 1 ms, two long ones on 3 s: the fit follows the number of samples.
    samples = [StepSample(0, 0, 0, took_s) for took_s in (0.001, 0.001, 0.001, 3.0, 3.0)]
    assert fit_step_times(samples)[0] == pytest.approx(0.001, rel=0.01)


def test_a_falling_cost_has_no_negative_coefficient():
    # Measured while the machine warmed up: the larger steps came later and were faster.
    step_s, *others = fit_step_times([StepSample(n, 0, 0, 0.02 - 0.0001 * n) for n in range(1, 65)])
    assert others == [0, 0, 0]
    assert 0.0136 <= step_s <= 0.0199


def test_the_other_coefficients_make_up_for_one_that_is_kept_from_being_negative():
    # The machine is faster the more tokens a step has. Without a negative b the best is not a alone: c and d
    # are fitted anew, as if there were no b.
    samples = samples_of((0.02, -2e-6, 4e-9, 1e-7))
    without_tokens = [StepSample(0, s.attention_tokens, s.kv_tokens_read, s.seconds) for s in samples]
    assert fit_step_times(samples) == pytest.approx(fit_step_times(without_tokens), rel=1e-9)
    assert fit_step_times(samples)[1] == 0


@pytest.mark.parametrize("seed", range(20))
def test_no_neighbour_has_a_smaller_sum_of_relative_errors(seed):
    rng = random.Random(seed)
    truth = (rng.uniform(0, 0.01), rng.uniform(0, 1e-4), rng.uniform(0, 1e-8), rng.uniform(0, 1e-7))
    samples = samples_of(truth, sigma=0.1)

    def total_error(fit):
        return sum(
            abs(seconds((s.num_tokens, s.attention_tokens, s.kv_tokens_read), fit, fit) / s.seconds - 1)
            for s in samples
        )

    found = fit_step_times(samples)
    assert min(found) >= 0
    for i in range(4):
        for factor in (0.9, 1.1):
            other = (*found[:i], found[i] * factor, *found[i + 1 :])
            assert total_error(other) > total_error(found) - 1e-3, f"coefficient {i} times {factor}"


def test_decodes_alone_are_explained_by_what_they_read():
    works = [decodes_at(count, stored) for count in (1, 4, 16) for stored in (100, 1000, 4000)]
    a, b, c, d = fit_step_times([StepSample(*work, seconds(work)) for work in works])
    assert (a, d) == pytest.approx((0.010, 1e-7), rel=1e-9)
    assert b == pytest.approx(0, abs=1e-12) and c == 0, "a chunk attends to far more than it reads"
    assert prompt_chunk(4000, 512)[1] > 400 * prompt_chunk(4000, 512)[2]


# Timing steps before the first request: which ones, how often, and what remains of them


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
