"""Which kernels compute a gated delta net where: the choice, the groups, the Metal kernel's self-test."""

import random
import re
from itertools import accumulate

import mlx.core as mx
import pytest
from tests.helpers.delta_nets import a_net, before_last, cut, nothing, oracle, some_rows
from tests.helpers.devices import on_cpu
from tests.helpers.some_gpu import REF
from tests.helpers.tolerance import F32, active_bytes, assert_close

from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.native.device import delta_checks, delta_decode
from tiny_llm_lab.runtime.native.device.delta_checks import in_arrays, judge_delta
from tiny_llm_lab.runtime.native.device.delta_decode import DeltaDecode
from tiny_llm_lab.runtime.native.device.verdict import Verdict
from tiny_llm_lab.runtime.native.runtime import MlxDelta, Runtime
from tiny_llm_lab.types import UserError
from tiny_llm_ref.layers.array_delta import ArrayDelta

SHAPE = (2, 12, 4, 20, 4)
Results = tuple[mx.array, list[tuple[mx.array, mx.array]]]


class Recorded:
    """A kernel that notes where its requests start."""

    def __init__(self, kernel, seconds=0.0, clock=None):
        self.kernel, self.calls, self.seconds, self.clock = kernel, list[list[int]](), seconds, clock

    def __call__(self, rows, weights, states, starts):
        self.calls.append(list(starts))
        if self.clock:
            self.clock.now += self.seconds
        return self.kernel(rows, weights, states, starts)


@pytest.mark.parametrize("seed", range(12))
def test_a_step_of_any_requests_is_float64s(seed):
    """Each result alone against the equations; neighbours of one length are one call."""
    rng = random.Random(seed)
    net, lengths = a_net(SHAPE), rng.choices([1, 1, 1, 2, 5, 70], k=rng.randint(1, 8))
    before = rng.choices([0, 3], k=len(lengths))
    every = [
        some_rows(SHAPE, past + n, seed=100 * i)
        for i, (past, n) in enumerate(zip(before, lengths, strict=True))
    ]
    arrays, decodes = Recorded(ArrayDelta()), Recorded(ArrayDelta())
    kernel = MlxDelta(arrays, lambda: decodes)
    states = [before_last(net, SHAPE, rows, n) for rows, n in zip(every, lengths, strict=True)]
    parts = [cut(rows, past, None) for rows, past in zip(every, before, strict=True)]
    starts = [0, *accumulate(lengths)]
    out, after = kernel([mx.concatenate(part) for part in zip(*parts, strict=True)], net, states, starts)
    for i, (rows, past) in enumerate(zip(every, before, strict=True)):
        want, tail, state = oracle(net, SHAPE, rows)
        assert_close(out[starts[i] : starts[i + 1]], want[past:], F32, what=f"request {i} of {lengths}")
        assert_close(after[i][0], tail, F32)
        assert_close(after[i][1], state, F32)
    assert sum(len(call) - 1 for call in decodes.calls) == lengths.count(1)
    is_new = [a != b for a, b in zip(lengths, [0, *lengths], strict=False)]
    assert len(decodes.calls + arrays.calls) == sum(is_new)


@pytest.mark.parametrize("kernel", [ArrayDelta(), in_arrays], ids=["ArrayDelta", "in_arrays"])
def test_a_state_keeps_no_memory_of_others(kernel):
    sizes = (1, 64, 4, 64, 4)
    net, before = a_net(sizes), active_bytes()
    out, after = MlxDelta(kernel, lambda: kernel)(some_rows(sizes, 8), net, [nothing(sizes)] * 8, range(9))
    mx.eval(out, after)
    one = after[3]
    del out, after
    assert active_bytes() - before < 2 * sum(part.nbytes for part in one)


def test_the_dtype_of_the_rows_is_that_of_the_result():
    net, rows = a_net(SHAPE), some_rows(SHAPE, 3, mx.bfloat16)
    out, ((tail, state),) = ArrayDelta()(rows, net, [nothing(SHAPE)], [0, 3])
    assert (out.dtype, tail.dtype, state.dtype) == (mx.bfloat16, mx.float32, mx.float32)


def wrong(part):
    """Right except for one of out, conv inputs and matrices."""

    def call(rows, weights, states, starts):
        out, after = in_arrays(rows, weights, states, starts)
        factors = [1.1 if i == part else 1.0 for i in range(3)]
        return out * factors[0], [(a * factors[1], b * factors[2]) for a, b in after]

    return call


def failing(*_):
    raise UserError("nothing for it")


@pytest.fixture
def quick(gpu, monkeypatch):
    """Arrays take a second; one round of small states is timed."""
    monkeypatch.setattr(delta_checks, "_ROUNDS", 1)
    monkeypatch.setattr(delta_checks, "_WARM_UPS", 0)
    monkeypatch.setattr(delta_checks, "_TIMED", (1, 1, 4, 4, 4))
    monkeypatch.setattr(delta_checks, "in_arrays", Recorded(in_arrays, 1.0, gpu.clock))
    monkeypatch.setattr(delta_checks, "judge_delta", judge_delta)
    return gpu


JUDGED = {
    "fast": (lambda gpu: Recorded(in_arrays, 0.25, gpu.clock), True, "0.25 with 1, 0.25 with 8 rows; used$"),
    "slow": (
        lambda gpu: Recorded(in_arrays, 1.5, gpu.clock),
        True,
        "1.50 with 1, 1.50 with 8 rows; not used$",
    ),
    "out": (lambda gpu: wrong(0), False, r"wrong for 1 rows with .* = \(4, 8, 128, 128, 4\), .*: not used$"),
    "conv inputs": (lambda gpu: wrong(1), False, "wrong for 1 rows"),
    "states": (lambda gpu: wrong(2), False, "wrong for 1 rows"),
    "fails": (lambda gpu: failing, False, r"fails \(nothing for it\): not used$"),
}


@pytest.mark.parametrize("name", JUDGED)
def test_a_model_uses_the_kernel_only_where_it_is_right_and_faster(name, quick, monkeypatch):
    make, is_right, says = JUDGED[name]
    found = judge_delta("k", make(quick), quick.clock)
    assert found.is_right == is_right and re.search(says, found.says), found.says
    monkeypatch.setattr(delta_decode, "delta_decode", make(quick))
    arrays = Recorded(in_arrays)
    kernel = Runtime(quick.clock).delta_kernel(f"{REF}.models", arrays)
    assert isinstance(kernel, MlxDelta)
    net, row = a_net(SHAPE), some_rows(SHAPE, 1)
    out, _ = kernel(row, net, [nothing(SHAPE)], [0, 1])
    assert_close(out, oracle(net, SHAPE, row)[0], F32)
    assert len(arrays.calls) == (name != "fast")


@pytest.mark.long
def test_the_real_kernel_passes_its_self_test(quick):
    found = judge_delta("k", delta_decode.delta_decode, quick.clock)
    assert found == Verdict(
        "k", True, "right; its time relative to arrays: 0.00 with 1, 0.00 with 8 rows; used", (0.0, 0.0)
    )


def test_who_computes_where(gpu, tmp_path, monkeypatch):
    def used(metal):
        monkeypatch.setattr(mx.metal, "is_available", lambda: metal)
        monkeypatch.setattr(mx.cuda, "is_available", lambda: not metal)
        kernel = Runtime(gpu.clock).delta_kernel(REF, arrays)
        assert isinstance(kernel, MlxDelta)
        return kernel._decodes

    arrays = ArrayDelta()
    assert used(metal=True) is arrays, "it is slower on this GPU"
    monkeypatch.setattr(delta_checks, "judge_delta", lambda what, *_: Verdict(what, True, "right", (0.5,)))
    monkeypatch.setenv("TINY_LLM_CACHE", str(tmp_path / "another"))
    assert isinstance(used(metal=True), DeltaDecode)
    assert used(metal=False) is arrays, "on CUDA"


def test_who_computes_on_a_cpu():
    arrays = ArrayDelta()
    with on_cpu("off"):
        assert native.delta_kernel(REF, arrays) is None
    with on_cpu("mlx"):
        kernel = native.delta_kernel(REF, arrays)
        assert isinstance(kernel, MlxDelta) and kernel._decodes is arrays
    with on_cpu("auto"):
        kernel = native.delta_kernel(REF, arrays)
        assert kernel is not None and not isinstance(kernel, MlxDelta)
