"""Which of a step's rows go to a kernel for decodes, where one is used whatever their number."""

import random
from dataclasses import replace

import mlx.core as mx
import pytest
from tests.helpers.paging import Requests
from tests.helpers.serving import make_engine, mixed_prompts, serve
from tests.helpers.some_gpu import attended
from tests.helpers.tolerance import F32, assert_close
from tests.helpers.toy import QWEN3, toy_weights

from tiny_llm_lab.runtime.native import mlx_pages
from tiny_llm_lab.runtime.native.device.decode_kernel import always
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps

SDPA = mx.fast.scaled_dot_product_attention


def recording(gpu):
    """Operators with a kernel, and the rows of each call."""
    calls, kernel = list[int](), gpu.kernel()

    def call(q, *rest):
        calls.append(len(q))
        return kernel(q, *rest)

    return MlxOps(widens=True, kernel=always(call)), calls


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_only_single_rows_go_to_the_kernel(gpu, llm, dtype):
    step = Requests(llm, [40, 7, 33, 50, 9], [1, 1, 5, 1, 3], 8, D=64, dtype=dtype)
    ops, calls = recording(gpu)
    got = attended(ops, step)
    assert calls == [2, 1], "two decodes, a chunk, a decode, a chunk"
    want = attended(MlxOps(widens=True), step)
    assert mx.allclose(got.astype(mx.float32), want.astype(mx.float32), atol=0.02, rtol=0.02)


@pytest.mark.parametrize("new", range(2, 12))
@pytest.mark.parametrize(("heads", "dim"), [(4, 256), (8, 256), (12, 256), (16, 256), (8, 128)])
def test_a_draft_of_a_few_rows_keeps_metals_fused_attention(llm, monkeypatch, heads, dim, new):
    """Its kernel takes 8 rows, and 32 of rows times query heads per kv head; a wider head has no other."""
    step, fused, calls = Requests(llm, [40], [new], 8, H=heads, G=1, D=dim), SDPA, list[int]()

    def noted(q, k, v, **how):
        calls.append(q.shape[2])
        return fused(q, k, v, **how)

    want = attended(MlxOps(widens=True, reads_hidden=True), step)
    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", noted)
    got = attended(MlxOps(widens=True, reads_hidden=False), step)
    assert mx.allclose(got, want, atol=1e-6)
    assert sum(calls) == new
    if new <= (9 if dim == 256 else 8):
        assert max(calls) <= 8 and max(calls) * heads <= 32
        assert len(calls) == -(-new // min(8, 32 // heads)), "and in no more pieces than it needs"
    else:
        assert calls == [new], "a chunk"


def test_what_was_not_tested_is_gathered(gpu, llm):
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


@pytest.mark.parametrize("seed", range(8))
def test_what_is_gathered_together_is_no_more_than_the_plan_has(llm, monkeypatch, seed):
    """One long request and many short ones would each be as long as the longest."""
    monkeypatch.setattr(mlx_pages, "_FEW_TOKENS", 40)
    draw, gathered = random.Random(seed), list[tuple[int, int]]()
    lengths = [draw.choice((3, 20, 300)) + draw.randrange(9) for _ in range(12)]
    step = Requests(llm, lengths, [1] * 12, 8, D=64)

    def noted(q, k, v, **how):
        gathered.append((len(q), k.shape[0] * k.shape[2]))
        return SDPA(q, k, v, **how)

    monkeypatch.setattr(mx.fast, "scaled_dot_product_attention", noted)
    got = attended(MlxOps(widens=True, reads_hidden=True), step)
    rows, tokens = zip(*gathered, strict=True)
    assert sum(rows) == 12 and sum(tokens) <= 2 * sum(lengths) and len(gathered) < 7
    assert max(tokens) <= step.keys.shape[0] * 8, "as many as a pool of one layer"
    assert_close(got, step.want(), F32)


def test_the_engine_answers_alike_with_and_without_the_kernel(gpu, llm):
    config = replace(QWEN3, head_dim=64)
    ops, calls = recording(gpu)
    plain, fast = (llm.Qwen(config, toy_weights(config), each) for each in (MlxOps(True), ops))
    answers = [serve(make_engine(llm, model), mixed_prompts()) for model in (plain, fast)]
    assert {i: done.token_ids for i, done in answers[1].items()} == {
        i: done.token_ids for i, done in answers[0].items()
    }
    assert len(set(calls)) > 1, "never several decodes at once: this test shows too little"
