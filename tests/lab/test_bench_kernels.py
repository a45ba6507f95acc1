"""bench-kernels: its arithmetic, its order of measuring and its table; no test looks at a real clock."""

import itertools
from types import SimpleNamespace

import mlx.core as mx
import pytest
from tests.helpers.tolerance import as_float64, assert_close, rounding

from tiny_llm_lab import native
from tiny_llm_lab.bench.kernels import _numbers
from tiny_llm_lab.bench.ladder import Cost, Ladder, Rung, Times, shown, timed
from tiny_llm_lab.bench.rungs import attention, products
from tiny_llm_lab.types import UserError

LIMITS = SimpleNamespace(read_gb_s=10.0, f32_gflop_s=100.0)


@pytest.fixture
def _switch():
    yield
    native.set_enabled("tiny_llm_ref", False)


@pytest.mark.parametrize(
    ("cost", "limit_s", "bound"),
    [(Cost(1e9, 1e9), 0.1, "memory, 10.0 GB/s"), (Cost(1e9, 2e10), 0.2, "f32 FMA peak, 100 GFLOP/s")],
)
def test_the_larger_time_is_the_limit(cost: Cost, limit_s: float, bound: str) -> None:
    ladder = Ladder.of("x", cost, LIMITS, [])
    assert ladder.limit_s == pytest.approx(limit_s)
    assert ladder.bound == bound


def test_a_table_shows_rates_shares_and_gains() -> None:
    times = [Times("slow", (0.8, 0.7, 0.9)), Times("mine", (), "TODO 2.2.3"), Times("fast", (0.2,))]
    lines = shown(Ladder.of("x", Cost(1e9, 1e9), LIMITS, times)).splitlines()
    rows = {line.split()[0]: line.split() for line in lines[4:]}
    assert rows["limit"][1:] == ["100.000", "10.00", "10.00", "100.0%"]
    assert rows["slow"][1:] == ["800.000", "(700.000", "–", "900.000)", "1.25", "1.25", "12.5%"]
    assert rows["mine"][1:] == ["TODO", "2.2.3"]
    # Compared with the last version that ran.
    assert rows["fast"][1:] == ["200.000", "5.00", "5.00", "50.0%", "4.00"]


def test_integers_may_pass_the_limit_of_floats_and_the_table_says_why() -> None:
    times = [Times("fast", (0.1,))]
    lines = shown(Ladder.of("x", Cost(1e9, 2e10, allows_integers=True), LIMITS, times)).splitlines()
    assert lines[-2].split() == ["fast", "100.000", "10.00", "200.00", "200.0%"]
    assert lines[-1].startswith("More than 100 % is possible: 16-bit activations are multiplied as integers")


@pytest.mark.parametrize("cost", [Cost(1e9, 2e10), Cost(1e9, 1e9, allows_integers=True)])
def test_nothing_is_said_of_integers_where_floats_or_memory_are_the_limit(cost: Cost) -> None:
    lines = shown(Ladder.of("x", cost, LIMITS, [Times("fast", (0.1,))])).splitlines()
    assert lines[-1].startswith("fast")


def test_versions_take_turns_and_slow_ones_fewer() -> None:
    order: list[str] = []

    def rung(name: str) -> Rung:
        return Rung(name, lambda i: order.append(f"{name}{i}") or mx.zeros(1))

    ticks = itertools.count()
    times = timed([rung("a"), rung("b")], 3, lambda: next(ticks) * 0.1)
    assert order == ["a0", "b0", "a1", "b1", "a2", "b2", "a3", "b3"]
    assert [len(each.seconds) for each in times] == [3, 3]
    ticks = itertools.count()
    times = timed([rung("a")], 9, lambda: float(next(ticks)))
    assert len(times[0].seconds) == 2


def test_an_unwritten_version_is_todo_and_another_error_is_not() -> None:
    def fail(error: Exception) -> mx.array:
        raise error

    (times,) = timed([Rung("x", lambda i: fail(RuntimeError("task 2.2.3")))], 2, lambda: 0.0)
    assert times == Times("x", (), "TODO 2.2.3")
    with pytest.raises(RuntimeError, match="broken"):
        timed([Rung("x", lambda i: fail(RuntimeError("broken")))], 2, lambda: 0.0)


@pytest.mark.usefixtures("_switch")
def test_all_versions_compute_the_same() -> None:
    _, cost, rungs = products(3, ["tiny_llm_ref"], outputs=16, inner=64, rotated=0)
    # Words, scales and biases; x and the result.
    assert cost == Cost(16 * 64 // 2 + 2 * 2 * 16 + 2 * 3 * (64 + 16), 2 * 3 * 16 * 64, True)
    assert [r.name for r in rungs] == ["oracle", "MLX", *(f"step {i}" for i in (1, 2, 3, 4)), "reference"]
    want = as_float64(rungs[0].run(0))
    for rung in rungs[2:]:  # MLX's is off by percents in bfloat16
        assert_close(rung.run(0) / 8, want / 8, rounding(mx.bfloat16, 2), what=rung.name)
    _, cost, rungs = attention(2, 6, ["tiny_llm_ref"], heads=4, kv_heads=2, dim=8)
    assert cost.flops == 4 * (7 + 8) * 4 * 8
    want = as_float64(rungs[0].run(0))
    for rung in rungs[1:]:
        assert_close(rung.run(0), want, rounding(mx.bfloat16, 2), what=rung.name)


@pytest.mark.parametrize("text", ["", "0", "1,x", "-1"])
def test_rows_that_are_none_are_rejected(text: str) -> None:
    with pytest.raises(UserError):
        _numbers(text)
