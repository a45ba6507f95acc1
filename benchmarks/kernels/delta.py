"""The variants of a gated delta net that are compared, with states that come from memory as in a model."""

import importlib
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import mlx.core as mx

from benchmarks.harness import Variant
from benchmarks.kernels.comparison import Cost, KernelComparison
from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.native.device.delta_checks import DrawnNet
from tiny_llm_lab.runtime.native.device.delta_decode import delta_decode
from tiny_llm_lab.types import DeltaKernel, DeltaNetSizes, DeltaState
from tiny_llm_lab.types.packages import PACKAGES

# The heads of a Qwen3.5 of 9B.
_SIZES: Final = DeltaNetSizes(16, 32, 128, 128, 4)
# More than any cache holds, as in `products`.
_ROTATED_BYTES: Final = 100_000_000


class _Inputs:
    """Rows of requests with `tokens` each, and the weights that all variants have."""

    def __init__(self, tokens: int, requests: int, sizes: DeltaNetSizes) -> None:
        def draw(*shape: int) -> mx.array:
            return mx.random.normal(shape, key=mx.random.key(len(shape))).astype(mx.bfloat16)

        heads, channels = sizes.num_value_heads, sizes.conv_dim
        widths, count = (channels, sizes.value_dim, heads, heads), tokens * requests
        self.rows, self.sizes, self.requests = [draw(count, width) for width in widths], sizes, requests
        self.starts = range(0, count + 1, tokens)
        small = draw(heads)
        self.net = DrawnNet(draw(sizes.conv_kernel, channels), small, small, draw(sizes.value_head_dim))
        mx.eval(self.rows, self.net.conv, small, self.net.norm)

    def state(self) -> DeltaState:
        tail, matrices = mx.zeros(self.sizes.tail_shape), mx.zeros(self.sizes.state_shape)
        mx.eval(tail, matrices)
        return tail, matrices

    def variant(self, name: str, kernel: DeltaKernel, rotated: int) -> Variant:
        """One call; each takes the states that were used longest ago, and gives back those after them."""
        one = sum(part.nbytes for part in self.state())
        num = -(-max(rotated // one, self.requests) // self.requests) * self.requests
        held = deque(self.state() for _ in range(num))

        def run() -> Sequence[mx.array]:
            out, after = kernel(
                self.rows, self.net, [held.popleft() for _ in range(self.requests)], self.starts
            )
            held.extend(after)
            return [out, *(part for state in after for part in state)]

        return Variant(name, run)


def delta_net(
    tokens: int,
    requests: int,
    packages: Sequence[str],
    sizes: DeltaNetSizes = _SIZES,
    rotated: int = _ROTATED_BYTES,
) -> KernelComparison:
    """`tokens` new ones of each request: convolution, gates, delta rule and gated norm of one layer."""
    inputs, heads = _Inputs(tokens, requests, sizes), sizes.num_value_heads
    kernels = [("MLX", _arrays()), *_own(packages, tokens)]
    variants = [inputs.variant(name, kernel, rotated) for name, kernel in kernels]
    numbers, count = heads * sizes.key_head_dim * sizes.value_head_dim, tokens * requests
    moved = 2 * sum(part.nbytes for part in inputs.state()) * requests
    moved += sum(row.nbytes for row in inputs.rows) + inputs.rows[1].nbytes
    # Of each number of a state: decay, a product with the key, one with the query, and the update.
    cost = Cost(moved, 4 * 2 * numbers * count)
    title = f"gated delta net of {requests} x {tokens} tokens, {heads} value heads of {sizes.value_head_dim}"
    return KernelComparison(f"{title}, bfloat16", cost, variants, count * heads)


def _arrays() -> DeltaKernel:
    found: Callable[[], DeltaKernel] = importlib.import_module(
        f"{PACKAGES['ref']}.layers.array_delta"
    ).ArrayDelta
    return found()


def _own(packages: Sequence[str], tokens: int) -> list[tuple[str, DeltaKernel]]:
    if mx.default_device() == mx.gpu:
        return [("Metal kernel", delta_decode)] if tokens == 1 and mx.metal.is_available() else []
    names = {PACKAGES["ref"]: "reference"}
    return [(names.get(package, "mine"), native.load(package).gated_delta) for package in packages]
