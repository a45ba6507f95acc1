"""bench-kernels: its arithmetic, its order of measuring and its table; no test looks at a real clock."""

import io
from dataclasses import replace

import mlx.core as mx
import pytest
from rich.console import Console
from tests.helpers.tolerance import as_float64, assert_close, rounding

from benchmarks.harness import Variant
from benchmarks.kernels.comparison import Cost, KernelComparison, section_of, written
from benchmarks.kernels.variants import attention, delta_net, products
from tiny_llm_lab.measure.bench.report import print_section
from tiny_llm_lab.runtime.native.compiling.limits import Limits
from tiny_llm_lab.types import DeltaNetSizes

LIMITS = Limits(2, 10.0, 100.0, None, 400.0)


def compared(cost, todos=None, **seconds):
    variants = [Variant(name, lambda: None) for name in [*seconds, *(todos or {})]]
    return section_of(KernelComparison("x", cost, variants), LIMITS, seconds, todos or {})


def shown(section, width=200):
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    print_section(console, section)
    return console.file.getvalue().splitlines()


COSTS = [(Cost(1e9, 1e9), 0.1, "memory, 10.0 GB/s"), (Cost(1e9, 2e10), 0.2, "f32 FMA peak, 100 GFLOP/s")]


@pytest.mark.parametrize(("cost", "limit_s", "bound"), COSTS)
def test_the_larger_time_is_the_limit(cost, limit_s, bound):
    assert cost.limit(LIMITS) == (pytest.approx(limit_s), bound)


def test_a_table_shows_rates_shares_and_gains():
    section = compared(Cost(1e9, 1e9), slow=(0.8, 0.7, 0.9), fast=(0.2,))
    rows = {line.split()[0]: line.split()[1:] for line in shown(section)[3:]}
    assert rows["limit"] == ["100.000", "10.00", "10.00", "100.0%"]
    assert rows["slow"] == ["800.000", "(700.000-900.000)", "1.25", "1.25", "12.5%"]
    assert rows["fast"] == ["200.000", "5.00", "5.00", "50.0%", "4.00"]
    without = section_of(
        KernelComparison("x", Cost(1, 1), [Variant("a", lambda: 0)]), None, {"a": (1.0,)}, {}
    )
    assert "limit: unknown" in without.title and [row.name for row in without.rows] == ["a"]


def test_a_variant_is_compared_with_the_last_one_before_it_that_ran():
    variants = [Variant(name, lambda: None) for name in ("slow", "mine", "fast")]
    seconds = {"slow": (0.8,), "fast": (0.2,)}
    section = section_of(
        KernelComparison("x", Cost(1e9, 1e9), variants), LIMITS, seconds, {"mine": "TODO 2.2.3"}
    )
    assert [row.name for row in section.rows] == ["limit", "slow", "mine: TODO 2.2.3", "fast"]
    assert section.rows[3].samples["speedup"] == [4.0]


def test_integers_may_pass_the_limit_of_floats_and_the_table_says_why_only_then():
    cost = Cost(1e9, 2e10, allows_integers=True)
    *_, row, note = shown(compared(cost, fast=(0.1,)))
    assert row.split() == ["fast", "100.000", "10.00", "200.00", "200.0%"]
    assert note.startswith("More than 100 % is possible: 16-bit activations are multiplied as integers")
    assert not compared(cost, slow=(0.3,)).notes, "no row needs it"


@pytest.mark.parametrize("rate", [400.0, None])
def test_bytes_have_their_own_limit_where_the_machine_can_multiply_them(rate):
    variants = [[Variant(name, lambda: None)] for name in ("reference", "reference, 8 bits")]
    made = KernelComparison("x", Cost(1e8, 2e10, True), variants[0], byte_variants=variants[1])
    seconds = {"reference": (0.4,), "reference, 8 bits": (0.1,)}
    section = section_of(made, replace(LIMITS, int8_gop_s=rate), seconds, {})
    shares = {row.name: row.samples["share_of_limit"] for row in section.rows}
    limit = {} if rate is None else {"limit, 8 bits": [1.0]}
    assert shares == {
        "limit": [1.0],
        "reference": [0.5],
        **limit,
        "reference, 8 bits": [] if rate is None else [0.5],
    }
    assert list(section.notes) == ([] if rate is None else ["limit, 8 bits: int8 peak, 400 GOP/s"])


def test_an_unwritten_variant_is_todo_and_another_error_is_not():
    def fail(error):
        raise error

    good = Variant("y", lambda: mx.zeros(1))
    unwritten = Variant("x", lambda: fail(RuntimeError("task 2.2.3")))
    assert written([unwritten, good]) == ([good], {"x": "TODO 2.2.3"})
    with pytest.raises(RuntimeError, match="broken"):
        written([Variant("x", lambda: fail(RuntimeError("broken")))])


def test_all_versions_compute_the_same():
    made = products(3, ["tiny_llm_ref"], outputs=16, inner=64, rotated=0)
    # Words, scales and biases; x and the result.
    assert made.cost == Cost(16 * 64 // 2 + 2 * 2 * 16 + 2 * 3 * (64 + 16), 2 * 3 * 16 * 64, True)
    names = [variant.name for variant in made.variants]
    assert names == ["oracle", "MLX", *(f"step {i}" for i in (1, 2, 3, 4)), "reference"]
    (in_bytes,) = made.byte_variants
    assert in_bytes.name == "reference, 8 bits"
    want = as_float64(made.variants[0].run())
    for variant in made.variants[2:]:  # MLX's is off by percents in bfloat16
        assert_close(variant.run() / 8, want / 8, rounding(mx.bfloat16, 2), what=variant.name)
    assert_close(in_bytes.run() / 8, want / 8, rounding(mx.bfloat16, 4), what=in_bytes.name)
    assert (as_float64(in_bytes.run()) != as_float64(made.variants[-1].run())).any(), "x is rounded"
    made = attention(2, 6, ["tiny_llm_ref"], heads=4, kv_heads=2, dim=8)
    assert made.cost.flops == 4 * (7 + 8) * 4 * 8
    want = as_float64(made.variants[0].run())
    for variant in made.variants[1:]:
        assert_close(variant.run(), want, rounding(mx.bfloat16, 2), what=variant.name)


SMALL = DeltaNetSizes(1, 2, 8, 12, 4)


@pytest.mark.parametrize(("tokens", "requests"), [(1, 1), (1, 3), (5, 1)])
def test_all_versions_of_a_delta_net_compute_the_same(tokens, requests):
    """Call after call, until every state has been used and comes again."""
    made = delta_net(tokens, requests, ["tiny_llm_ref"], SMALL, rotated=10_000)
    state, count = 2 * 8 * 12 * 4 + 3 * 40 * 4, tokens * requests
    rows = 2 * count * (40 + 2 * 24 + 2 + 2)  # qkv, z and the result, a, b
    assert made.cost == Cost(2 * state * requests + rows, 8 * 2 * 8 * 12 * count)
    assert [variant.name for variant in made.variants] == ["MLX", "reference"]
    calls = [[variant.run() for _ in range(9)] for variant in made.variants]
    for mlx, own in zip(*calls, strict=True):
        for got, want in zip(own, mlx, strict=True):
            assert_close(got, want, rounding(mx.bfloat16, 2))
    first, *_, last = (as_float64(call[0]) for call in calls[1])
    assert (first != last).any(), "the states go on"
    assert (first == as_float64(calls[1][1][0])).all(), "and are not those of the call before"


def test_the_time_of_a_token_and_head_is_shown_where_it_is_counted():
    variants = [Variant("slow", lambda: None), Variant("fast", lambda: None)]
    seconds = {"slow": (0.8,), "fast": (0.2,)}
    section = section_of(KernelComparison("x", Cost(1e9, 1e9), variants, 1000), LIMITS, seconds, {})
    assert [row.samples["part_seconds"] for row in section.rows] == [[0.1 / 1000], [0.8 / 1000], [0.2 / 1000]]
    assert "ns/token/head" in shown(section)[2]
    assert "ns/token/head" not in shown(compared(Cost(1e9, 1e9), slow=(0.8,)))[2]


def test_on_a_gpu_the_metal_kernels_are_compared_with_mlx(monkeypatch):
    monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    for made in (
        products(3, ["tiny_llm_ref"], outputs=16, inner=64, rotated=0),
        attention(2, 6, ["tiny_llm_ref"], heads=4, kv_heads=2, dim=8),
    ):
        assert [variant.name for variant in made.variants] == ["MLX", "Metal kernel"]
    for tokens, has_metal in ((1, True), (1, False), (5, True)):
        monkeypatch.setattr(mx.metal, "is_available", lambda has_metal=has_metal: has_metal)
        made = delta_net(tokens, 1, ["tiny_llm_ref"], SMALL, rotated=0)
        assert len(made.variants) == (3 if (tokens, has_metal) == (1, True) else 2)
