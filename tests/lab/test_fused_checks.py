"""MLX's fused operators, some of them wrong: what is said, and what models use instead."""

from itertools import product

import mlx.core as mx
import pytest
from tests.helpers.some_gpu import REF
from tests.helpers.tolerance import F32, assert_close
from tests.helpers.toy import random_array

from tiny_llm_lab.runtime.native.device import fused_checks
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.runtime.native.runtime import Runtime

ROPE, ATTENTION, PRODUCT = mx.fast.rope, mx.fast.scaled_dot_product_attention, mx.quantized_matmul
DENSE, OF_EXPERTS, OF_PACKED_EXPERTS = mx.matmul, mx.gather_mm, mx.gather_qmm
SDPA = "mx.fast.scaled_dot_product_attention"
PLAIN = "so models run on plain arrays"


def first_row_only(x, *args, **options):
    """mx.fast.rope as it was with one offset for several rows of one token (mlx #3494)."""
    out = ROPE(x, *args, **options)
    if isinstance(options["offset"], int) and x.shape[2] == 1:
        return mx.concatenate([out[:1], mx.zeros_like(out[1:])])
    return out


def one_offset_for_all(x, *args, **options):
    at = options.pop("offset")
    return ROPE(x, *args, **options, offset=at if isinstance(at, int) else at[0].item())


def one_too_far(x, *args, offset, **options):
    return ROPE(x, *args, **options, offset=offset + 1 if isinstance(offset, int) else offset)


def top_left(q, k, v, **options):
    """ "causal" as PyTorch aligns it."""
    if options["mask"] == "causal":
        options["mask"] = mx.arange(k.shape[2]) <= mx.arange(q.shape[2])[:, None]
    return ATTENTION(q, k, v, **options)


def masks_ignored(q, k, v, **options):
    is_array = isinstance(options["mask"], mx.array)
    return ATTENTION(q, k, v, **options | ({"mask": None} if is_array else {}))


def wrong_above_8_rows(q, k, v, **options):
    out = ATTENTION(q, k, v, **options)
    return out if q.shape[2] <= 8 else mx.concatenate([out[:, :, :8], out[:, :, :1], out[:, :, 9:]], axis=2)


def wrong_with(dim, rows=0):
    def call(q, k, v, **options):
        return ATTENTION(q, k, v, **options) * (1.1 if q.shape[3] == dim and q.shape[2] >= rows else 1)

    return call


def all_rotated(x, dims, **options):
    return ROPE(x, x.shape[-1], **options)


def gate_ignored(function, **options):
    return lambda x, gate: x * mx.sigmoid(mx.contiguous(gate)[:, ::-1])


def first_8_outputs(x, w, *args):
    """Wrong for a matrix with fewer rows than a block, such as a shared expert's gate."""
    return PRODUCT(x, w, *args) * (1 if len(w) >= 8 else 0.5)


def rows_switch(x, *args):
    out = PRODUCT(x, *args)
    return out if x.shape[0] <= 8 else mx.concatenate([out[:8], mx.zeros_like(out[8:])])


def dense_switch(x, w, **options):
    """Products of more than 8 rows as builds for an M5 had them (mlx #3585), but for those of the CPU."""
    out = DENSE(x, w, **options)
    return out if options or len(x) <= 8 else mx.concatenate([out[:8], mx.zeros_like(out[8:])])


def experts_above_127(x, *args, **options):
    """As if an expert's number had 7 bits."""
    at = 2 if len(args) == 3 else 4
    args = [*args[:at], args[at] % 128, *args[at + 1 :]]
    return (OF_EXPERTS if at == 2 else OF_PACKED_EXPERTS)(x, *args, **options)


def experts_switch(x, *args, **options):
    out = (OF_EXPERTS if len(args) == 3 else OF_PACKED_EXPERTS)(x, *args, **options)
    return out if len(x) <= 8 or not options["sorted_indices"] else mx.zeros_like(out)


def broken(*args, **options):
    raise RuntimeError("[metal::Device] Unable to load kernel\nmore")


PLACES = {
    **dict.fromkeys((first_row_only, one_offset_for_all, one_too_far, all_rotated), ((mx.fast, "rope"),)),
    **dict.fromkeys((rows_switch, first_8_outputs, broken), ((mx, "quantized_matmul"),)),
    dense_switch: ((mx, "matmul"),),
    gate_ignored: ((mx, "compile"),),
    **dict.fromkeys((experts_switch, experts_above_127), ((mx, "gather_mm"), (mx, "gather_qmm"))),
}


MM, QMM = "gather_mm: wrong for", "gather_qmm: wrong for"
ALL_ROTATED = [f"rope with {what}wrong *of 1 tokens, 64 of D = 256*" for what in ("one *", "an *", "one *")]
ONE_ROW = "rope with one offset for 3 rows: wrong for 3 rows of 1 *: models give one"
UNLOADED = "quantized_matmul: fails ([metal::Device] Unable to load kernel): add --device cpu"
# A stand-in, what is said of it, whether models still use the fused operators, and with arrays of masks.
STAND_INS = [
    (first_row_only, [ONE_ROW], True, False),
    (one_offset_for_all, [f"rope with an offset for each row: wrong for 3 rows *: {PLAIN}"], False, False),
    (one_too_far, [f"rope with one offset: wrong *: {PLAIN}", "rope with one offset for 3 *"], False, False),
    (all_rotated, ALL_ROTATED, False, False),
    (top_left, [f'{SDPA} with "causal": wrong for 1 rows of 2 new *: so models use arrays'], True, True),
    (masks_ignored, [f"{SDPA}: wrong for 1 rows of 2 *: {PLAIN}"], False, False),
    (
        wrong_above_8_rows,
        ['"causal": wrong for 1 rows of 9 new tokens, 11*', "wrong for 1 rows of 9 *"],
        False,
        True,
    ),
    (wrong_with(80), ['"causal": wrong *D = 8, 2, 80, *', f"{SDPA}: wrong *D = 8, 2, 80, *"], False, True),
    (wrong_with(256, 1024), ['"causal": wrong *of 1024 *256, *', f"{SDPA}: wrong *of 1024 *"], False, True),
    (gate_ignored, ["compile of a gate: wrong for 1 rows, *: add --device cpu"], True, False),
    (rows_switch, ["quantized_matmul: wrong for 9 rows of 4 bits, *: add --device cpu"], True, False),
    (first_8_outputs, ["quantized_matmul: wrong for 1 rows of 8 bits, 1 x 2048, *"], True, False),
    (dense_switch, ["mx.matmul: wrong for 9 rows, *: add --device cpu"], True, False),
    (experts_switch, [f"{m} 9 rows in order, *: for experts, add" for m in (MM, QMM)], True, False),
    (experts_above_127, [f"{m} 8 rows not in order, 256 *" for m in (MM, QMM)], True, False),
    (broken, [UNLOADED], True, False),
]


@pytest.mark.parametrize(
    ("stand_in", "said", "is_used", "has_masks"), STAND_INS, ids=lambda value: getattr(value, "__name__", "")
)
def test_a_wrong_operator_of_mlx(stand_in, said, is_used, has_masks, gpu, monkeypatch, capfd):
    for place, name in PLACES.get(stand_in, ((mx.fast, "scaled_dot_product_attention"),)):
        monkeypatch.setattr(place, name, stand_in)
    monkeypatch.setattr(mx.metal, "is_available", lambda: False)
    monkeypatch.setattr(mx.cuda, "is_available", lambda: True)
    named = {name for _, name in PLACES.get(stand_in, ((None, "scaled_dot_product_attention"),))}
    tried = tuple(each for each in fused_checks.CHECKS if any(name in each.subject for name in named))
    monkeypatch.setattr(fused_checks, "CHECKS", tried)
    for testing in ([f"testing {fused_checks.ALL} (once on this GPU) ..."], []):
        ops = Runtime().kernels(REF, {})
        said_now = capfd.readouterr().err.splitlines()
        assert said_now[: len(testing)] == testing
        lines = said_now[len(testing) :]  # a wrong operator is said by every process
        assert len(lines) == len(said), lines
        for line, expected in zip(lines, said, strict=True):
            for part in expected.split("*"):
                assert part in line
        assert isinstance(ops, MlxOps) == is_used
    monkeypatch.setenv("TINY_LLM_KERNELS", "mlx")
    ops = Runtime().kernels(REF, {})
    assert isinstance(ops, MlxOps), "asked for by name"
    assert ops._masks == has_masks
    if is_used:
        assert_attention_is_right(ops)


def assert_attention_is_right(ops):
    q, k, v = random_array(1, 1, 4, 3, 64), random_array(2, 1, 2, 9, 64), random_array(3, 1, 2, 9, 64)
    visible = mx.arange(9) <= mx.arange(6, 9)[:, None]
    want = fused_checks.written_out(q, k, v, visible).swapaxes(1, 2).flatten(2)
    assert_close(ops.attention(q, k, v, [9], 0.125), want, F32)
    pools = (pool[0].swapaxes(0, 1)[None].swapaxes(1, 2) for pool in (k, v))
    rows = q[0].swapaxes(0, 1)[:, :, None]
    paged = ops.paged_attention(rows, *pools, [0, 3], [9], mx.array([[0]], mx.int32), 0.125)
    assert_close(paged.reshape(1, 3, -1), want, F32)


def test_what_is_checked_stays_below_a_gigabyte():
    """Attention that is not fused: two arrays of 16 bits, a number for each head, row and stored token."""
    cases = [*product(fused_checks._HEADS, fused_checks._CHUNKS), *fused_checks.LONG]
    sizes = [2 * 2 * heads * rows * stored for (heads, _, _), (_, rows, stored) in cases]
    assert 500_000_000 < max(sizes) < 1_000_000_000
