"""The ways to compute a gated delta net where there are no C++ kernels, and which one a step takes."""

import random
import re
from itertools import accumulate

import mlx.core as mx
import pytest
from tests.helpers.delta_nets import a_net, before_last, cut, nothing, oracle, some_rows
from tests.helpers.devices import on_cpu
from tests.helpers.tolerance import F32, active_bytes, assert_close
from tests.helpers.toy import random_array

from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.native.device import delta_checks, delta_operator, device_tests
from tiny_llm_lab.runtime.native.device.delta_checks import CELLS, OWN, cell_of, first_wrong, judge_delta
from tiny_llm_lab.runtime.native.device.delta_decode import delta_decode
from tiny_llm_lab.runtime.native.device.verdict import Verdict
from tiny_llm_lab.runtime.native.runtime import MlxDelta, Runtime
from tiny_llm_ref.layers.delta_rule import gated_delta_rule
from tiny_llm_ref.models.array_ops import array_delta

REF = "tiny_llm_ref"
BY_MLX = delta_operator.delta_operator
UPDATE = mx.fast.gated_delta_update
WAYS = {"array_delta": array_delta, "delta_operator": BY_MLX}
SHAPE = (2, 12, 4, 20, 4)  # Hk, Dk, Hv, Dv, K
# Hk, Hv, Dk, Dv and K: heads that share a key's and such that do not.
SIZES = [(2, 4, 128, 128, 4), (2, 2, 64, 64, 4), (1, 3, 16, 24, 2)]


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 512])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_on_a_cpu_mlxs_operator_is_the_recurrence_bit_for_bit(sizes, length):
    key_heads, heads, dk, dv, _ = sizes
    q, k = (random_array(i, 2, length, key_heads, dk) * dk**-0.5 for i in (1, 2))
    v, state = random_array(3, 2, length, heads, dv), random_array(4, 2, heads, dk, dv)
    decay, beta = (mx.sigmoid(random_array(i, 2, length, heads) * 4) for i in (5, 6))
    shared = [mx.repeat(part, heads // key_heads, axis=2) for part in (q, k)]
    for before in (state, mx.zeros_like(state)):
        want = gated_delta_rule((*shared, v), decay, beta, before, length)
        given = None if before is not state else state.swapaxes(-1, -2)
        out, after = UPDATE(q, k, v, decay, beta, initial_state=given)
        assert mx.array_equal(out, want[0]) and mx.array_equal(after.swapaxes(-1, -2), want[1])


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_each_way_is_float64s(sizes, way):
    for dtype in (mx.bfloat16, mx.float32):
        lengths = (1, 2, 63, 64, 65, 512) if dtype == mx.bfloat16 else (1, 65)
        assert first_wrong(WAYS[way], sizes, dtype, lengths) == ""


def altered(place, change):
    """The operator, but its argument `place` is what `change` makes of it; 5 is the state."""

    def call(*rows, initial_state):
        given = [*rows, initial_state]
        given[place] = change(given[place])
        return UPDATE(*given[:5], initial_state=given[5])

    return call


def end_lost(*rows, initial_state):
    """A last block of fewer than 8 tokens adds nothing to the state."""
    out, after = UPDATE(*rows, initial_state=initial_state)
    whole = [part[:, : part.shape[1] // 8 * 8] for part in rows]
    return out, UPDATE(*whole, initial_state=initial_state)[1] if whole[0].size else after


def other_heads(q, k, *rest, initial_state):
    """Value head h reads key head h % Hk in place of h // (Hv / Hk)."""
    q, k = (mx.tile(part, (1, 1, 2, 1)) for part in (q, k))
    return UPDATE(q, k, *rest, initial_state=initial_state)


WRONG = {
    "no state": (altered(5, mx.zeros_like), "1 tokens after 37 others"),
    "not transposed": (altered(5, lambda state: state.swapaxes(-1, -2)), "1 tokens after 37 others"),
    "one state": (altered(5, lambda x: mx.broadcast_to(x[:1], x.shape)), "1 tokens after 0 and 37 others"),
    "decays of 16 bits": (altered(3, lambda x: x.astype(mx.bfloat16).astype(mx.float32)), "63 tokens after"),
    "no fading": (altered(3, mx.ones_like), "1 tokens after 37 others"),
    "the end": (end_lost, "63 tokens after 0 others"),
    "heads": (other_heads, "1 tokens after 0 others"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_operator_is_found(name, monkeypatch):
    wrong, says = WRONG[name]
    monkeypatch.setattr(mx.fast, "gated_delta_update", wrong)
    assert first_wrong(BY_MLX, SIZES[0], mx.bfloat16, (1, 63, 512)).startswith(says)


def test_an_inverse_by_powers_is_found_by_repeated_keys(monkeypatch):
    """(I - A)(I + A^2)(I + A^4)... for 64 tokens at a time loses every digit where keys repeat."""

    def by_powers(lower):
        inverse, power = mx.eye(lower.shape[-1]) - mx.tril(lower, -1), mx.tril(lower, -1)
        for _ in range(6):
            power = power @ power
            inverse = inverse + inverse @ power
        return inverse

    monkeypatch.setattr("tiny_llm_ref.layers.chunkwise_delta._unit_lower_inverse", by_powers)
    assert first_wrong(array_delta, SIZES[0], mx.bfloat16, (1, 63)) == "63 tokens after 0 others"


class Recorded:
    """A kernel that notes where its requests start."""

    def __init__(self, kernel):
        self.kernel, self.calls = kernel, list[list[int]]()

    def __call__(self, rows, weights, states, starts):
        self.calls.append(list(starts))
        return self.kernel(rows, weights, states, starts)


@pytest.mark.parametrize("seed", range(12))
def test_a_step_of_any_requests_is_float64s(seed):
    """Each result alone against the equations; neighbours of one length are one call; ways may change."""
    rng = random.Random(seed)
    net, lengths = a_net(SHAPE), rng.choices([1, 1, 1, 2, 5, 70], k=rng.randint(1, 8))
    before = rng.choices([0, 3], k=len(lengths))
    every = [
        some_rows(SHAPE, past + n, seed=100 * i)
        for i, (past, n) in enumerate(zip(before, lengths, strict=True))
    ]
    arrays, by_mlx = Recorded(array_delta), Recorded(BY_MLX)
    used = {cell for cell in CELLS if rng.random() < 0.5}
    kernel = MlxDelta(arrays, lambda sizes: dict.fromkeys(used, by_mlx))
    states = [before_last(net, SHAPE, rows, n) for rows, n in zip(every, lengths, strict=True)]
    parts = [cut(rows, past, None) for rows, past in zip(every, before, strict=True)]
    starts = [0, *accumulate(lengths)]
    out, after = kernel([mx.concatenate(part) for part in zip(*parts, strict=True)], net, states, starts)
    for i, (rows, past) in enumerate(zip(every, before, strict=True)):
        want, tail, state = oracle(net, SHAPE, rows)
        assert_close(out[starts[i] : starts[i + 1]], want[past:], F32, what=f"request {i} of {lengths}")
        assert_close(after[i][0], tail, F32)
        assert_close(after[i][1], state, F32)
    for way, is_mlx in ((by_mlx, True), (arrays, False)):
        assert all((cell_of(len(call) - 1, call[1]) in used) == is_mlx for call in way.calls)
    is_new = [a != b for a, b in zip(lengths, [0, *lengths], strict=False)]
    assert len(by_mlx.calls + arrays.calls) == sum(is_new)


@pytest.mark.parametrize("way", WAYS)
def test_a_state_keeps_no_memory_of_others(way):
    """States of a step may be one array; whoever the next step leaves out gets memory of its own."""
    sizes = (1, 64, 4, 64, 4)
    net, before = a_net(sizes), active_bytes()
    kernel = MlxDelta(array_delta, lambda sizes: dict.fromkeys(CELLS, WAYS[way]))
    _, after = kernel(some_rows(sizes, 8), net, [nothing(sizes)] * 8, range(9))
    one, copies = after[3], [part.tolist() for part in after[3]]
    for _ in range(2):
        out, after = kernel(some_rows(sizes, 1), net, after[:1], range(2))
        mx.eval(out, after)
    del out, after
    assert active_bytes() - before < 4 * sum(part.nbytes for part in one)
    assert [part.tolist() for part in one] == copies, "it is a value"


def test_states_of_the_same_requests_are_stacked_once():
    """And those of others, or in another order, anew: each result is that of a kernel that stacks always."""
    seen, net = list[bool](), a_net(SHAPE)

    def noted(rows, weights, states, starts):
        seen.append(isinstance(states, delta_operator.Stacked))
        return BY_MLX(rows, weights, states, starts)

    kernel = MlxDelta(array_delta, lambda sizes: dict.fromkeys(CELLS, noted))
    kept = [before_last(net, SHAPE, some_rows(SHAPE, n + 2, seed=n)) for n in range(4)]
    plain = list(kept)
    for order in ([0, 1, 2, 3], [0, 1, 2, 3], [1, 0, 2, 3], [1, 0, 2], [1, 0, 2], [3, 2, 0, 1]):
        rows, starts = some_rows(SHAPE, len(order), seed=len(seen)), range(len(order) + 1)
        out, after = kernel(rows, net, [kept[i] for i in order], starts)
        want, then = BY_MLX(rows, net, [plain[i] for i in order], starts)
        for i, new, state in zip(order, after, then, strict=True):
            kept[i], plain[i] = new, (mx.array(state[0]), mx.array(state[1]))
        assert mx.array_equal(out, want)
        assert all(mx.array_equal(a, b) for i in range(4) for a, b in zip(kept[i], plain[i], strict=True))
    assert seen == [False, True, False, False, True, False]


@pytest.mark.parametrize("count", [1, 3])
def test_a_state_is_transposed_at_the_first_step_only(count, monkeypatch):
    """What the operator returns it reads again as it is in memory, without a copy."""
    seen = []

    def noted(*rows, initial_state):
        out, after = UPDATE(*rows, initial_state=initial_state)
        seen.append((initial_state, after))
        return out, after

    monkeypatch.setattr(mx.fast, "gated_delta_update", noted)
    net, states = a_net(SHAPE), [nothing(SHAPE)] * count
    for _ in range(3):
        _, states = BY_MLX(some_rows(SHAPE, count), net, states, range(count + 1))
    mx.eval(states, seen)
    _, dk, heads, dv, _ = SHAPE
    for _, state in states:
        assert state.shape == (heads, dk, dv)
        assert memoryview(state).strides == (4 * dk * dv, 4, 4 * dk)
    assert [memoryview(before).c_contiguous for before, _ in seen] == [False, True, True]


def test_the_dtype_of_the_rows_is_that_of_the_result():
    net, rows = a_net(SHAPE), some_rows(SHAPE, 3, mx.bfloat16)
    for way in WAYS.values():
        out, ((tail, state),) = way(rows, net, [nothing(SHAPE)], [0, 3])
        assert (out.dtype, tail.dtype, state.dtype) == (mx.bfloat16, mx.float32, mx.float32)


@pytest.fixture
def quick(gpu, monkeypatch):
    """Arrays take a second a layer; one round of each cell is timed, of few tokens, and few are compared."""
    monkeypatch.setattr(delta_checks, "LAYERS", 1)
    monkeypatch.setattr(delta_checks, "_LENGTHS", (1, 5))
    monkeypatch.setattr(delta_checks, "judge_delta", judge_delta)
    return gpu


SMALL = (2, 4, 12, 20, 4)


def taking(seconds, gpu, is_wrong=False):
    """A kernel that takes so long in each of CELLS."""

    def call(rows, weights, states, starts):
        gpu.clock.now += seconds[CELLS.index(cell_of(len(states), starts[1]))]
        out, after = array_delta(rows, weights, states, starts)
        return out, [(tail, state * (1.1 if is_wrong else 1)) for tail, state in after]

    return call


def found(gpu, monkeypatch, by_mlx, own, wrong="", sizes=SMALL):
    """Arrays, which take a second, the operator and our kernel; and which of them each cell has."""
    times = ([1.0] * 7, by_mlx, own)
    ways = [taking(seconds, gpu, str(i) in wrong) for i, seconds in enumerate(times)]
    monkeypatch.setattr(delta_operator, "delta_operator", ways[1])
    monkeypatch.setattr(device_tests.delta_decode, "delta_decode", ways[2])
    kernels = Runtime(gpu.clock)._device.delta_kernels(REF, ways[0], sizes)
    return "".join(str(ways.index(kernels.get(cell, ways[0]))) for cell in CELLS)


HALF = [0.5] * 7
# Seconds of the operator and of our kernel, which of the three are wrong, and what each cell has.
CHOICES = {
    "the operator": (HALF, [1] * 3, "", "1111111"),
    "our kernel where it is faster": (HALF, [0.25, 0.75, 1], "", "2111111"),
    "by cell": ([1, 1, 0.9, 1, 1, 0.9, 1], [2] * 3, "", "0010010"),
    "a fast and wrong one": (HALF, [1] * 3, "1", "0000000"),
    "wrong arrays": ([3] * 7, [2] * 3, "0", "2221111"),
    "all wrong": (HALF, [0.5] * 3, "012", "0000000"),
}


@pytest.mark.parametrize("name", CHOICES)
def test_a_step_takes_the_fastest_that_is_right(name, quick, monkeypatch):
    *ways, want = CHOICES[name]
    monkeypatch.setattr(delta_checks, "is_fused", lambda sizes: True)
    assert found(quick, monkeypatch, *ways) == want


def test_what_is_said_of_the_ways(quick, monkeypatch, capfd):
    says = (
        "right; its time relative to arrays, requests x tokens: 1.50 with 1 x 1, .*, 0.50 with 1 x 2048; used"
    )
    for is_fused, said in ((True, says), (False, "MLX has no kernel for such heads: not used")):
        monkeypatch.setattr(delta_checks, "is_fused", lambda sizes, is_fused=is_fused: is_fused)
        found(quick, monkeypatch, [1.5, *HALF[1:]], [1] * 3, "2", sizes=(2, 4, 12 + is_fused, 20, 4))
        testing, arrays, by_mlx, own = capfd.readouterr().err.splitlines()
        assert testing.startswith("testing gated delta net of 2 and 4 heads of 1")
        assert re.search("net of 2 and 4 heads of 1[23] and 20 by arrays: right$", arrays)
        assert re.search(f"by mx.fast.gated_delta_update: {said}", by_mlx)
        assert re.search("delta_decode.metal: wrong for 1 tokens after 0 .*float32: not used$", own)


@pytest.mark.long
def test_our_kernel_passes_its_self_test(quick):
    verdict = judge_delta(OWN, delta_decode, quick.clock, taking([1.0] * 7, quick), SMALL)
    assert verdict.is_right and verdict.ratios == (0.0, 0.0, 0.0), verdict


def test_requests_and_tokens_of_a_cell():
    counts = {1: 1, 7: 1, 8: 8, 63: 8, 64: 64, 200: 64}
    assert {count: cell_of(count, 1) for count in counts} == {n: (cell, 1) for n, cell in counts.items()}
    lengths = {2: 4, 31: 4, 32: 128, 255: 128, 256: 512, 1_023: 512, 1_024: 2_048, 9_000: 2_048}
    assert {n: cell_of(3, n) for n in lengths} == {n: (1, cell) for n, cell in lengths.items()}


def test_who_computes_where(gpu, tmp_path, monkeypatch):
    def used(metal):
        monkeypatch.setattr(mx.metal, "is_available", lambda: metal)
        monkeypatch.setattr(mx.cuda, "is_available", lambda: not metal)
        kernel = Runtime(gpu.clock).delta_kernel(f"{REF}.models", array_delta)
        assert isinstance(kernel, MlxDelta)
        return kernel._found(SMALL)

    assert used(metal=True) == {}, "all are slower on this GPU"
    monkeypatch.setattr(
        delta_checks, "judge_delta", lambda what, *_, **__: Verdict(what, True, "right", (0.5,) * len(CELLS))
    )
    monkeypatch.setenv("TINY_LLM_CACHE", str(tmp_path / "another"))
    assert used(metal=True) == dict.fromkeys(CELLS, array_delta), "arrays, because they are first"
    assert used(metal=False) == {}, "on CUDA"


def test_who_computes_on_a_cpu():
    with on_cpu("off"):
        assert native.delta_kernel(REF, array_delta) is None
    with on_cpu("mlx"):
        kernel = native.delta_kernel(REF, array_delta)
        assert isinstance(kernel, MlxDelta) and kernel._found(SMALL) == {}
    with on_cpu("auto"):
        kernel = native.delta_kernel(REF, array_delta)
        assert kernel is not None and not isinstance(kernel, MlxDelta)
