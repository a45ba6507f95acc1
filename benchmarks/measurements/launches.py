"""How many operators a step of a model starts on a GPU: counted in MLX's graph, on any machine."""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final
from unittest.mock import patch

import mlx.core as mx

# What moves no data, or only says where it lies.
VIEWS: Final = frozenset(
    "AsStrided Broadcast Depends ExpandDims Flatten Reshape Slice Split Squeeze StopGradient Transpose "
    "Unflatten".split()
)
_NODE: Final = re.compile(r'label ?= ?"([A-Za-z]+)', re.ASCII)
# Operators that no model uses, each in place of a fused one.
_STANDS_FOR: Final = {"Erf": "RMSNorm", "Tan": "RoPE", "Cosh": "Attention", "ArcTan": "Dequantize"}


def launches(make: Callable[[], Sequence[mx.array]]) -> Counter[str]:
    """The operators behind what `make` returns, by name; nothing is computed.

    Views are left out, and so is the copy that a reshape behind a transpose makes. `make` must build its
    graph anew.
    """
    with fused():
        results = make()
        text = io.StringIO()
        mx.export_to_dot(text, *results)
    found = Counter(_STANDS_FOR.get(name, name) for name in _NODE.findall(text.getvalue()))
    return Counter({name: count for name, count in found.items() if name not in VIEWS})


def one_attention(query: mx.array, *others: mx.array | None) -> mx.array:
    """One attention operator over `others`, of the shape of `query`; the values are meaningless."""
    return _node(mx.cosh, query, *others)


@contextmanager
def fused() -> Iterator[None]:
    """Each of MLX's fused operators is one node of the right shape, as on a GPU: a CPU writes them out.

    The values are meaningless.
    """
    stand_ins: dict[str, Any] = {
        "rms_norm": lambda x, weight, eps: _node(mx.erf, x, weight),
        "rope": lambda x, dims, *, offset, freqs=None, **how: _node(mx.tan, x, offset, freqs),
        "scaled_dot_product_attention": lambda q, k, v, *, scale, mask=None, sinks=None: one_attention(
            q, k, v, mask
        ),
    }
    with patch.multiple(mx.fast, **stand_ins), patch.object(mx, "dequantize", _dequantized):
        yield


def _dequantized(
    w: mx.array,
    scales: mx.array,
    biases: mx.array | None = None,
    group_size: int = 64,
    *_: object,
    **how: object,
) -> mx.array:
    *rows, groups = scales.shape
    return _node(mx.arctan, mx.broadcast_to(scales[..., :1], (*rows, groups * group_size)), w, scales, biases)


def _node(stand_in: Callable[[mx.array], mx.array], x: mx.array, *others: object) -> mx.array:
    arrays = [each for each in others if isinstance(each, mx.array)]
    return mx.depends([stand_in(x)], arrays)[0]
