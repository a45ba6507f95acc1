"""Our own Metal kernels: source text that MLX compiles on the first call.

You write them to learn how they work: `kernels/*.metal` say what one thread does, and the functions below say
how many threads there are. Of the three, a model uses `paged_attention_metal`, for decodes over blocks, if a
self-test finds it correct and faster than MLX's operators
(tiny_llm_lab/runtime/native/device/device_tests.py) and than a given kernel for long contexts (partitioned.py
in the same folder).
"""

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import QuantizedWeights, UserError

KERNELS = Path(__file__).parent
# In a kernel's file, the text above this line goes to `header=` and the text below it to `source=`.
BODY_MARK = "// --- body ---"
# The threads of a simdgroup, which run in lockstep, and the simdgroups of a threadgroup.
LANES, SIMDGROUPS = 32, 8


def quantized_matmul_metal(x: mx.array, w: QuantizedWeights) -> mx.array:
    """Returns x [..., I] times the transpose of packed w [O, I] -> [..., O] in x's dtype, by our own kernel.

    Runs `kernels/quantized_matmul.metal` with the inputs x (as [M, I]), w, scales, biases, the output
    out [M, O] and the template values T (x's dtype), BITS and GROUP, on LANES x O x M threads. The kernel is
    built once for all calls. x is float32, float16 or bfloat16. Accumulates in float32. Raises UserError
    without a Metal device, for bits other than 4 and 8, for groups other than 32, 64 and 128, and if the
    inner dimensions differ.
    """
    _require_metal("quantized_matmul")
    _require_float(x)
    if w.biases is None or w.bits not in (4, 8) or w.group_size not in (32, 64, 128):
        raise UserError(
            f"the kernel takes 4 or 8 bits in groups of 32, 64 or 128, not {w.bits} bits in groups of "
            f"{w.group_size}: use quantized_matmul"
        )
    inner = w.weight.shape[1] * 32 // w.bits
    if x.shape[-1] != inner:
        raise UserError(f"x has {x.shape[-1]} columns but the packed matrix takes {inner}")
    rows = x.reshape(-1, inner)
    shape = (rows.shape[0], w.weight.shape[0])
    (out,) = _kernel("quantized_matmul", ("x", "w", "scales", "biases"))(
        inputs=[rows, w.weight, w.scales, w.biases],
        template=[("T", x.dtype), ("BITS", w.bits), ("GROUP", w.group_size)],
        grid=(LANES, shape[1], shape[0]),
        threadgroup=(LANES, SIMDGROUPS, 1),
        output_shapes=[shape],
        output_dtypes=[x.dtype],
    )
    return out.reshape(*x.shape[:-1], shape[1])


def flash_attention_metal(
    query: mx.array, key: mx.array, value: mx.array, scale: float | None = None, causal: bool = False
) -> mx.array:
    """query [B, H, L, D], key and value [B, G, S, D] -> [B, H, L, D] in query's dtype, by our own kernel.

    Returns the same as `flash_attention` without a mask, or with "causal" (aligned at the bottom right). Runs
    `kernels/flash_attention.metal` with the inputs query, key, value and scale (1 / sqrt(D) if None), the
    output out and the template values T (query's dtype), D and CAUSAL, on LANES x L x (B * H) threads. The
    kernel is built once for all calls. The arrays are float32, float16 or bfloat16. Accumulates in float32.
    Raises UserError without a Metal device, unless G divides H, and if a row would see no token (S = 0, or a
    causal mask with L above S).
    """
    _require_metal("flash_attention")
    _require_float(query, key, value)
    batch, heads, length, dim = query.shape
    groups, stored = key.shape[1], key.shape[2]
    if heads % groups:
        raise UserError(f"{groups} kv heads do not divide {heads} query heads")
    if stored < (length if causal else 1):
        raise UserError(f"with {stored} stored tokens some of the {length} new ones would see none")
    factor = 1 / math.sqrt(dim) if scale is None else scale
    (out,) = _kernel("flash_attention", ("query", "key", "value", "scale"))(
        inputs=[query, key, value, mx.array(factor, mx.float32)],
        template=[("T", query.dtype), ("D", dim), ("CAUSAL", causal)],
        grid=(LANES, length, batch * heads),
        threadgroup=(LANES, SIMDGROUPS, 1),
        output_shapes=[query.shape],
        output_dtypes=[query.dtype],
    )
    return out


def paged_attention_metal(
    query: mx.array,
    keys: mx.array,
    values: mx.array,
    tables: mx.array,
    owners: mx.array,
    visible: mx.array,
    scale: float | None = None,
) -> mx.array:
    """query [T, H, 1, D] over keys and values [num_blocks, G, block_size, D] -> [T, 1, H * D].

    Row t attends to the first visible[t] tokens of request owners[t], whose blocks are tables[owners[t]].
    tables [R, W], owners and visible are int32; owners and visible have T elements or more. Runs
    `kernels/paged_attention.metal` with the inputs query, keys, values, tables, owners, visible and scale
    (1 / sqrt(D) if None), the output out [T, H, 1, D] and the template values T (query's dtype) and D, on
    LANES x T x H threads. The kernel is built once for all calls. Floats have 32 or 16 bits. Accumulates in
    float32. Raises UserError without a Metal device and unless G divides H.
    """
    _require_metal("PagedAttention")
    _require_float(query, keys, values)
    rows, heads, _, dim = query.shape
    if heads % keys.shape[1]:
        raise UserError(f"{keys.shape[1]} kv heads do not divide {heads} query heads")
    factor = 1 / math.sqrt(dim) if scale is None else scale
    names = ("query", "keys", "values", "tables", "owners", "visible", "scale")
    (out,) = _kernel("paged_attention", names)(
        inputs=[query, keys, values, tables, owners, visible, mx.array(factor, mx.float32)],
        template=[("T", query.dtype), ("D", dim)],
        grid=(LANES, rows, heads),
        threadgroup=(LANES, SIMDGROUPS, 1),
        output_shapes=[query.shape],
        output_dtypes=[query.dtype],
    )
    return out.reshape(rows, 1, heads * dim)


# MLX compiles a library for each new kernel object. One per file is enough, because it separates variants.
@functools.cache
def _kernel(name: str, inputs: tuple[str, ...]) -> Callable[..., list[mx.array]]:
    text = (KERNELS / f"{name}.metal").read_text(encoding="utf-8")
    header, _, body = text.partition(BODY_MARK)
    kernel = mx.fast.metal_kernel(
        name=f"tiny_llm_{name}", input_names=inputs, output_names=["out"], source=body, header=header
    )
    return cast(Callable[..., list[mx.array]], kernel)


def _require_metal(alternative: str) -> None:
    if not mx.metal.is_available():
        raise UserError(
            "a Metal kernel needs the GPU of an Apple-silicon Mac, and MLX finds none here: "
            f"use {alternative}, which runs everywhere"
        )


def _require_float(*arrays: mx.array) -> None:
    for array in arrays:
        if array.dtype not in (mx.float32, mx.float16, mx.bfloat16):
            raise UserError(f"the kernel takes float32, float16 or bfloat16, not {array.dtype}")
