"""How many operators a step of a model starts on a GPU: counted in MLX's graph, on any machine."""

import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final
from unittest.mock import patch

import mlx.core as mx

from tiny_llm_lab.runtime.native import mlx_ops
from tiny_llm_lab.runtime.native.device import delta_decode, delta_operator

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
    return Counter({name: count for name, count in nodes(make).items() if name not in VIEWS})


def nodes(make: Callable[[], Sequence[mx.array]]) -> Counter[str]:
    """As `launches`, with views, but without the nodes that hold a stand-in of a fused operator together."""
    with fused():
        results = make()
        text = io.StringIO()
        mx.export_to_dot(text, *results)
    names = (name for name in _NODE.findall(text.getvalue()) if name != "Depends")
    return Counter(_STANDS_FOR.get(name, name) for name in names)


def one_attention(query: mx.array, *others: mx.array | None) -> mx.array:
    """One attention operator over `others`, of the shape of `query`; the values are meaningless."""
    return _node(mx.cosh, query, *others)


@contextmanager
def fused() -> Iterator[None]:
    """Each of MLX's fused operators is one node of the right shape, as on a GPU: a CPU writes them out.

    So are the kernels of a gated delta net, mlx-lm's too. The values are meaningless.
    """
    stand_ins: dict[str, Any] = {
        "rms_norm": lambda x, weight, eps: _node(mx.erf, x, weight),
        "rope": lambda x, dims, *, offset, freqs=None, **how: _node(mx.tan, x, offset, freqs),
        "scaled_dot_product_attention": lambda q, k, v, *, scale, mask=None, sinks=None: one_attention(
            q, k, v, mask
        ),
        "gated_delta_update": _recurrence,
    }
    with (
        patch.multiple(mx.fast, **stand_ins),
        patch.object(mx, "dequantize", _dequantized),
        patch.object(
            delta_decode, "_kernel", lambda: lambda inputs, **_: _kernel([inputs[1], *inputs[-2:]], inputs)
        ),
        patch("mlx_lm.models.gated_delta.gated_delta_ops", _recurrence),
    ):
        yield


@contextmanager
def whole() -> Iterator[None]:
    """What is compiled is one node too where a graph is traced: MLX would take it apart.

    Make an `MlxOps` inside this context. A trace leaves mx.contiguous out, so another operator stands for it.
    """
    with ExitStack() as stack:
        stack.enter_context(patch.object(mx, "contiguous", mx.negative))
        for module in (mlx_ops, delta_operator):
            for name, made in vars(module).items():
                if isinstance(made, type(mx.compile(abs))):
                    stack.enter_context(patch.object(module, name, partial(_in_one, made)))
        yield


def _in_one(compiled: Callable[..., Any], *inputs: Any) -> Any:
    outs = compiled(*inputs)
    arrays = [part for each in inputs for part in (each if isinstance(each, list) else [each])]
    if isinstance(outs, mx.array):
        return _kernel([mx.zeros_like(outs)], arrays)[0]
    return _kernel([*map(mx.zeros_like, outs)], arrays)


def _recurrence(*inputs: Any, initial_state: Any = None) -> list[mx.array]:
    return _kernel([inputs[2], inputs[5] if initial_state is None else initial_state], inputs)


def _kernel(like: list[mx.array], inputs: Sequence[object]) -> list[mx.array]:
    """One node with outputs like these arrays."""
    one, *others = mx.depends(like, [each for each in inputs if isinstance(each, mx.array)])
    made = mx.sinh(one)
    return [made, *mx.depends(others, [made])] if others else [made]


def _dequantized(
    w: mx.array, scales: mx.array, biases: object, group_size: int, *_: Any, **how: Any
) -> mx.array:
    *rows, groups = scales.shape
    return _node(mx.arctan, mx.broadcast_to(scales[..., :1], (*rows, groups * group_size)), w, scales, biases)


def _node(stand_in: Callable[[mx.array], mx.array], x: mx.array, *others: object) -> mx.array:
    arrays = [each for each in others if isinstance(each, mx.array)]
    return mx.depends([stand_in(x)], arrays)[0]
