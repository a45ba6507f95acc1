"""bench-engine's two processes: who runs when, and what is made of it; no test looks at a real clock."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from tiny_llm_lab.bench.engine import two_processes
from tiny_llm_lab.bench.engine.config import BenchConfig
from tiny_llm_lab.bench.engine.two_processes import Turn, rate, section, steps_per_s
from tiny_llm_lab.bench.spec import Spec
from tiny_llm_lab.steps.shapes import decodes

SPEC, STEP = Spec("default", "ref"), decodes(1, 8)
TURN = Turn(SPEC, (STEP,), STEP, seconds=0.0)


def config(rounds: int) -> BenchConfig:
    none: Any = SimpleNamespace()
    return BenchConfig(none, none, none, SPEC, rounds=rounds)


def processes(log: list[str], a: float, b: float) -> list[Callable[[Turn], Callable[[], float]]]:
    """A and B compute 100 steps a second alone, `a` and `b` together; `log` has what begins and ends."""
    # A warm-up and two rounds: alone are A, B and A, and after each of them both.
    rates = {"A": iter([100.0, a, a, 100.0, a]), "B": iter([b, 100.0, b, b])}

    def process(name: str) -> Callable[[Turn], Callable[[], float]]:
        def begin(turn: Turn) -> Callable[[], float]:
            log.append(f"{name} begins")

            def wait() -> float:
                log.append(f"{name} ends")
                return next(rates[name])

            return wait

        return begin

    return [process("A"), process("B")]


def test_each_of_two_against_half_of_one_alone() -> None:
    found = section({"decode": TURN}, processes([], 39.0, 40.0), config(2))
    rows = {row.name: row.samples["steps_per_s"] for row in found.rows}
    assert rows == {
        "decode, alone": [100.0, 100.0],
        "decode, one of two": [39.0, 39.0],
        "decode, the other": [40.0, 40.0],
    }
    assert [(each.value, each.is_met) for each in found.ratios if each] == [(0.78, False), (0.8, True)]


def test_the_two_take_turns_alone_and_run_together_between() -> None:
    log: list[str] = []
    section({"decode": TURN}, processes(log, 47.0, 40.0), config(2))

    def round_of(first: str, second: str) -> list[str]:
        alone = [f"{first} begins", f"{first} ends"]
        return [*alone, f"{first} begins", f"{second} begins", f"{first} ends", f"{second} ends"]

    assert log == [*round_of("A", "B"), *round_of("B", "A"), *round_of("A", "B")], "the first is a warm-up"


def test_the_step_under_way_counts_with_all_of_its_time() -> None:
    now_s = iter([0.0, 0.25, 0.5, 1.5])
    assert steps_per_s(lambda: None, 1.0, clock=lambda: next(now_s)) == 3 / 1.5


def test_a_turn_loads_the_model_once() -> None:
    try:
        assert rate(TURN) > 0 and rate(TURN) > 0
        assert two_processes._runner.cache_info().misses == 1
    finally:
        two_processes._runner.cache_clear()
