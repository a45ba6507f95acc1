"""The variants of each operator that are compared, on the same numbers."""

import importlib
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import mlx.core as mx

from benchmarks.harness import Variant
from benchmarks.kernels.comparison import Cost, KernelComparison
from tiny_llm_lab.runtime import native
from tiny_llm_lab.runtime.native.cpp_ops import CppOps
from tiny_llm_lab.runtime.native.device.delta_checks import DrawnNet
from tiny_llm_lab.runtime.native.device.delta_decode import delta_decode
from tiny_llm_lab.runtime.native.device.delta_operator import delta_operator
from tiny_llm_lab.runtime.native.mlx_ops import MlxOps
from tiny_llm_lab.runtime.task_names import TaskNames
from tiny_llm_lab.serving.options.sampling_options import shown_sampling
from tiny_llm_lab.types import DeltaKernel, DeltaNetSizes, DeltaState, QuantizedWeights, SamplingParams
from tiny_llm_lab.types.packages import PACKAGES

# A product of Qwen3-0.6B's MLP, and the heads of its attention.
_OUTPUTS, _INNER, _GROUP, _BITS = 3072, 1024, 64, 4
_HEADS, _KV_HEADS, _DIM = 16, 8, 128
# More than any cache holds: the weights of every run come from memory, as they do in a model.
_ROTATED_BYTES = 100_000_000
_VOCAB = 151_936
# What is drawn or scored: temperature, top_k, top_p and logprobs.
_ASKED = ((0.7, 20, 0.8, None), (1, 0, 1, None), (1, 0, 0.95, None), (0, 0, 1, 20))
DRAWS = tuple(SamplingParams(t, k, p, logprobs=num_top) for t, k, p, num_top in _ASKED)


def products(
    rows: int,
    packages: Sequence[str],
    outputs: int = _OUTPUTS,
    inner: int = _INNER,
    rotated: int = _ROTATED_BYTES,
) -> KernelComparison:
    """x [rows, inner] times the transpose of packed weights [outputs, inner], all but scales in 4 bits."""
    one = outputs * inner * _BITS // 8 + 2 * 2 * outputs * inner // _GROUP
    key = mx.random.key(0)
    weights = [_packed(mx.random.normal((outputs, inner), key=key)) for _ in range(rotated // one + 1)]
    x = mx.random.normal((rows, inner), key=key).astype(mx.bfloat16)
    mx.eval(x, *((w.weight, w.scales, w.biases) for w in weights))
    weight = itertools.cycle(weights).__next__  # every run takes the next copy
    variants, in_bytes = [Variant("MLX", lambda: _mlx_product(x, weight()))], list[Variant]()
    if mx.default_device() == mx.gpu:
        matmul = _names(packages[-1]).quantized_matmul_metal
        variants.append(Variant("Metal kernel", lambda: matmul(x, weight())))
    else:
        variants.insert(0, Variant("oracle", lambda: _oracle_product(x, weight())))
        stored = itertools.cycle([native.in_blocks(w) for w in weights]).__next__  # as a model has them
        for package in packages:
            variants += [*_steps(package, x, weight), _product(package, x, stored)]
            in_bytes.append(_in_bytes(package, x, stored))
    cost = Cost(one + 2 * rows * (inner + outputs), 2 * rows * outputs * inner, allows_integers=True)
    title = f"quantized matmul [{rows}, {inner}] x [{outputs}, {inner}], 4 bits in groups of 64, bfloat16"
    return KernelComparison(title, cost, variants, byte_variants=in_bytes)


def attention(
    tokens: int,
    stored: int,
    packages: Sequence[str],
    heads: int = _HEADS,
    kv_heads: int = _KV_HEADS,
    dim: int = _DIM,
) -> KernelComparison:
    """New tokens of one request, causal, over the stored tokens, which include them."""
    stored = stored if tokens == 1 else stored + tokens
    keys = mx.random.split(mx.random.key(1), 3)
    shapes = ((1, heads, tokens, dim), (1, kv_heads, stored, dim), (1, kv_heads, stored, dim))
    q, k, v = (mx.random.normal(s, key=n).astype(mx.bfloat16) for s, n in zip(shapes, keys, strict=True))
    mx.eval(q, k, v)
    scale = dim**-0.5
    own = partial(
        mx.fast.scaled_dot_product_attention, q, k, v, scale=scale, mask="causal" if tokens > 1 else None
    )
    variants = [Variant("MLX", own)]
    if mx.default_device() == mx.gpu:
        flash_attention = _names(packages[-1]).flash_attention_metal
        variants.append(Variant("Metal kernel", partial(flash_attention, q, k, v, causal=True)))
    else:
        oracle = _names(packages[0])
        variants.insert(0, Variant("oracle", lambda: oracle.flash_attention(q, k, v, mask="causal")))
        for package in packages:
            of_package = partial(native.load(package).attention, q, k, v, [stored], True, scale)
            variants.append(Variant(_name(package), of_package))
    seen = sum(stored - tokens + i + 1 for i in range(tokens))
    cost = Cost(2 * stored * kv_heads * dim * 2 + 4 * tokens * heads * dim, 4 * seen * heads * dim)
    title = f"attention of {tokens} new among {stored} tokens, {heads} heads of {dim}, {kv_heads} kv heads"
    return KernelComparison(f"{title}, bfloat16", cost, variants)


def drawing(
    rows: int, asked: SamplingParams, packages: Sequence[str], vocab: int = _VOCAB
) -> KernelComparison:
    """A token of each row of logits [rows, vocab], or logprobs if asked; the limit is reading them once."""
    logits = (3 * mx.random.normal((rows, vocab), key=mx.random.key(0))).astype(mx.bfloat16)
    tokens, llm = mx.argmax(logits, axis=-1), _names(packages[0])
    mx.eval(logits, tokens)
    ways: dict[str, Any] = {"arrays": None, "MLX, one graph": MlxOps(widens=True)}
    if mx.default_device() == mx.cpu:
        ways["C++"] = CppOps(native.load(packages[0]))
    what = shown_sampling(asked) if asked.logprobs is None else f"{asked.logprobs} logprobs"
    title = f"{what}: a token of each row of logits [{rows}, {vocab}], bfloat16"
    if asked.logprobs is None:
        runs = [partial(llm.Sampler(asked, ops), logits, 0) for ops in ways.values()]
    else:
        runs = [partial(llm.score_tokens, logits, tokens, asked.logprobs, ops) for ops in ways.values()]
    return KernelComparison(title, Cost(logits.nbytes, logits.size), [*map(Variant, ways, runs)])


def _steps(package: str, x: mx.array, weight: Callable[[], QuantizedWeights]) -> list[Variant]:
    made = native.load(package)
    prefix = "" if package.endswith("_ref") else "mine "

    def step(number: int) -> mx.array:
        return made.quantized_matmul_step(number, x, weight())

    return [Variant(f"{prefix}step {number}", partial(step, number)) for number in (1, 2, 3, 4)]


def _product(package: str, x: mx.array, weight: Callable[[], QuantizedWeights]) -> Variant:
    made = native.load(package)
    return Variant(_name(package), lambda: made.linear(x, [weight()])[0])


def _in_bytes(package: str, x: mx.array, weight: Callable[[], QuantizedWeights]) -> Variant:
    made = native.load(package)
    return Variant(
        f"{_name(package)}, 8 bits", lambda: made.linear(x, [replace(weight(), activation_bits=8)])[0]
    )


def _names(package: str) -> Any:
    return TaskNames(importlib.import_module(package))


def _name(package: str) -> str:
    return "reference" if package.endswith("_ref") else "mine"


def _packed(w: mx.array) -> QuantizedWeights:
    return QuantizedWeights(*mx.quantize(w.astype(mx.bfloat16), group_size=_GROUP, bits=_BITS), _GROUP, _BITS)


def _mlx_product(x: mx.array, w: QuantizedWeights) -> mx.array:
    return mx.quantized_matmul(
        x, w.weight, w.scales, w.biases, transpose=True, group_size=w.group_size, bits=w.bits
    )


def _oracle_product(x: mx.array, w: QuantizedWeights) -> mx.array:
    """The definition in whole arrays: decode, then multiply."""
    shifts = mx.arange(0, 32, w.bits, dtype=mx.uint32)
    fields = (w.weight[..., None] >> shifts) & (2**w.bits - 1)
    groups = fields.reshape(len(w.weight), -1, w.group_size).astype(mx.float32)
    assert w.biases is not None
    scales, biases = w.scales.astype(mx.float32), w.biases.astype(mx.float32)
    dense = groups * scales[..., None] + biases[..., None]
    return (x.astype(mx.float32) @ mx.flatten(dense, 1).T).astype(x.dtype)


# The heads of a Qwen3.5 of 9B.
_SIZES: Final = DeltaNetSizes(16, 32, 128, 128, 4)


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
    kernels = [("MLX", _names(PACKAGES["ref"]).array_delta), *_own(packages, tokens)]
    variants = [inputs.variant(name, kernel, rotated) for name, kernel in kernels]
    numbers, count = heads * sizes.key_head_dim * sizes.value_head_dim, tokens * requests
    moved = 2 * sum(part.nbytes for part in inputs.state()) * requests
    moved += sum(row.nbytes for row in inputs.rows) + inputs.rows[1].nbytes
    # Of each number of a state: decay, a product with the key, one with the query, and the update.
    cost = Cost(moved, 4 * 2 * numbers * count)
    title = f"gated delta net of {requests} x {tokens} tokens, {heads} value heads of {sizes.value_head_dim}"
    return KernelComparison(f"{title}, bfloat16", cost, variants, count * heads)


def _own(packages: Sequence[str], tokens: int) -> list[tuple[str, DeltaKernel]]:
    if mx.default_device() == mx.gpu:
        own = [("Metal kernel", delta_decode)] if tokens == 1 and mx.metal.is_available() else []
        return [("MLX's operator", delta_operator), *own]
    return [(_name(package), native.load(package).gated_delta) for package in packages]
