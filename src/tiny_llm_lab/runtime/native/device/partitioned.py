"""A given Metal kernel for decodes with long contexts: partitions of a row's tokens run at the same time.

A learner's kernel of day 3.2 walks over a row's tokens with one simdgroup. Here every PARTITION of them has a
threadgroup for each kv head (partitions.metal), and a second launch merges what these found (merge.metal).
"""

import functools
import math
from collections.abc import Callable
from typing import Final

import mlx.core as mx

from tiny_llm_lab.runtime.native.device.metal_source import LANES, metal_kernel
from tiny_llm_lab.types import UserError

PARTITION: Final = 512
_MOST_SIMDGROUPS: Final = 8  # in a threadgroup
_PEAK_AND_TOTAL: Final = 4  # numbers after a partition's own, two of them to align to 16 bytes


def partitioned_attention(
    query: mx.array,
    keys: mx.array,
    values: mx.array,
    tables: mx.array,
    owners: mx.array,
    visible: mx.array,
    scale: float,
    longest: int,
) -> mx.array:
    """See `Decodes`. D is at most 256, and 4 divides it, or 8 above 128.

    Rows of at most PARTITION tokens take one launch, others two. Raises UserError for another D and unless G
    divides H.
    """
    rows, heads, _, dim = query.shape
    groups, size = keys.shape[1:3]
    if dim % (8 if dim > 128 else 4) or dim > 256 or heads % groups:
        raise UserError(f"this kernel cannot take {heads} heads of {dim} numbers over {groups} kv heads")
    num_parts, sharing = -(-longest // PARTITION), heads // groups
    num_threadgroups = -(-sharing // _MOST_SIMDGROUPS)
    simdgroups = -(-sharing // num_threadgroups)
    factor = mx.array(scale * math.log2(math.e), mx.float32)
    whole = (query.shape, query.dtype)
    part = ((rows, heads, num_parts, dim + _PEAK_AND_TOTAL), mx.float32)
    shape, dtype = whole if num_parts == 1 else part
    sizes = [("D", dim), ("PARTITION", PARTITION)]
    (out,) = _kernel("partitions", ("query", "keys", "values", "tables", "owners", "visible", "scale"))(
        inputs=[query, keys, values, tables, owners, visible, factor],
        template=[("O", dtype), *sizes, ("BLOCK", size), ("PARTS", num_parts > 1)],
        grid=(LANES * num_parts, groups * num_threadgroups * simdgroups, rows),
        threadgroup=(LANES, simdgroups, 1),
        output_shapes=[shape],
        output_dtypes=[dtype],
    )
    if num_parts > 1:
        (out,) = _kernel("merge", ("parts", "visible"))(
            inputs=[out, visible],
            template=[("O", query.dtype), *sizes],
            grid=(LANES, heads, rows),
            threadgroup=(LANES, _MOST_SIMDGROUPS, 1),
            output_shapes=[query.shape],
            output_dtypes=[query.dtype],
        )
    return out.reshape(rows, 1, heads * dim)


@functools.cache
def _kernel(name: str, inputs: tuple[str, ...]) -> Callable[..., list[mx.array]]:
    return metal_kernel(name, inputs, ["out"])
