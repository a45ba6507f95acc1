"""bench-engine: what it plans, computes and says; no test looks at a real clock."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.bench.engine import ahead, chunk_position, memory, mixed, paged, scheduling
from tiny_llm_lab.bench.engine.chunk_position import calibration_json, depths, held_out, prediction_errors
from tiny_llm_lab.bench.engine.config import BenchConfig
from tiny_llm_lab.bench.engine.memory import chunk_starts
from tiny_llm_lab.bench.engine.scheduling import COUNTS, decoding
from tiny_llm_lab.bench.report import Section
from tiny_llm_lab.simulate.cost import load_calibration
from tiny_llm_lab.steps import calibration
from tiny_llm_lab.steps.calibration import THOROUGH, calibrate
from tiny_llm_lab.steps.runner import StepRunner
from tiny_llm_lab.steps.shapes import Part, Step, blocks_of, chunk, decodes, work_of
from tiny_llm_lab.types import UserError

REF: Any = load_solution("ref")


class Clock:
    """Time that passes only when it is told to."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def pass_by(self, seconds: float) -> None:
        self.now_s += seconds


def config(**others: Any) -> BenchConfig:
    model: Any = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=4096, vocab_size=100))
    checkpoint: Any = None
    return BenchConfig(REF, model, checkpoint, **others)


def ratios(section: Section) -> dict[str, float]:
    return {each.name: each.value for each in section.ratios if each}


def test_the_work_of_a_step() -> None:
    step = (*decodes(2, 10), *chunk(100, 3))
    # Two rows that see 11 tokens each; three that see 101, 102 and 103.
    assert work_of(step) == (5, 2 * 11 + 101 + 102 + 103, 2 * 11 + 103)
    assert blocks_of((Part(31, 1), Part(32, 1), Part(0, 64)), 32) == 1 + 2 + 2


def test_a_step_can_be_repeated_and_draws_what_it_is_asked_to() -> None:
    model = REF.build_model(load_checkpoint("default"))
    step: Step = (Part(40, 1, is_drawn=True), Part(5, 9), Part(7, 3, is_drawn=True))
    runner = StepRunner(REF, model, [step])
    first = runner.run(step)
    assert len(first) == 2 and runner.run(step) == first, "nothing it stands on has changed"
    assert runner.run(chunk(0, 4)) == []
    runner.release()


@pytest.mark.parametrize("max_len", [300, 2560])
def test_what_is_measured_and_what_is_held_out_stay_inside_the_bounds(max_len: int) -> None:
    for steps in (THOROUGH.steps(max_len, 128), held_out(max_len, 128, seed=1)):
        assert steps and max(part.stored + part.new for step in steps for part in step) <= max_len
        assert max(part.new for step in steps for part in step) <= 128
    assert held_out(max_len, 128, 1) == held_out(max_len, 128, 1) != held_out(max_len, 128, 2)
    seen = {work_of(step) for step in THOROUGH.steps(max_len, 128)}
    assert not seen & {work_of(step) for step in held_out(max_len, 128, 1)}, "they are new to the model"


def test_a_calibration_of_a_linear_machine_predicts_it_and_simulate_reads_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = Clock()

    def seconds_of(step: Step) -> float:
        num_tokens, attention, kv_read = work_of(step)
        return 0.004 + 1e-4 * num_tokens + 1e-8 * attention + 1e-7 * kv_read

    class FakeRunner:
        def __init__(self, *args: Any, **others: Any) -> None: ...

        def run(self, step: Step) -> None:
            clock.pass_by(seconds_of(step))

        def __enter__(self) -> "FakeRunner":
            return self

        def __exit__(self, *_: object) -> None: ...

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


def test_errors_against_the_median_and_against_every_run() -> None:
    model = SimpleNamespace(predict=lambda *work: 1.0)
    of_medians, of_runs = prediction_errors(model, [(8, 36, 8)], [[1.0, 2.0, 4.0]])
    assert of_medians == [0.5] and of_runs == [0.0, 0.5, 0.75]
    model.split_tokens, model.small, model.large = 8, (1, 0, 0, 0), (1, 0, 0, 0)
    seconds = {"at 0": (1.0,), "at 9": (3.0,)}
    report = chunk_position.section(seconds, 128, model, 40, (of_medians, of_runs))
    assert ratios(report) == {"at 9 / at 0": 3.0}
    assert report.data["error"]["of_runs"] == {"p50": 0.5, "p90": 0.75}


def test_chunks_begin_as_deep_as_the_model_allows() -> None:
    assert depths(40_960, 128) == [0, 1024, 2048, 4096]
    assert depths(4096, 128) == [0, 1024, 2048, 3968]
    assert depths(512, 128) == [0, 384]


def test_riding_along_is_compared_with_the_chunk_alone_and_with_two_steps() -> None:
    seconds = {"decodes": (1.0,)}
    for stored in (0, 512):
        seconds |= {f"chunk at {stored}": (10.0,), f"mixed at {stored}": (11.0,)}
        seconds[f"two steps at {stored}"] = (12.5,)
    report = mixed.section(seconds, config())
    assert list(ratios(report).values()) == [1.1, 0.88] * 2
    assert [each.is_met for each in report.ratios if each] == [True, None] * 2


def test_the_speed_of_pages_is_that_of_dense_rows_over_ours() -> None:
    seconds = {"ours": (2.0,), "dense": (1.8,), "forward": (1.5,)}
    report = paged.section(seconds, config())
    (found,) = report.ratios
    assert found is not None and found.value == pytest.approx(0.9) and found.is_met is False
    assert "25.0% of the engine's step is not the forward pass" in report.notes[0]


def test_steps_ahead_are_compared_stream_by_stream() -> None:
    names = ("each read first, 1 streams", "a step ahead, 1 streams", "each read first, 8", "a step ahead, 8")
    report = ahead.section(dict(zip(names, [(32.0,), (16.0,), (48.0,), (64.0,)], strict=True)), config())
    assert list(ratios(report).values()) == [2.0, 0.75]
    assert "1000.00 ms, -1000.00 ms" in report.notes[0], "16 steps in a turn"


def test_planning_costs_by_step_by_request_and_beside_the_model() -> None:
    seconds = {f"plan {count}": (8 * count * 1e-5,) for count in COUNTS}  # a turn plans 8 steps
    seconds |= {f"model {count}": (0.01,) for count in COUNTS}
    report = scheduling.section(seconds, 512)
    assert list(ratios(report).values()) == [pytest.approx(1.0)], "a line: each request costs the same"
    cells = [column.cell(report.rows[0].samples[column.key]) for column in report.columns]
    assert cells == ["0.080", "10.00", "10.000", "0.80%"]


def test_planned_decodes_take_a_token_each_and_share_nothing() -> None:
    made = []

    class Watched(REF.Scheduler):  # type: ignore[misc]
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            made.append(self)

    llm = SimpleNamespace(**{name: getattr(REF, name) for name in REF.__all__} | {"Scheduler": Watched})
    decoding(llm, count=3, context=40, num_steps=16)()
    running = made[0].running
    assert [request.num_tokens for request in running] == [40 + 1 + 8] * 3
    assert [request.num_cached_tokens for request in running] == [0] * 3
    made[0].check()


@pytest.mark.parametrize(("size", "extra"), [(4096, 0), (2048, 2048), (1024, 6144), (512, 14_336)])
def test_what_chunks_read_again(size: int, extra: int) -> None:
    assert sum(chunk_starts(4096, size)) == extra


def test_peaks_are_shown_above_what_is_held() -> None:
    row = memory.row(64, 64, held_bytes=5e6, peak_bytes=9e6, seconds=1.0)
    cells = [column.cell(row.samples[column.key]) for column in memory.COLUMNS]
    assert (row.name, cells) == ("64 (one piece)", ["1", "9.0", "4.0", "0", "1.00"])
    assert memory.row(64, 16, 0, 0, 1.0).name == "16"


def test_a_request_that_is_too_long_is_named() -> None:
    with pytest.raises(UserError, match="--context and --chunk makes 5000 tokens; the model takes 4096"):
        config().require_room(5000, "--context and --chunk")
