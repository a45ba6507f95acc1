"""Compares a freshly compiled copy of the kernels with MLX, once for each copy and machine."""

from collections.abc import Iterator
from typing import cast

import mlx.core as mx

from tiny_llm_lab.runtime.native.draw_table import DrawTable
from tiny_llm_lab.runtime.native.ops import KernelSet
from tiny_llm_lab.types import DrawRow, QuantizedWeights, SamplingParams, Weight, gumbel

# Far above every rounding, far below every mistake.
_ALLOWED = 1e-3


def first_wrong(kernels: KernelSet) -> str | None:
    """The name of the first operator that is wrong, or None. An unwritten one is not wrong."""
    for name, got, want in _cases(kernels):
        try:
            mx.eval(got)
        except RuntimeError as error:
            mx.synchronize()
            if not str(error).startswith("task "):
                raise
            continue
        delta = mx.max(mx.abs(got.astype(mx.float32) - want.astype(mx.float32))) / mx.max(mx.abs(want))
        if not cast(float, delta.item()) <= _ALLOWED:  # also for NaN
            return name
    return None


def _cases(k: KernelSet) -> Iterator[tuple[str, mx.array, mx.array]]:
    def draw(seed: int, *shape: int) -> mx.array:
        return mx.random.normal(shape, key=mx.random.key(seed))

    w = draw(1, 70, 320)
    for bits in (4, 8):
        packed = mx.quantize(w, group_size=64, bits=bits)
        whole = mx.dequantize(*packed, group_size=64, bits=bits)
        for rows in (1, 5):
            x = draw(2, rows, 320)
            weights: list[Weight] = [QuantizedWeights(*packed, 64, bits)]
            yield f"linear of {bits} bits", k.linear(x, weights)[0], x @ whole.T
            y = k.linear(x.astype(mx.bfloat16), weights)[0].astype(mx.float32)
            want = x.astype(mx.bfloat16).astype(mx.float32) @ whole.T
            # bfloat16 keeps 8 bits: compared at 16 times its rounding, which a wrong product passes by far.
            yield f"linear of {bits} bits in bfloat16", y / 64, (y + (want - y) / 16) / 64
            # Whole numbers, the largest of a group 127: rounding to bytes leaves them alone.
            x = mx.where(mx.arange(320) % 32 == 0, 127, mx.round(mx.clip(40 * x, -127, 127)))
            weights = [QuantizedWeights(*packed, 64, bits, activation_bits=8)]
            yield f"linear of {bits} bits and bytes", k.linear(x, weights)[0], x @ whole.T
    x = draw(3, 4, 320)
    yield "linear", k.linear(x, [w])[0], x @ w.T
    q, key, value = draw(4, 1, 4, 3, 64), draw(5, 1, 2, 70, 64), draw(6, 1, 2, 70, 64)
    fast = mx.fast.scaled_dot_product_attention(q, key, value, scale=0.125, mask="causal")
    yield "attention", k.attention(q, key, value, [70], True, 0.125), fast
    yield from _of_pages(k, q, key, value, fast)
    yield "rms_norm", k.rms_norm(x, w[0], 1e-5)[1], mx.fast.rms_norm(x, w[0], 1e-5)
    yield "swiglu", k.swiglu(x, w[:4]), x * mx.sigmoid(x) * w[:4]
    yield "sigmoid_gate", k.sigmoid_gate(x, w[:4, :1]), x * mx.sigmoid(w[:4, :1])
    yield from _of_tokens(k, x)
    angles = mx.arange(16)[:, None] * mx.power(10000.0, -mx.arange(32) / 32)
    heads = draw(7, 1, 5, 2, 64)
    rotated = mx.fast.rope(
        heads.transpose(0, 2, 1, 3), 64, traditional=False, base=10000.0, scale=1.0, offset=3
    )
    cos, sin = mx.cos(angles), mx.sin(angles)
    yield "rope", k.rope(heads, [3], cos, sin), rotated.transpose(0, 2, 1, 3)
    some = mx.concatenate([k.rope(heads[..., :32], [3], cos[:, ::2], sin[:, ::2]), heads[..., 32:]], axis=-1)
    yield "rope of some dimensions", k.rope(heads, [3], cos[:, ::2], sin[:, ::2]), some


def _of_tokens(k: KernelSet, logits: mx.array) -> Iterator[tuple[str, mx.array, mx.array]]:
    """Draws from 4 rows, and logprobs of their first tokens and of the likeliest."""
    keys, vocab_size = range(4), logits.shape[-1]
    rows = [DrawRow(SamplingParams(temperature=0.5, top_k=20), key) for key in keys]
    kept = mx.where(logits >= mx.sort(logits, axis=-1)[:, -20:-19], 2 * logits, -mx.inf)
    want = mx.argmax(kept + gumbel(keys, vocab_size), axis=-1)
    yield "draw", k.draw(logits, DrawTable.of(rows, vocab_size)), want
    chosen, _, likeliest = k.score(logits, mx.zeros(4, mx.uint32), 3)
    logprobs = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    wanted = mx.concatenate([logprobs[:, :1], -mx.sort(-logprobs, axis=-1)[:, :3]], axis=-1)
    yield "score", mx.concatenate([chosen[:, None], likeliest], axis=-1), wanted


def _of_pages(
    k: KernelSet, q: mx.array, key: mx.array, value: mx.array, causal: mx.array
) -> Iterator[tuple[str, mx.array, mx.array]]:
    """The 3 new tokens among 70 once more in pages, and a request that shares them but for the last 6."""
    keys, values = pools = _pool_of(key), _pool_of(value)
    rows = mx.concatenate([q[0].transpose(1, 0, 2), q[0, :, -1:].transpose(1, 0, 2)])[:, :, None]
    tables = mx.array([[2, 1, 0], [2, 1, 0]], mx.int32)
    last = mx.fast.scaled_dot_product_attention(q[:, :, -1:], key[:, :, :64], value[:, :, :64], scale=0.125)
    want = mx.concatenate([causal, last], axis=2)[0].swapaxes(0, 1).reshape(4, 1, 256)
    yield "paged attention", k.paged_attention(rows, keys, values, [0, 3, 4], [70, 64], tables, 0.125), want
    scales = _scales_of(keys), _scales_of(values)
    numbers = [
        mx.round(pool / scale[..., None]).astype(mx.int8) for pool, scale in zip(pools, scales, strict=True)
    ]
    yield "quantize_rows", k.quantize_rows(keys[2])[0], numbers[0][2]
    whole_keys, whole_values = (
        whole * scale[..., None] for whole, scale in zip(numbers, scales, strict=True)
    )
    over = k.paged_attention(rows, whole_keys, whole_values, [0, 3, 4], [70, 64], tables, 0.125)
    got = k.paged_attention(rows, numbers[0], numbers[1], [0, 3, 4], [70, 64], tables, 0.125, scales)
    yield "paged attention of 8 bits", got, over
    slots, held = mx.array([65, 2], mx.int32), mx.zeros((3, 2, 32, 64))
    held[mx.array([2, 0]), :, mx.array([1, 2])] = rows[:2, :2, 0]
    yield "append_rows", k.append_rows(mx.zeros(held.shape), rows[:2, :2], slots), held


def _pool_of(stored: mx.array) -> mx.array:
    """stored [1, 2, 70, 64] as a pool [3, 2, 32, 64] with its blocks in reverse order."""
    padded = mx.pad(stored[0], [(0, 0), (0, 26), (0, 0)]).reshape(2, 3, 32, 64)
    return mx.contiguous(padded.transpose(1, 0, 2, 3)[::-1])


def _scales_of(pool: mx.array) -> mx.array:
    return mx.max(mx.abs(pool), axis=-1) / 127
