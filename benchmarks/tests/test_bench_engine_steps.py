"""bench-engine: what it plans, computes and says; no test looks at a real clock."""

import json
from types import ModuleType, SimpleNamespace
from typing import cast
from unittest.mock import MagicMock

import pytest
from tests.helpers.fake_clock import FakeClock

from benchmarks.engine import chunks, steps
from benchmarks.engine import config as configs
from benchmarks.engine.chunks import (
    chunk_position,
    depths,
    held_out,
    prediction_errors,
    tokens_fit,
    tokens_note,
)
from benchmarks.engine.config import BenchConfig
from benchmarks.engine.steps import COUNTS, ahead, mixed, paged, scheduler
from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.measure.bench import chunk_memory
from tiny_llm_lab.measure.bench.chunk_memory import memory_rows
from tiny_llm_lab.measure.bench.spec import Spec
from tiny_llm_lab.measure.simulate.setting import calibration_json, load_calibration
from tiny_llm_lab.runtime.steps import calibration
from tiny_llm_lab.runtime.steps.calibration import THOROUGH, calibrate
from tiny_llm_lab.runtime.steps.runner import Part, StepRunner, blocks_of, chunk, decodes, work_of
from tiny_llm_lab.runtime.task_names import TaskNames
from tiny_llm_lab.types import UserError

REF = TaskNames(cast(ModuleType, load_solution("ref")))


def config(**others):
    model = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=4096, vocab_size=100))
    checkpoint = None
    return BenchConfig(REF, model, checkpoint, Spec("default", "ref"), **others)


def ratios(section):
    return {each.name: each.value for each in section.ratios if each}


def test_the_work_of_a_step():
    step = (*decodes(2, 10), *chunk(100, 3))
    # Two rows that see 11 tokens each; three that see 101, 102 and 103.
    assert work_of(step) == (5, 2 * 11 + 101 + 102 + 103, 2 * 11 + 103)
    assert blocks_of((Part(31, 1), Part(32, 1), Part(0, 64)), 32) == 1 + 2 + 2


def test_a_step_can_be_repeated_and_draws_what_it_is_asked_to():
    model = REF.build_model(load_checkpoint("default"))
    step = (Part(40, 1, is_drawn=True), Part(5, 9), Part(7, 3, is_drawn=True))
    runner = StepRunner(REF, model, [step])
    first = runner.run(step)
    assert len(first) == 2 and runner.run(step) == first, "nothing it stands on has changed"
    assert runner.run(chunk(0, 4)) == []
    runner.release()


@pytest.mark.parametrize("max_len", [300, 2560])
def test_what_is_measured_and_what_is_held_out_stay_inside_the_bounds(max_len):
    for drawn in (THOROUGH.steps(max_len, 128), held_out(max_len, 128, seed=1)):
        assert drawn and max(part.stored + part.new for step in drawn for part in step) <= max_len
        assert max(part.new for step in drawn for part in step) <= 128
    assert held_out(max_len, 128, 1) == held_out(max_len, 128, 1) != held_out(max_len, 128, 2)
    seen = {work_of(step) for step in THOROUGH.steps(max_len, 128)}
    assert not seen & {work_of(step) for step in held_out(max_len, 128, 1)}, "they are new to the model"


def test_a_calibration_of_a_linear_machine_predicts_it_and_simulate_reads_it(monkeypatch, tmp_path):
    clock = FakeClock()

    def seconds_of(step):
        num_tokens, attention, kv_read = work_of(step)
        return 0.004 + 1e-4 * num_tokens + 1e-8 * attention + 1e-7 * kv_read

    class FakeRunner:
        def __init__(self, *args, **others): ...

        def run(self, step):
            clock.sleep(seconds_of(step))

        def __enter__(self):
            return self

        def __exit__(self, *_): ...

    monkeypatch.setattr(calibration, "StepRunner", FakeRunner)
    samples = calibrate(config().model, REF, THOROUGH.steps(2560), limit_s=1e9, clock=clock)
    model = REF.StepTimeModel(samples, newest=0.0)
    unseen = held_out(2560, 512, seed=3)
    works = [work_of(step) for step in unseen]
    errors, _ = prediction_errors(model, works, [[seconds_of(step)] for step in unseen])
    assert max(errors) < 0.05
    file = tmp_path / "calibration.json"
    file.write_text(json.dumps(calibration_json(model)), encoding="utf-8")
    work = work_of(decodes(4, 512))
    assert load_calibration(file).seconds(*work) == pytest.approx(model.predict(*work))


def test_errors_against_the_median_and_against_every_run():
    model = SimpleNamespace(predict=lambda *work: 1.0)
    of_medians, of_runs = prediction_errors(model, [(8, 36, 8)], [[1.0, 2.0, 4.0]])
    assert of_medians == [0.5] and of_runs == [0.0, 0.5, 0.75]


def test_tokens_alone_give_a_line_and_its_knee():
    fit = tokens_fit([1, 100, 300, 500], [0.002 + 1e-5 * n for n in (1, 100, 300, 500)])
    assert fit == pytest.approx({"r": 1, "slope_s": 1e-5, "intercept_s": 0.002, "knee_tokens": 200})
    assert "r 1.000, 2000 µs + 10 µs a token; knee 200 tokens" in tokens_note(fit, 4)
    falling = tokens_fit([1, 2, 3], [3.0, 2.0, 1.0])
    assert falling["knee_tokens"] is None and "no knee" in tokens_note(falling, 3)
    assert tokens_fit([0, 1, 2, 3], [1, 4, 1, 4])["r"] == pytest.approx(0.4472, abs=1e-4)


def test_chunks_begin_as_deep_as_the_model_allows():
    assert depths(40_960, 128) == [0, 1024, 2048, 4096]
    assert depths(4096, 128) == [0, 1024, 2048, 3968]
    assert depths(512, 128) == [0, 384]


@pytest.fixture
def timed(monkeypatch):
    """Runs an experiment in which every variant takes the seconds that are given by its name."""

    class Sized(BenchConfig):
        runner = decoding_engine = lambda *_, **__: MagicMock()

    def run(experiment, seconds):
        def time_variants(variants, *_, **__):
            return {variant.name: (seconds[variant.name],) for variant in variants}

        for module in (steps, configs):
            monkeypatch.setattr(module, "time_variants", time_variants)
        monkeypatch.setattr(steps, "_dense", lambda *_: MagicMock())
        monkeypatch.setattr(chunks, "time_steps", lambda run, known, rounds: [[0.01]] * len(known))
        plain = config()
        return experiment(Sized(plain.llm, plain.model, plain.checkpoint, plain.spec, context=512))

    return run


AT = [f"{name} at {stored}" for stored in (0, 512) for name in ("chunk", "mixed", "two steps")]


@pytest.mark.parametrize(
    ("experiment", "seconds", "found", "met", "note"),
    [
        (mixed, {"decodes": 1.0, **dict(zip(AT, [10, 11, 12.5] * 2, strict=True))},
         [1.1, 0.88] * 2, [True, None] * 2, "The chunk alone samples no token"),
        (paged, {"Engine.step": 2.0, "handle_decode_phase": 1.8, "forward pass alone": 1.5},
         [0.9], [False], "25.0% of the engine's step is outside the forward pass"),
        (ahead, {"each read first, 1 streams": 32.0, "a step ahead, 1 streams": 16.0,
                 "each read first, 8 streams": 48.0, "a step ahead, 8 streams": 64.0},
         [2.0, 0.75], [None] * 2, "Saved in a step: 1000.00 ms, -1000.00 ms"),  # 16 steps in a turn
        (scheduler, {f"plan {n}": 8 * n * 1e-5 for n in COUNTS} | {f"model {n}": 0.01 for n in COUNTS},
         [1.0], [None], "contexts of only 14 tokens"),  # a turn plans 8 steps; each request costs the same
        (chunk_position, {"at 0": 1.0, "at 1024": 2.0, "at 2048": 3.0, "at 3968": 4.5},
         [2.0, 3.0, 4.5], [None] * 3, "on 24 others; medians: p50 "),
    ],
)  # fmt: skip
def test_what_each_experiment_makes_of_its_times(timed, experiment, seconds, found, met, note):
    report = timed(experiment, seconds)
    assert list(ratios(report).values()) == pytest.approx(found)
    assert [each.is_met for each in report.ratios if each] == met
    assert note in report.notes[0]


def test_a_prompt_in_chunks_and_what_they_read_again(monkeypatch):
    monkeypatch.setattr(chunk_memory, "free_memory", lambda: 5e6)
    monkeypatch.setattr(chunk_memory.mx, "get_peak_memory", lambda: 9e6)
    ran = []
    runner = SimpleNamespace(run=ran.append, cache=SimpleNamespace(nbytes=7))
    rows, pool_bytes = memory_rows(runner, 4096, [512, 4096])
    assert ran == [chunk(0, 512), *(chunk(start, 512) for start in range(0, 4096, 512)), chunk(0, 4096)]
    found = [[row.samples[key][0] for key in ("steps", "reread_tokens", "above_held_bytes")] for row in rows]
    assert found == [[8, 14_336, 4e6], [1, 0, 4e6]] and pool_bytes == 7
    assert [row.name for row in rows] == ["512", "4096 (one piece)"]


def test_a_request_that_is_too_long_is_named():
    with pytest.raises(UserError, match="--context and --chunk: 5000 tokens are more than the model's 4096"):
        config().require_room(5000, "--context and --chunk")
