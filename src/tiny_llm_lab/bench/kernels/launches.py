"""How many operators one step of a model starts on a GPU: counted in MLX's graph, on any machine."""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import mlx.core as mx

# What moves no data, or only says where it lies.
_VIEWS: Final = frozenset(
    "AsStrided Broadcast Depends ExpandDims Flatten Reshape Slice Split Squeeze StopGradient Transpose Unflatten".split()
)
_NODE: Final = re.compile(r'label ?= ?"([A-Za-z]+)', re.ASCII)


def launches(make: Callable[[], Sequence[mx.array]]) -> Counter[str]:
    """The operators behind what `make` returns, by name, views left out; nothing is computed.

    A view that cannot be had without a copy is still counted as one. `make` must build its graph anew.
    """
    with _fused():
        results = make()
        text = io.StringIO()
        mx.export_to_dot(text, *results)
    found = Counter(_NODE.findall(text.getvalue()))
    return Counter({name: count for name, count in found.items() if name not in _VIEWS})


@contextmanager
def _fused() -> Iterator[None]:
    """On a CPU MLX writes its fused operators out: here each is one node, as on a GPU, with the right shapes.

    The values are meaningless.
    """
    fast = mx.fast
    real = fast.rms_norm, fast.rope, fast.scaled_dot_product_attention
    fast.rms_norm = lambda x, weight, eps: _node(mx.erf, x, weight)
    fast.rope = lambda x, dims, *, offset, freqs=None, **how: _node(mx.tan, x, offset, freqs)
    fast.scaled_dot_product_attention = lambda q, k, v, *, scale, mask=None, sinks=None: _node(
        mx.cosh, q, k, v, mask
    )
    try:
        yield
    finally:
        fast.rms_norm, fast.rope, fast.scaled_dot_product_attention = real


def _node(stand_in: Callable[[mx.array], mx.array], x: mx.array, *others: object) -> mx.array:
    arrays = [each for each in others if isinstance(each, mx.array)]
    return mx.depends([stand_in(x)], arrays)[0]
