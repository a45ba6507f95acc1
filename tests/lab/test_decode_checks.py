"""A package's kernel for decodes, on a GPU that is only claimed: its verdict, and where models use it."""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from tests.helpers.paging import Requests
from tests.helpers.serving import make_engine, mixed_prompts, serve
from tests.helpers.some_gpu import REF, RIGHT, SomeGpu
from tests.helpers.tolerance import F32, assert_close
from tests.helpers.toy import QWEN3, toy_weights

from tiny_llm_lab.runtime.native.device import fused_checks
from tiny_llm_lab.runtime.native.device.decode_checks import judge_decodes
from tiny_llm_lab.runtime.native.device.decode_kernel import TIMED, DecodeKernel
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.runtime.native.runtime import Runtime
from tiny_llm_lab.types import UserError


@pytest.mark.long
def test_the_kernel_of_the_reference_is_tested_once(
    gpu: SomeGpu, sound: None, capfd: pytest.CaptureFixture[str]
) -> None:
    first = Runtime(gpu.clock)
    assert isinstance(first.kernels(f"{REF}.models", {}), MlxOps)
    assert isinstance(first.kernels(REF, {}), MlxOps)
    assert len(first.verdicts()) == 2
    times = "0.00, 0.00, 0.00 of the time of gathering blocks with 1, 8, 64 rows"
    assert capfd.readouterr().err.splitlines() == [
        f"testing {fused_checks.ALL}, once on this GPU ...",
        f"Some M9: {fused_checks.ALL}: {RIGHT}",
        f"testing paged_attention_metal of {REF}, once on this GPU ...",
        f"Some M9: paged_attention_metal of {REF}: right; takes {times}; "
        "used with 1 to 7 and 8 to 63 and 64 or more rows",
    ]
    again = Runtime(gpu.clock)
    again.kernels(REF, {})
    assert again.verdicts() == first.verdicts() and len(again.verdicts()) == 2
    assert capfd.readouterr().err == "", "what is known is not said again"


# A kernel, what is said of it, and with how many rows it is used.
STAND_INS: dict[str, tuple[Callable[[SomeGpu], Callable[..., mx.array]], str, tuple[int, ...]]] = {
    "fast": (
        lambda gpu: gpu.kernel(),
        "right; .*0.50, 0.50, 0.50 of.* rows; used with 1 to 7 and 8",
        (1, 8, 64),
    ),
    "slow": (lambda gpu: gpu.kernel(lambda rows: 2), "right; takes 2.00, .* 64 rows; not used", ()),
    "as fast": (lambda gpu: gpu.kernel(lambda rows: 1), "right; .*1.00 of .* 64 rows; not used", ()),
    "fast with few": (
        lambda gpu: gpu.kernel(lambda n: n / 8.5),
        "right; .*with 1 to 7 and 8 to 63 rows$",
        (1, 8),
    ),
    "fast with many": (
        lambda gpu: gpu.kernel(lambda n: 4 / n),
        "right; .*8 to 63 and 64 or more rows$",
        (8, 64),
    ),
    "wrong for one D": (
        lambda gpu: gpu.kernel(wrong_dim=80),
        r"wrong for 5 rows with .*= \(4, 4, 80, 32\), .*float32: blocks are gathered",
        (),
    ),
    "not a number": (lambda gpu: lambda q, *rest: q.swapaxes(1, 2).flatten(2) * mx.nan, "wrong for 1", ()),
    "raises": (lambda gpu: raising(ValueError("no such\nthing")), r"fails \(no such\): blocks are", ()),
    "refuses": (lambda gpu: raising(UserError("nothing for it")), r"fails \(nothing for it\)", ()),
    "not written": (lambda gpu: raising(NotImplementedError("task 3.2.4")), r"fails \(task 3.2.4\)", ()),
    "of another shape": (lambda gpu: lambda q, *rest: q[:, :, :, :3], r"fails \(", ()),
    "does not compile": (lambda gpu: uncompiled, r"fails \(body:1:.*error: .*\): blocks are", ()),
}


def raising(error: Exception) -> Callable[..., mx.array]:
    def call(*args: object) -> mx.array:
        raise error

    return call


def uncompiled(q: mx.array, *rest: object) -> mx.array:
    made = mx.fast.metal_kernel(name="k", input_names=["q"], output_names=["out"], source="int broken(;")
    launch = {"grid": (32, 1, 1), "threadgroup": (32, 1, 1), "output_dtypes": [q.dtype]}
    return made(inputs=[q], output_shapes=[(len(q), 1, q[0].size)], **launch)[0]


@pytest.mark.parametrize("name", STAND_INS)
def test_the_verdict_on_a_kernel(name: str, gpu: SomeGpu) -> None:
    make, says, faster_with = STAND_INS[name]
    found = judge_decodes("k", make(gpu), gpu.clock)
    assert (found.is_right, found.faster_with) == (says.startswith("right"), faster_with), found
    assert re.match(says, found.says), found.says
    assert "\n" not in str(found)


@pytest.mark.parametrize("name", STAND_INS)
def test_a_model_uses_a_kernel_only_where_it_is_right_and_faster(
    name: str, gpu: SomeGpu, sound: None, llm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, _, faster_with = STAND_INS[name]
    stand_in, calls = make(gpu), list[int]()

    def counted(q: mx.array, *rest: object) -> mx.array:
        calls.append(len(q))
        return stand_in(q, *rest)

    monkeypatch.setattr("tiny_llm_ref.kernels.metal.paged_attention_metal", counted)
    runtime = Runtime(gpu.clock)
    ops = runtime.kernels(REF, {})
    assert ops is not None
    assert calls == [] and runtime.verdicts(), "tested when it is asked for"
    calls.clear()
    for rows in (1, 9):
        step = Requests(llm, [7 + row for row in range(rows)], [1] * rows, 16, D=64)
        assert_close(attended(ops, step), step.want(), F32)
    assert calls == [rows for rows, timed in ((1, 1), (9, 8)) if timed in faster_with]


def attended(ops: MlxOps, step: Requests, **more: object) -> mx.array:
    at = step.layout
    where = (step.keys, step.values, at.query_starts, at.lengths, at.block_tables)
    finite = [mx.nan_to_num(pool) for pool in where[:2]]
    return ops.paged_attention(step.new_q, *finite, *where[2:], step.new_q.shape[-1] ** -0.5, **more)


def recording(gpu: SomeGpu, *faster_with: int) -> tuple[MlxOps, list[int]]:
    """Operators with a kernel, and the rows of each call."""
    calls, kernel = list[int](), gpu.kernel()

    def call(q: mx.array, *rest: object) -> mx.array:
        calls.append(len(q))
        return kernel(q, *rest)

    return MlxOps(widens=True, kernel=DecodeKernel(call, lambda: faster_with or tuple(TIMED))), calls


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_only_single_rows_go_to_the_kernel(gpu: SomeGpu, llm: Any, dtype: mx.Dtype) -> None:
    step = Requests(llm, [40, 7, 33, 50, 9], [1, 1, 5, 1, 3], 8, D=64, dtype=dtype)
    ops, calls = recording(gpu)
    got = attended(ops, step)
    assert calls == [2, 1], "two decodes, a chunk, a decode, a chunk"
    want = attended(MlxOps(widens=True), step)
    assert mx.allclose(got.astype(mx.float32), want.astype(mx.float32), atol=0.02, rtol=0.02)


def test_what_was_not_tested_is_gathered(gpu: SomeGpu, llm: Any) -> None:
    ops, calls = recording(gpu)
    attended(ops, Requests(llm, [9, 5], [1, 1], 8, D=24))
    step = Requests(llm, [9, 5], [1, 1], 8, D=64)
    step.new_q = step.new_q.astype(mx.bfloat16)
    attended(ops, step)
    step = Requests(llm, [9, 5], [1, 1], 8, D=64)
    whole = step.keys.shape[:3]
    step.keys, step.values = (mx.ones(step.keys.shape, mx.int8) for _ in range(2))
    ops.paged_attention(
        *(step.new_q, step.keys, step.values, [0, 1, 2], [9, 5], step.layout.block_tables, 0.125),
        kv_scales=(mx.ones(whole), mx.ones(whole)),
    )
    assert calls == []


def test_the_engine_answers_alike_with_and_without_the_kernel(gpu: SomeGpu, llm: Any) -> None:
    config = replace(QWEN3, head_dim=64)
    ops, calls = recording(gpu, 1, 8)
    plain, fast = (llm.OpsModel(config, toy_weights(config), each) for each in (MlxOps(True), ops))
    answers = [serve(make_engine(llm, model), mixed_prompts()) for model in (plain, fast)]
    assert {i: done.token_ids for i, done in answers[1].items()} == {
        i: done.token_ids for i, done in answers[0].items()
    }
    assert len(set(calls)) > 1, "never several decodes at once: this test shows too little"
