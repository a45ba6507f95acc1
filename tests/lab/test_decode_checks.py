"""A package's kernel for decodes, on a GPU that is only claimed: its verdict, and where models use it."""

import pkgutil
import random
import re
from itertools import accumulate

import mlx.core as mx
import pytest
from tests.helpers.delta_nets import a_net, before_last, cut, nothing, oracle, some_rows
from tests.helpers.devices import on_cpu
from tests.helpers.paging import Requests
from tests.helpers.some_gpu import REF, attended
from tests.helpers.tolerance import F32, active_bytes, assert_close

from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.native.device import decode_checks, delta_checks, delta_decode, partitioned
from tiny_llm_lab.runtime.native.device.decode_checks import judge_decodes
from tiny_llm_lab.runtime.native.device.decode_kernel import CELLS, Cell, fastest
from tiny_llm_lab.runtime.native.device.delta_checks import in_arrays, judge_delta
from tiny_llm_lab.runtime.native.device.delta_decode import DeltaDecode
from tiny_llm_lab.runtime.native.device.verdict import Verdict
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.runtime.native.runtime import MlxDelta, Runtime
from tiny_llm_lab.types import UserError
from tiny_llm_ref.models.array_ops import array_delta

OWN = "tiny_llm_ref.kernels.metal.paged_attention_metal"
GIVEN = partitioned.partitioned_attention
NONE = list[Cell]()
STAND_INS = {
    "fast": (
        lambda gpu: gpu.kernel(),
        True,
        r"0.50 0.50 0.50 with 1, .* with 64 rows; used where it is the fastest$",
        CELLS,
    ),
    "as fast": (lambda gpu: gpu.kernel(lambda rows, tokens: 1), True, "1.00 .* 64 rows; not used$", NONE),
    "fast with few and short ones": (
        lambda gpu: gpu.kernel(lambda rows, tokens: rows * tokens / 100),
        True,
        "0.02 0.16 0.64 with 1, 0.16 1.28 5.12 with 8, 1.28 .* rows; used",
        CELLS[:4],
    ),
    "wrong for one D": (
        lambda gpu: gpu.kernel(wrong_dim=80),
        False,
        r"wrong for 5 rows with .*= \(4, 4, 80, 32\), .*float32: not used",
        NONE,
    ),
    "not a number": (
        lambda gpu: lambda q, *rest: q.swapaxes(1, 2).flatten(2) * mx.nan,
        False,
        "wrong for 1",
        NONE,
    ),
    "raises": (lambda gpu: raising(ValueError("no such\nthing")), False, r"fails \(no such\): not", NONE),
    "not written": (
        lambda gpu: raising(NotImplementedError("task 3.2.4")),
        False,
        r"fails \(task 3.2.4\)",
        NONE,
    ),
    "does not compile": (lambda gpu: uncompiled, False, r"fails \(body:1:.*error: .*\): not used", NONE),
}


def raising(error):
    def call(*args):
        raise error

    return call


def uncompiled(q, *rest):
    made = mx.fast.metal_kernel(name="k", input_names=["q"], output_names=["out"], source="int broken(;")
    launch = {"grid": (32, 1, 1), "threadgroup": (32, 1, 1), "output_dtypes": [q.dtype]}
    return made(inputs=[q], output_shapes=[(len(q), 1, q[0].size)], **launch)[0]


@pytest.mark.parametrize("name", STAND_INS)
def test_the_verdict_on_a_kernel(name, gpu):
    make, is_right, says, faster = STAND_INS[name]
    found = judge_decodes("k", make(gpu), gpu.clock)
    assert found.is_right == is_right, found
    assert list(fastest([(found.ratios, gpu.kernel())])) == list(faster), found
    assert re.search(says, found.says), found.says
    assert "\n" not in str(found)


# Rows and stored tokens of a step, and the cell that was timed for such ones.
STEPS = [
    (1, 7, (1, 512)),
    (7, 9, (1, 512)),
    (8, 9, (8, 512)),
    (63, 2, (8, 512)),
    (64, 2, (64, 512)),
    (1, 2_047, (1, 512)),
    (1, 2_048, (1, 4_096)),
    (1, 8_191, (1, 4_096)),
    (1, 8_192, (1, 16_384)),
]


@pytest.mark.parametrize("name", ["fast", "as fast", "fast with few and short ones", "not written"])
def test_a_model_uses_a_kernel_only_where_it_is_right_and_faster(name, gpu, sound, llm, monkeypatch):
    make, _, _, faster = STAND_INS[name]
    calls = list[str]()
    ops = judged_ops(monkeypatch, gpu, calls, make(gpu), gpu.kernel(lambda rows, tokens: 3))
    is_right = STAND_INS[name][1]
    for rows, tokens, cell in STEPS if is_right else STEPS[:1]:
        calls.clear()
        step = Requests(llm, [tokens, *[1] * (rows - 1)], [1] * rows, 16, G=1, H=2, D=64)
        assert_close(attended(ops, step), step.want(), F32)
        assert calls == ["own"] * (cell in faster), (rows, tokens)


def test_each_step_has_the_fastest_right_kernel(gpu, sound, llm, monkeypatch):
    calls = list[str]()
    own, given = gpu.kernel(lambda rows, tokens: 0.6), gpu.kernel(lambda rows, tokens: 12 / tokens / rows)
    ops = judged_ops(monkeypatch, gpu, calls, own, given)
    for rows, tokens, which in ((1, 9, "own"), (1, 4_000, "own"), (1, 9_000, "given"), (8, 9, "own")):
        calls.clear()
        attended(ops, Requests(llm, [tokens, *[1] * (rows - 1)], [1] * rows, 16, G=1, H=2, D=64))
        assert calls == [which], (rows, tokens)
    verdicts = Runtime(gpu.clock).verdicts(REF)
    assert [verdict.is_right for verdict in verdicts] == [True] * 4


def judged_ops(monkeypatch, gpu, calls, own, given):
    """Operators that have judged these kernels, whose calls are written down."""

    def counted(name, kernel):
        def call(*arguments):
            calls.append(name)
            return kernel(*arguments)

        return call

    monkeypatch.setattr(OWN, counted("own", own))
    monkeypatch.setattr(partitioned, "partitioned_attention", counted("given", given))
    runtime = Runtime(gpu.clock)
    ops = runtime.kernels(REF, {})
    assert isinstance(ops, MlxOps) and calls == [], "kernels are tested when a step could use one"
    runtime.verdicts(REF)
    return ops


@pytest.mark.parametrize(("rows", "tokens"), CELLS)
def test_what_is_timed_stays_below_a_gigabyte(rows, tokens):
    shape = decode_checks.timed_shape(rows, tokens)
    pools = shape[0] * shape[1] * shape[2] * 128 * 2 * 2
    assert shape[1] == tokens and shape[0] >= rows / 2 and shape[2] >= 1
    # Two layers or more are gathered at the same time, beside the pools.
    assert 3 * pools < 1_000_000_000


@pytest.mark.long
@pytest.mark.parametrize("kernel", [OWN, GIVEN], ids=["the reference's", "the given one"])
def test_a_real_kernel_passes(kernel, gpu):
    kernel = kernel if callable(kernel) else pkgutil.resolve_name(OWN)
    found = judge_decodes("k", kernel, gpu.clock)
    assert found.is_right and list(fastest([(found.ratios, kernel)])) == list(CELLS)


# Which kernels compute a gated delta net where: the choice, the groups, the Metal kernel's self-test


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
    arrays, decodes = Recorded(array_delta), Recorded(array_delta)
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


@pytest.mark.parametrize("kernel", [array_delta, in_arrays], ids=["array_delta", "in_arrays"])
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
    out, ((tail, state),) = array_delta(rows, net, [nothing(SHAPE)], [0, 3])
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

    arrays = array_delta
    assert used(metal=True) is arrays, "it is slower on this GPU"
    monkeypatch.setattr(delta_checks, "judge_delta", lambda what, *_: Verdict(what, True, "right", (0.5,)))
    monkeypatch.setenv("TINY_LLM_CACHE", str(tmp_path / "another"))
    assert isinstance(used(metal=True), DeltaDecode)
    assert used(metal=False) is arrays, "on CUDA"


def test_who_computes_on_a_cpu():
    arrays = array_delta
    with on_cpu("off"):
        assert native.delta_kernel(REF, arrays) is None
    with on_cpu("mlx"):
        kernel = native.delta_kernel(REF, arrays)
        assert isinstance(kernel, MlxDelta) and kernel._decodes is arrays
    with on_cpu("auto"):
        kernel = native.delta_kernel(REF, arrays)
        assert kernel is not None and not isinstance(kernel, MlxDelta)
