"""A package's kernel for decodes, on a GPU that is only claimed: its verdict, and where models use it."""

import re

import mlx.core as mx
import pytest
from tests.helpers.paging import Requests
from tests.helpers.some_gpu import REF, attended
from tests.helpers.tolerance import F32, assert_close

from tiny_llm_lab.runtime.native.device import decode_checks, device_tests, partitioned
from tiny_llm_lab.runtime.native.device.decode_checks import judge_decodes
from tiny_llm_lab.runtime.native.device.decode_kernel import CELLS
from tiny_llm_lab.runtime.native.device.ladder import Cell, fastest
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.runtime.native.runtime import Runtime

OWN = "tiny_llm_ref.kernels.metal.paged_attention_metal"
REAL = device_tests._imported(*OWN.rsplit(".", 1), -1)
GIVEN = partitioned.partitioned_attention
NONE = list[Cell]()
STAND_INS = {
    "fast": (
        lambda gpu: gpu.kernel(),
        True,
        r"gathering, rows x tokens: 0.50 with 1 x 512, .* with 64 x 16384; used where it is the fastest$",
        CELLS,
    ),
    "as fast": (lambda gpu: gpu.kernel(lambda rows, tokens: 1), True, "1.00 .* 64 x 16384; not used$", NONE),
    "fast with few and short ones": (
        lambda gpu: gpu.kernel(lambda rows, tokens: rows * tokens / 100),
        True,
        " 0.02 with 1 x 512, 0.16 with .*, 5.12 with 8 x 16384, .*; used",
        CELLS[:4],
    ),
    "wrong for one D": (
        lambda gpu: gpu.kernel(wrong_dim=80),
        False,
        r"wrong for 5 rows with .*= \(4, 4, 80, 32\), .*float32: not used",
        NONE,
    ),
    "not a number": (lambda gpu: nans, False, "wrong for 1", NONE),
    "not written": (lambda gpu: unwritten, False, r"fails \(task 3.2.4\): not used$", NONE),
    "does not compile": (lambda gpu: uncompiled, False, r"fails \(body:1:.*error: .*\): not used", NONE),
}


def nans(q, *rest):
    return q.swapaxes(1, 2).flatten(2) * mx.nan


def unwritten(*args):
    raise NotImplementedError("task 3.2.4\nmore")


def uncompiled(q, *rest):
    made = mx.fast.metal_kernel(name="k", input_names=["q"], output_names=["out"], source="int broken(;")
    launch = {"grid": (32, 1, 1), "threadgroup": (32, 1, 1), "output_dtypes": [q.dtype]}
    return made(inputs=[q], output_shapes=[(len(q), 1, q[0].size)], **launch)[0]


@pytest.mark.parametrize("name", STAND_INS)
def test_the_verdict_on_a_kernel(name, gpu):
    make, is_right, says, faster = STAND_INS[name]
    found = judge_decodes("k", make(gpu), gpu.clock)
    assert found.is_right == is_right, found
    assert list(fastest([(found, gpu.kernel())], CELLS)) == list(faster), found
    assert re.search(says, found.says), found.says
    assert "\n" not in str(found)


# Rows and stored tokens of a step, and the cell that was timed for such ones.
STEPS = [
    *((1, 7, (1, 512)), (7, 9, (1, 512)), (8, 9, (8, 512)), (63, 2, (8, 512)), (64, 2, (64, 512))),
    *((1, 2_047, (1, 512)), (1, 2_048, (1, 4_096)), (1, 8_191, (1, 4_096)), (1, 8_192, (1, 16_384))),
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


def test_heads_of_256_have_their_own_verdict(gpu, sound, llm, monkeypatch):
    calls, own, given = list[str](), gpu.kernel(wrong_dim=256), gpu.kernel(lambda rows, tokens: 0.9)
    ops = judged_ops(monkeypatch, gpu, calls, own, given)
    for dim, which in ((64, "own"), (256, "given"), (80, "own"), (256, "given")):
        step = Requests(llm, [9], [1], 16, G=1, H=2, D=dim)
        assert_close(attended(ops, step), step.want(), F32)
        assert calls.pop() == which, dim


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


@pytest.mark.parametrize(("dim", "rows", "tokens"), [(dim, *cell) for dim in (128, 256) for cell in CELLS])
def test_what_is_timed_stays_below_a_gigabyte(dim, rows, tokens):
    shape = decode_checks.timed_shape(rows, tokens, dim)
    pools = shape[0] * shape[1] * shape[2] * dim * 2 * 2
    assert shape[1] == tokens and shape[0] >= rows * 64 / dim and shape[2] >= 1
    # Two layers or more are gathered at the same time, beside the pools.
    assert 3 * pools < 1_000_000_000


@pytest.mark.long
@pytest.mark.parametrize("dim", [128, 256])
@pytest.mark.parametrize("kernel", [REAL, GIVEN], ids=["the reference's", "the given one"])
def test_a_real_kernel_passes(kernel, dim, gpu):
    found = judge_decodes("k", kernel, gpu.clock, dim)
    assert found.is_right and list(fastest([(found, kernel)], CELLS)) == list(CELLS)
