"""Day 3.8: how long a step will take. The budget that follows from it: test_day_8_policy.py."""

import itertools
import random

import pytest
from tests.helpers.step_samples import decodes_at, measured, prompt_chunk, seconds, steps_of_all_kinds

from tiny_llm_lab.types import StepSample


def worst_error(model, time_of=seconds):
    return max(abs(model.predict(*work) / time_of(work) - 1) for work in steps_of_all_kinds())


@pytest.mark.task("3.8.1")
def test_model_finds_both_regimes_of_exact_measurements(llm):
    model = llm.StepTimeModel(measured())
    assert model.split_tokens == 128
    # Rounding of sums over a few dozen samples, nothing else.
    assert worst_error(model) < 1e-6


@pytest.mark.task("3.8.1")
def test_model_is_not_led_astray_by_a_few_wild_samples(llm):
    # Some steps were caught by something else; of some only the queueing was timed, not the computing.
    wild = {3: 2.5, 11: 0.2, 17: 20.0, 24: 0.1, 31: 3.0, 40: 0.25}
    model = llm.StepTimeModel(measured(wrong=lambda number: wild.get(number, 1.0)))
    assert worst_error(model) < 0.02


@pytest.mark.task("3.8.1")
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


@pytest.mark.task("3.8.1")
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


@pytest.mark.task("3.8.1")
def test_model_with_few_samples_of_one_regime_uses_all(llm):
    line = [StepSample(n, 0, 0, 0.001 + 0.0002 * n) for n in (200, 300, 400, 500, 600, 700, 800)]
    model = llm.StepTimeModel([*line, StepSample(4, 0, 0, 0.0018)], split_tokens=64)
    assert model.small == pytest.approx((0.001, 0.0002, 0, 0), rel=1e-6)
    assert model.large == pytest.approx((0.001, 0.0002, 0, 0), rel=1e-6)


@pytest.mark.task("3.8.1")
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


@pytest.mark.task("3.8.1")
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


@pytest.mark.task("3.8.1")
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


@pytest.mark.task("3.8.1")
def test_corrections_follow_a_machine_that_became_three_times_slower(llm):
    model = llm.StepTimeModel(measured())
    for work in list(steps_of_all_kinds()) * 3:
        model.record(*work, 3 * seconds(work))
    assert worst_error(model, lambda work: 3 * seconds(work)) < 0.02


@pytest.mark.task("3.8.1")
def test_one_hiccup_is_not_a_new_machine(llm):
    model = llm.StepTimeModel(measured())
    work = prompt_chunk(0, 512)
    model.record(*work, 100 * seconds(work))
    assert model.large_correction == pytest.approx(0.9 + 0.1 * 2)
    model.record(*work, seconds(work) / 100)
    assert model.large_correction == pytest.approx(1.1 * (0.9 + 0.1 * 0.5))


@pytest.mark.task("3.8.1")
def test_error_is_that_of_predictions_made_before_the_step(llm):
    model = llm.StepTimeModel(measured(), newest=0)
    work = decodes_at(8, 1000)
    for share in (1.0, 1.25, 2.0, 4.0, 0.8):
        model.record(*work, model.predict(*work) * share)
    # |1 / share - 1|: 0, 0.2, 0.5, 0.75, 0.25, by nearest rank.
    error = model.error()
    assert (error.count, error.p50, error.p90) == pytest.approx((5, 0.25, 0.75))


@pytest.mark.task("3.8.1")
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


@pytest.mark.task("3.8.1")
def test_margin_is_the_percentile_of_measured_over_predicted(llm):
    ratios = [1 + n / 512 for n in range(1, 257)]
    random.Random(4).shuffle(ratios)
    model = recorded(llm, ratios)
    # By nearest rank of 256 steps: the 254th, the 128th, the first and the last.
    for share, rank in ((0.99, 254), (0.5, 128), (0.0, 1), (1.0, 256)):
        assert model.margin(share) == pytest.approx(1 + rank / 512), f"share {share}"


@pytest.mark.task("3.8.1")
def test_margin_does_not_count_decodes_alone(llm):
    model = recorded(llm, [1.25] * 256)
    recorded(llm, [1.9] * 100, model, decodes_at(8, 1000))
    assert model.margin(0.99) == pytest.approx(1.25)
    assert model.error().count == 256 and model.error().p90 == pytest.approx(1 - 1 / 1.9), "errors count all"


@pytest.mark.task("3.8.1")
def test_margin_stays_between_one_and_two(llm):
    assert recorded(llm, [0.5] * 256).margin(0.99) == 1, "a fast phase is no promise"
    assert recorded(llm, [30.0] * 256).margin(0.99) == 2, "prompts must not starve after a hiccup"


@pytest.mark.task("3.8.1")
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


@pytest.mark.task("3.8.1")
def test_margin_without_any_chunk_is_one(llm):
    assert llm.StepTimeModel([StepSample(n, n, n, 0.01) for n in (1, 2, 3)]).margin(0.99) == 1
