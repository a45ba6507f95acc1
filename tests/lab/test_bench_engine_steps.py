"""bench-engine: what it plans, computes and says; no test looks at a real clock."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tiny_llm_lab import calibration, load_checkpoint, load_solution
from tiny_llm_lab.bench.engine_steps.ahead import ahead_report
from tiny_llm_lab.bench.engine_steps.chunk_position import (
    calibration_json,
    chunk_report,
    depths,
    foretold,
    held_out,
)
from tiny_llm_lab.bench.engine_steps.memory import chunk_starts, memory_report
from tiny_llm_lab.bench.engine_steps.mixed import mixed_report
from tiny_llm_lab.bench.engine_steps.paged import paged_report
from tiny_llm_lab.bench.engine_steps.report import Report, lines_below, table_of
from tiny_llm_lab.bench.engine_steps.scheduling import COUNTS, decoding, scheduler_report
from tiny_llm_lab.bench.engine_steps.setting import Setting
from tiny_llm_lab.bench.engine_steps.turns import Ratio, Side, ratio, take_turns
from tiny_llm_lab.calibration import THOROUGH, calibrate
from tiny_llm_lab.simulate.cost import load_calibration
from tiny_llm_lab.step_runner import StepRunner
from tiny_llm_lab.step_shapes import Part, Step, blocks_of, chunk, decodes, work_of
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


def setting(**others: Any) -> Setting:
    model: Any = SimpleNamespace(config=SimpleNamespace(max_position_embeddings=4096, vocab_size=100))
    checkpoint: Any = None
    return Setting(REF, model, checkpoint, **others)


def test_sides_take_turns_forwards_and_backwards_and_the_warm_up_does_not_count() -> None:
    clock, order = Clock(), []

    def side(name: str, seconds: float) -> Side:
        return Side(name, lambda: (order.append(name), clock.pass_by(seconds * len(order))))

    seconds = take_turns([side("a", 1.0), side("b", 0.5)], 2, clock=clock, synchronize=lambda: None)
    assert "".join(order) == "baabba", "warm-up, a round forwards, a round backwards"
    assert seconds == {"a": (3.0, 6.0), "b": (2.0, 2.5)}
    with pytest.raises(ValueError, match="same name"):
        take_turns([side("a", 1.0), side("a", 1.0)], 1, clock=clock)


def test_a_ratio_is_that_of_medians_and_its_spread_that_of_rounds() -> None:
    found = ratio("x", [2.0, 3.0, 10.0], [2.0, 2.0, 4.0], at_most=1.4)
    assert (found.value, found.low, found.high, found.is_met) == (1.5, 1.0, 2.5, False)
    assert ratio("x", [1.0], [1.0], at_least=0.95).is_met is True
    assert ratio("x", [1.0], [1.0]).is_met is None


def test_a_report_says_whether_its_aims_are_met() -> None:
    ratios = [ratio("a", [3.0, 2.0], [2.0, 2.0], at_most=1.15), Ratio("b", 0.5, 0.5, 0.5)]
    report = Report("x", "y", ("name", "ms"), [("one", "1.0")], ratios, ["Mind this."], {"seconds": [1.0]})
    assert lines_below(report) == [
        "a: 1.250 (1.000 to 1.500), aim at most 1.15: MISSED",
        "b: 0.500",
        "Mind this.",
    ]
    assert report.to_json()["ratios"][0]["is_met"] is False
    assert table_of(report, plain=True).row_count == 1


def test_the_work_of_a_step() -> None:
    step = (*decodes(2, 10), *chunk(100, 3))
    # Two rows that see 11 tokens each; three that see 101, 102 and 103.
    assert work_of(REF.context_work, step) == (5, 2 * 11 + 101 + 102 + 103, 2 * 11 + 103)
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
    seen = {work_of(REF.context_work, step) for step in THOROUGH.steps(max_len, 128)}
    assert not seen & {work_of(REF.context_work, step) for step in held_out(max_len, 128, 1)}, (
        "they are new to the model"
    )


def test_a_calibration_of_a_linear_machine_foretells_it_and_simulate_reads_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    clock = Clock()

    def seconds_of(step: Step) -> float:
        num_tokens, num_attended, num_stored = work_of(REF.context_work, step)
        return 0.004 + 1e-4 * num_tokens + 1e-8 * num_attended + 1e-7 * num_stored

    class FakeRunner:
        def __init__(self, *args: Any, **others: Any) -> None: ...

        def run(self, step: Step) -> None:
            clock.pass_by(seconds_of(step))

        def release(self) -> None: ...

    monkeypatch.setattr(calibration, "StepRunner", FakeRunner)
    samples = calibrate(setting().model, REF, THOROUGH.steps(2560), limit_s=1e9, clock=clock)
    model = REF.StepTimeModel(samples, newest=0.0)
    unseen = held_out(2560, 512, seed=3)
    works = [work_of(REF.context_work, step) for step in unseen]
    errors, _ = foretold(model, works, [[seconds_of(step)] for step in unseen])
    assert max(errors) < 0.05
    file = tmp_path / "calibration.json"
    file.write_text(json.dumps(calibration_json(model)), encoding="utf-8")
    work = work_of(REF.context_work, decodes(4, 512))
    assert load_calibration(file).seconds(*work) == pytest.approx(model.predict(*work))


def test_errors_against_the_median_and_against_every_run() -> None:
    model = SimpleNamespace(predict=lambda *work: 1.0)
    of_medians, of_runs = foretold(model, [(8, 36, 8)], [[1.0, 2.0, 4.0]])
    assert of_medians == [0.5] and of_runs == [0.0, 0.5, 0.75]
    model.split_tokens, model.small, model.large = 8, (1, 0, 0, 0), (1, 0, 0, 0)
    report = chunk_report({"at 0": (1.0,), "at 9": (3.0,)}, 128, model, 40, (of_medians, of_runs))
    assert [(each.name, each.value) for each in report.ratios] == [("at 9 / at 0", 3.0)]
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
    ratios = mixed_report(seconds, setting()).ratios
    assert [each.value for each in ratios] == [1.1, 0.88] * 2
    assert [each.is_met for each in ratios] == [True, None] * 2


def test_the_speed_of_pages_is_that_of_dense_rows_over_ours() -> None:
    seconds = {"ours": (2.0,), "dense": (1.8,), "forward": (1.5,)}
    report = paged_report(seconds, setting())
    assert report.ratios[0].value == pytest.approx(0.9) and report.ratios[0].is_met is False
    assert "25.0% is not the forward pass" in report.notes[0]


def test_steps_ahead_are_compared_stream_by_stream() -> None:
    names = ("each read first, 1 streams", "a step ahead, 1 streams", "each read first, 8", "a step ahead, 8")
    report = ahead_report(dict(zip(names, [(32.0,), (16.0,), (48.0,), (64.0,)], strict=True)), setting())
    assert [each.value for each in report.ratios] == [2.0, 0.75]
    assert "1000.00 ms, -1000.00 ms" in report.notes[0], "16 steps in a turn"


def test_planning_costs_by_step_by_request_and_beside_the_model() -> None:
    seconds = {f"plan {count}": (8 * count * 1e-5,) for count in COUNTS}  # a turn plans 8 steps
    seconds |= {f"model {count}": (0.01,) for count in COUNTS}
    report = scheduler_report(seconds, 512)
    assert report.ratios[0].value == pytest.approx(1.0), "a line: each request costs the same"
    assert list(report.rows[0][4:]) == ["10.00", "10.000", "0.80%"]


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
    each = {"chunk": 64, "steps": 1, "peak_bytes": 9e6, "held_bytes": 5e6, "reread_tokens": 0, "seconds": 1.0}
    report = memory_report([each], 64, 1_000_000)
    assert list(report.rows[0]) == ["64 (one piece)", "1", "9.0", "4.0", "0", "1.00"]


def test_a_request_that_is_too_long_is_named() -> None:
    with pytest.raises(UserError, match="--context and --chunk makes 5000 tokens; the model takes 4096"):
        setting().require_room(5000, "--context and --chunk")
