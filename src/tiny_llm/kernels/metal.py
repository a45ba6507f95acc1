"""Our own Metal kernels: source text that MLX compiles on the first call.

You write them to learn how they work: `kernels/*.metal` say what one thread does, and the functions below say
how many threads there are. Of the three, a model uses `paged_attention_metal`, for decodes over blocks, if a
self-test finds it correct and faster than MLX's operators
(tiny_llm_lab/runtime/native/device/device_tests.py) and than a given kernel for long contexts (partitioned.py
in the same folder).
"""

from pathlib import Path

import mlx.core as mx

from tiny_llm_lab.types import QuantizedWeights

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
    raise NotImplementedError("task 2.3.2")


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
    raise NotImplementedError("task 2.5.2")


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
    raise NotImplementedError("task 3.2.4")
