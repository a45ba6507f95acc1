"""Checks MLX's fused operators on this device, for shapes that released versions got wrong."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Final, cast

import mlx.core as mx

from tiny_llm_lab.runtime.native.device.verdict import Verdict

ALL: Final = "MLX's fused operators"
CAUSAL: Final = 'mx.fast.scaled_dot_product_attention with "causal"'
# Far above every rounding to 16 bits, far below every mistake.
_ALLOWED: Final = 1 / 32
_DTYPES: Final = (mx.float16, mx.bfloat16)

Cases = Iterator[tuple[mx.array, mx.array, str]]  # the result, the right result, the shape in words
AttentionSizes = tuple[tuple[int, int, int], tuple[int, int, int]]  # H, G, D; B, L, S


@dataclass(frozen=True)
class Check:
    """An operator, its results and the right ones for some shapes, and what a model does if they differ."""

    subject: str
    cases: Callable[[], Cases]
    follows: str


def judged(check: Check) -> Verdict:
    """The verdict on one operator, found by computing."""
    try:
        wrong = next(wrong_shapes(check.cases()), "")
    except (RuntimeError, ValueError) as error:
        return Verdict(check.subject, False, f"fails ({in_one_line(error)}): {check.follows}")
    return Verdict(check.subject, not wrong, f"wrong for {wrong}: {check.follows}" if wrong else "right")


def wrong_shapes(cases: Cases) -> Iterator[str]:
    """The shapes, in words, whose result is not the right one."""
    return (shape for got, want, shape in cases if not is_close(got, want))


def is_close(got: mx.array, want: mx.array, allowed: float = _ALLOWED) -> bool:
    """Whether `got` is `want` (float32) except for rounding."""
    delta = mx.max(mx.abs(got.astype(mx.float32) - want)) / mx.max(mx.abs(want))
    return cast(float, delta.item()) <= allowed  # also False for NaN


def draw(seed: int, shape: Sequence[int], dtype: mx.Dtype) -> mx.array:
    """Normally distributed numbers."""
    return mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)


def written_out(q: mx.array, k: mx.array, v: mx.array, visible: mx.array) -> mx.array:
    """Attention of q [B, H, L, D] over k, v [B, G, S, D] in float32, where `visible` [B, 1, L, S] says so."""
    q, k, v = (each.astype(mx.float32) for each in (q, k, v))
    k, v = (mx.repeat(each, q.shape[1] // k.shape[1], axis=1) for each in (k, v))
    scores = by_cpu(q, k.swapaxes(-1, -2)) * q.shape[-1] ** -0.5
    return by_cpu(mx.softmax(mx.where(visible, scores, -mx.inf), axis=-1), v)


def by_cpu(a: mx.array, b: mx.array) -> mx.array:
    """a @ b in float32 on MLX's CPU backend, because the GPU's own product may be wrong."""
    return mx.matmul(a.astype(mx.float32), b.astype(mx.float32), stream=mx.cpu)


def in_one_line(error: Exception) -> str:
    """The most useful line of an error."""
    message = str(error).splitlines() or [type(error).__name__]
    return next((line for line in message if "error" in line), message[0]).strip()


def _rope(shapes: Sequence[tuple[int, int]], offsets: int | list[int]) -> Cases:
    for dtype, dim, (batch, length) in product(_DTYPES, _ROTATED, shapes):
        x, ends = draw(1, (batch, 4, length, dim), dtype), mx.broadcast_to(mx.array(offsets), (3,))[:batch]
        at = offsets if isinstance(offsets, int) else ends
        got = mx.fast.rope(x, 64, traditional=False, base=10000.0, scale=1.0, offset=at)
        angles = (ends[:, None] + mx.arange(length))[:, None, :, None] * 10000.0 ** (-mx.arange(32) / 32)
        a, b, rest = mx.split(x.astype(mx.float32), [32, 64], axis=-1)
        cos, sin = mx.cos(angles), mx.sin(angles)
        want = mx.concatenate([a * cos - b * sin, b * cos + a * sin, rest], axis=-1)
        yield got, want, f"{batch} rows of {length} tokens, 64 of D = {dim}, {dtype}"


def _attention(shapes: Sequence[tuple[int, int, int]], has_array: bool) -> Cases:
    def attend(q: mx.array, k: mx.array, v: mx.array, scale: float, visible: mx.array) -> mx.array:
        mask = visible if has_array else "causal"
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask=mask)

    return attention_cases([*product(_HEADS, shapes), *LONG], attend)


def attention_cases(sizes: Sequence[AttentionSizes], attend: Callable[..., mx.array]) -> Cases:
    """Of `attend` with q [B, H, L, D], k and v [B, G, S, D], a scale and a mask of booleans."""
    for dtype, ((heads, groups, dim), (batch, new, stored)) in product(_DTYPES, sizes):
        q = draw(1, (batch, heads, new, dim), dtype)
        k, v = (draw(seed, (batch, groups, stored, dim), dtype) for seed in (2, 3))
        lengths = mx.array([stored, new, stored - 1][:batch])[:, None, None, None]
        visible = mx.arange(stored) <= lengths - new + mx.arange(new)[:, None]
        got = attend(q, k, v, dim**-0.5, visible)
        shape = (
            f"{batch} rows of {new} new tokens, {stored} stored, H, G, D = {heads}, {groups}, {dim}, {dtype}"
        )
        # Of many tokens the last and every so-many-th, an odd number: each place in a tile is among them.
        some = mx.arange(new - 1, -1, -(new // 64 | 1))
        yield got[:, :, some], written_out(q[:, :, some], k, v, visible[:, :, some]), shape


def _gate() -> Cases:
    """Of attention's output: a head's gate is behind its query."""
    gated = mx.compile(lambda x, gate: x * mx.sigmoid(gate), shapeless=True)
    for dtype, rows in product(_DTYPES, (1, 9)):
        x, both = draw(1, (rows, 12, 256), dtype), draw(2, (rows, 12, 512), dtype)
        gate = both[..., 256:]
        want = x.astype(mx.float32) * mx.sigmoid(gate.astype(mx.float32))
        yield gated(x, gate), want, f"{rows} rows, {dtype}"


def _product() -> Cases:
    for dtype, (bits, outs, size), rows in product(_DTYPES, _PACKED, (1, 2, 5, 8, 9, 17, 33, 64)):
        packed = mx.quantize(draw(1, (outs, size), mx.float32), 64, bits)
        weight, scales, biases = packed[0], packed[1].astype(dtype), packed[2].astype(dtype)
        x = draw(2, (rows, size), dtype)
        got = mx.quantized_matmul(x, weight, scales, biases, True, 64, bits)
        whole = mx.dequantize(weight, scales.astype(mx.float32), biases.astype(mx.float32), 64, bits)
        yield got, by_cpu(x, whole.T), f"{rows} rows of {bits} bits, {outs} x {size}, {dtype}"


def _dense_product() -> Cases:
    for dtype, rows in product(_DTYPES, (1, 8, 9, 17, 33, 64)):
        x, weight, bias = (
            draw(i, shape, dtype) for i, shape in enumerate([(rows, 512), (96, 512), (96,)], 1)
        )
        want, shape = by_cpu(x, weight.T), f"{rows} rows, {dtype}"
        yield mx.matmul(x, weight.T), want, shape
        yield mx.addmm(bias, x, weight.T), want + bias, f"{shape}, with a bias"


def _expert_product(is_packed: bool) -> Cases:
    """In order and not, as `MlxOps.expert_mlp` calls it."""
    for dtype, (number, outs, size, rows), in_order in product(_DTYPES, _EXPERTS, (False, True)):
        x, weight = draw(1, (rows, 1, size), dtype), draw(2, (number, outs, size), dtype)
        uses = mx.arange(rows, dtype=mx.uint32)
        experts = uses * number // rows if in_order else uses * 35 % number
        if is_packed:
            packed, scales, biases = mx.quantize(weight, 64, 4)
            weight = mx.dequantize(packed, scales.astype(mx.float32), biases.astype(mx.float32), 64, 4)
            got = mx.gather_qmm(
                x, packed, scales, biases, None, experts, True, 64, 4, sorted_indices=in_order
            )
        else:
            got = mx.gather_mm(x, weight.swapaxes(-1, -2), None, experts, sorted_indices=in_order)
        want = by_cpu(x, weight[experts].swapaxes(-1, -2))
        yield got, want, f"{rows} rows {'' if in_order else 'not '}in order, {number} experts, {dtype}"


_ROTATED: Final = (64, 256)
# H, G and D; the last two as Qwen3.5 to 3.8 and Next have them.
_HEADS: Final = ((8, 2, 64), (8, 2, 80), (8, 2, 128), (8, 1, 256), (12, 1, 256))
# An M5 has another kernel from 1,024 rows on. Unfused, the scores of one of these take 268 MB.
LONG: Final = (
    *product([(8, 1, 256)], [(1, 1023, 1100), (1, 1024, 1100), (1, 1025, 1100), (1, 1024, 16_384)]),
    ((4, 1, 256), (1, 2048, 16_384)),
)
# Bits and a matrix: of a dense model, a router of 256 experts in 8 bits, and a shared expert's gate.
_PACKED: Final = ((4, 96, 512), (8, 96, 512), (8, 256, 2048), (8, 1, 2048))
# Experts, a matrix of each, and rows: a step's decodes, and a chunk that has some rows for each expert.
_EXPERTS: Final = (
    *((4, 96, 512, rows) for rows in (1, 9, 33, 128)),
    *((number, 64, 256, rows) for number in (128, 256) for rows in (8, 1024)),
)
_PLAIN: Final = "so models run on plain arrays"  # unless TINY_LLM_KERNELS=mlx
# Above 8 query rows another kernel takes over. Among few stored tokens, one too many weighs much.
# With 4 rows 8 query heads of a kv head are the most for the kernel of few rows.
_CHUNKS = [(1, 2, 3), (1, 8, 11), (1, 9, 11), (1, 33, 40), (1, 4, 70), (1, 8, 70), (1, 9, 70), (1, 64, 2000)]
_DECODES: Final = [(3, 1, 2), (3, 1, 70), (3, 1, 2000)]
_ELSEWHERE: Final = "add --device cpu, or install another version of MLX"
CHECKS: Final = (
    Check("mx.fast.rope with one offset", partial(_rope, [(1, 1), (1, 9)], 7), _PLAIN),
    Check("mx.fast.rope with an offset for each row", partial(_rope, [(3, 1), (3, 5)], [7, 0, 300]), _PLAIN),
    Check("mx.fast.rope with one offset for 3 rows", partial(_rope, [(3, 1)], 7), "models give one each"),
    Check(CAUSAL, partial(_attention, _CHUNKS, False), "so models use arrays as masks"),
    Check("mx.fast.scaled_dot_product_attention", partial(_attention, _CHUNKS + _DECODES, True), _PLAIN),
    Check("mx.compile of a gate", _gate, _ELSEWHERE),
    Check("mx.quantized_matmul", _product, _ELSEWHERE),
    Check("mx.matmul", _dense_product, _ELSEWHERE),
    Check("mx.gather_mm", partial(_expert_product, False), f"for experts, {_ELSEWHERE}"),
    Check("mx.gather_qmm", partial(_expert_product, True), f"for experts, {_ELSEWHERE}"),
)
NEEDED: Final = frozenset(check.subject for check in CHECKS if check.follows == _PLAIN)
