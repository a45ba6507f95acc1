"""The operators of a model as MLX's own fused ones: what runs on every GPU, and on request on a CPU."""

from collections.abc import Sequence
from functools import partial

import mlx.core as mx
import numpy as np

from tiny_llm_lab.runtime.native.device.chunk_ways import ChunkWays
from tiny_llm_lab.runtime.native.device.decode_kernel import DecodeKernel
from tiny_llm_lab.runtime.native.draw_table import DrawTable
from tiny_llm_lab.runtime.native.mlx_pages import Kept, MlxPages, cleared, put, quantize_rows
from tiny_llm_lab.runtime.native.ops import ComposedOps
from tiny_llm_lab.runtime.native.table_rope import TableRope
from tiny_llm_lab.types import DrawRow, Offsets, QuantizedWeights, Rotary, Weight
from tiny_llm_lab.types.computing.noise import gumbel_of_uniform, uniform_of_words

_PIECE = 512


def draw(logits: mx.array, table: DrawTable) -> mx.array:
    """Tokens [n] uint32 drawn from logits [n, V]."""
    n, vocab_size = logits.shape
    if n == 0:
        return mx.zeros((0,), mx.uint32)
    logits = _changed(logits.astype(mx.float32), table)
    temperatures, top_p, min_p = np.split(table.settings, 3, axis=-1)
    if not temperatures.any():
        return mx.argmax(logits, axis=-1)
    is_warm = temperatures > 0
    scores = logits / mx.array(np.where(is_warm, temperatures, 1))
    top_k = np.where(is_warm[:, 0], table.top_k, 0)
    top_p, min_p = np.where(is_warm, top_p, 1), np.where(is_warm, min_p, 0)
    with np.errstate(divide="ignore"):
        peaks = mx.max(scores, axis=-1, keepdims=True)
        cut = peaks + mx.array(np.log(min_p))
    if top_k.any() or (top_p < 1).any():
        kth = vocab_size - np.where(top_k > 0, top_k, vocab_size)[:, None]
        cut = mx.maximum(
            cut, _end(mx.sort(scores, axis=-1), mx.array(kth.astype(np.uint32)), mx.array(top_p))
        )
    low, high = (mx.array(words) for words in np.split(table.words, 2, axis=-1))
    tokens = mx.arange(vocab_size, dtype=mx.uint32)
    heat = mx.array(is_warm.astype(np.float32))
    return mx.argmax(_with_noise(scores, peaks, cut, heat, low, high, tokens), axis=-1)


def score(logits: mx.array, tokens: mx.array, num_top: int) -> tuple[mx.array, mx.array, mx.array]:
    """See `KernelOps.score`."""
    scores = logits.astype(mx.float32)
    # Numbers near 0 keep more digits.
    scores = scores - mx.max(scores, axis=-1, keepdims=True)
    # A CPU adds a row number by number, so its sum is made in pieces.
    pieces = mx.pad(scores, [(0, 0), (0, -scores.shape[-1] % _PIECE)], constant_values=-mx.inf)
    sums = mx.logsumexp(pieces.reshape(len(scores), -1, _PIECE), axis=-1)
    scores = scores - mx.logsumexp(sums, axis=-1, keepdims=True)
    top = mx.zeros((len(tokens), 0), mx.uint32)
    if num_top > 0:
        top = mx.argpartition(-scores, min(num_top, scores.shape[-1]) - 1, axis=-1)[:, :num_top]
    chosen = mx.take_along_axis(scores, tokens[:, None], axis=-1)[:, 0]
    return chosen, top, mx.take_along_axis(scores, top, axis=-1)


def _end(rising: mx.array, kth: mx.array, top_p: mx.array) -> mx.array:
    """The lowest score [n, 1] that top-k and then top-p keep, of sorted scores [n, V]."""
    least = mx.take_along_axis(rising, kth, axis=-1)
    mass = mx.cumsum(_weights(rising, least, rising[:, -1:]), axis=-1, reverse=True)
    # As many as reach the share, and their scores, lie before the end.
    place = mx.sum(mass >= top_p * mass[:, :1], axis=-1, keepdims=True) - 1
    return mx.where(top_p < 1, mx.take_along_axis(rising, place, axis=-1), least)


def changed_rows(logits: mx.array, rows: Sequence[DrawRow]) -> mx.array:
    """Logits [n, V], changed as rows[i].changes says of each, in float32."""
    return _changed(logits.astype(mx.float32), DrawTable.of(rows, logits.shape[-1]))


def _changed(logits: mx.array, table: DrawTable) -> mx.array:
    n, vocab_size = logits.shape
    if table.edited.size:
        rows = np.repeat(np.arange(n), np.diff(table.edit_starts))
        places = mx.array((rows * vocab_size + table.edited).astype(np.uint32))
        flat, changes = logits.reshape(-1), [mx.array(each) for each in table.changes.T]
        flat = mx.put_along_axis(flat, places, _edited(flat[places], *changes), axis=0)
        logits = flat.reshape(n, vocab_size)
    if len(table.allowed):
        words = [
            np.full(table.allowed.shape[1], 0xFFFFFFFF, np.uint32) if i < 0 else table.allowed[i]
            for i in table.masks
        ]
        bits = mx.array(np.stack(words))[:, :, None] >> mx.arange(32, dtype=mx.uint32) & 1
        logits = mx.where(bits.reshape(n, -1)[:, :vocab_size] == 1, logits, -mx.inf)
    return logits


@partial(mx.compile, shapeless=True)
def _edited(logits: mx.array, biases: mx.array, factors: mx.array, losses: mx.array) -> mx.array:
    logits = logits + biases
    return mx.where(logits > 0, logits / factors, logits * factors) - losses


@partial(mx.compile, shapeless=True)
def _weights(scores: mx.array, least: mx.array, peaks: mx.array) -> mx.array:
    return mx.where(scores >= least, mx.exp(scores - peaks), 0)


@partial(mx.compile, shapeless=True)
def _with_noise(
    scores: mx.array,
    peaks: mx.array,
    cut: mx.array,
    heat: mx.array,
    low: mx.array,
    high: mx.array,
    tokens: mx.array,
) -> mx.array:
    noise = heat * gumbel_of_uniform(uniform_of_words(low, high, tokens))
    # Where scores are large, their sum with noise would be rounded.
    return mx.where(scores >= cut, scores - peaks + noise, -mx.inf)


# cuDNN takes decodes only where rows have room for a multiple of so many tokens (MLX 0.32, cuda/sdpa.cpp).
_CUDNN_ROOM = 256
# From so many uses of an expert on, sorting costs less than reading a matrix more than once.
_SORT_FROM = 64


class MlxOps(ComposedOps):
    """`KernelOps` by `mx.fast` and `mx.quantized_matmul`, with no launch more than these need.

    What follows from a step alone (offsets, masks, places in storage) is made for its first layer and kept
    for the others.
    """

    name = "mlx"
    starts_early = False
    has_free_rows = False

    def __init__(
        self,
        widens: bool,
        kernel: DecodeKernel | None = None,
        *,
        masks: bool = False,
        reads_hidden: bool | None = None,
        chunks: ChunkWays | None = None,
    ) -> None:
        """Take what the self-tests on a device found.

        `widens`: products of 16 bits are made in float32, as MLX's CPU backend needs them. `kernel`: for
        decodes over blocks. `masks`: MLX's causal mask is wrong there, so that arrays take its place.
        `reads_hidden`: MLX's attention reads the values that an array masks, and multiplies them by 0. None:
        as on the default device; Metal's kernel for a few rows leaves them out. `chunks`: how several tokens
        of a request are computed.
        """
        self._widens, self._masks = widens, masks
        self._reads_hidden = not _is_metal() if reads_hidden is None else reads_hidden
        self._once, self.chunks = Kept(), chunks or ChunkWays()
        self.chunks.has_few_rows = not self._reads_hidden
        pages = MlxPages(self._once, self._chunk, kernel, self._reads_hidden)
        self.paged_attention, self.append_rows = pages.attention, pages.append_rows
        self.swiglu, self.sigmoid_gate, self.quantize_rows = _swiglu, _gated, quantize_rows
        self.score = score

    def embedding(self, tokens: mx.array, weight: Weight) -> mx.array:
        """See `KernelOps.embedding`."""
        if not isinstance(weight, QuantizedWeights):
            return weight[tokens]
        # MLX decodes no empty matrix.
        flat = tokens.reshape(-1) if tokens.size else mx.zeros((1,), mx.int32)
        rows = weight.mapped(lambda part: part[flat]).dequantized()[: tokens.size]
        return rows.reshape(*tokens.shape, rows.shape[-1])

    def linear(
        self, x: mx.array, weights: Sequence[Weight], biases: Sequence[mx.array | None] = ()
    ) -> list[mx.array]:
        """See `KernelOps.linear`."""
        return [self._product(x, w, biases[i] if biases else None) for i, w in enumerate(weights)]

    def rms_norm(
        self, x: mx.array, weight: mx.array, eps: float, delta: mx.array | None = None
    ) -> tuple[mx.array, mx.array]:
        """See `KernelOps.rms_norm`."""
        x = x if delta is None else x + delta
        return x, mx.fast.rms_norm(x, weight, eps)

    def rotated(self, x: mx.array, rope: Rotary, offsets: Offsets) -> mx.array:
        """x [B, L, H, D], rotated from `offsets` on -> [B, H, L, D]."""
        if isinstance(rope, TableRope):
            return rope.rotated(x, offsets)
        several = tuple(offsets)
        if rope.magnitude != 1:
            x = x * mx.array(rope.magnitude, x.dtype)
        # One offset for several rows has been wrong in released versions of MLX: an array never was.
        alone = len(several) == 1
        at = several[0] if alone else self._once("at", several, partial(mx.array, several, mx.int32))
        return mx.fast.rope(
            x.transpose(0, 2, 1, 3),
            2 * rope.periods.size,
            traditional=rope.traditional,
            base=rope.base,
            scale=1.0,
            offset=at,
            freqs=rope.periods if rope.base is None else None,
        )

    def attention(
        self, query: mx.array, key: mx.array, value: mx.array, lengths: Offsets, scale: float
    ) -> mx.array:
        """See `KernelOps.attention`."""
        new, stored = query.shape[2], key.shape[2]
        mask: str | mx.array | None = None
        if any(length != stored for length in lengths):
            visible = (tuple(lengths), new, stored)
            mask = self._once("mask", visible, partial(_visible, *visible))
            value = cleared(value, mask) if self._reads_hidden else value
        if mask is None and new > 1:
            out = self._chunk(query, key, value, scale)
        else:
            out = mx.fast.scaled_dot_product_attention(query, key, value, scale=scale, mask=mask)
        return out.transpose(0, 2, 1, 3).flatten(2)

    def route(self, scores: mx.array, per_token: int, is_normed: bool) -> Sequence[mx.array]:
        """See `KernelOps.route`."""
        probs = mx.softmax(scores.astype(mx.float32), axis=-1)
        experts = mx.argsort(-probs, axis=-1)[..., :per_token]
        shares = mx.take_along_axis(probs, experts, axis=-1)
        return experts, shares / mx.sum(shares, axis=-1, keepdims=True) if is_normed else shares

    def expert_mlp(
        self, x: mx.array, experts: mx.array, shares: mx.array, gate: Weight, up: Weight, down: Weight
    ) -> mx.array:
        """See `KernelOps.expert_mlp`. The sum is made in x's dtype."""
        uses, per_token = experts.reshape(-1), experts.shape[-1]
        order = mx.argsort(uses) if uses.size >= _SORT_FROM else None
        chosen = uses if order is None else uses[order]
        rows = mx.repeat(x, per_token, axis=0) if order is None else x[order // per_token]
        times = partial(self._expert_product, experts=chosen, is_sorted=order is not None)
        out = times(_swiglu(times(rows, gate), times(rows, up)), down)
        out = (out if order is None else out[mx.argsort(order)]).reshape(*experts.shape, -1)
        return mx.sum(out * shares[..., None].astype(out.dtype), axis=-2)

    def append(self, stored: mx.array, added: mx.array, offsets: Offsets) -> mx.array:
        """See `KernelOps.append`."""
        batch, groups, new, _ = added.shape
        if len(offsets) == 1:
            stored[:batch, :, offsets[0] : offsets[0] + new] = added
            return stored
        room = stored.shape[2]
        key = (tuple(offsets), groups, new, room)
        places = self._once("places", key, partial(_places, *key))
        return put(stored, places, added)

    def grow(self, stored: mx.array, rows: int, room: int, used: Sequence[int]) -> mx.array:
        """See `KernelOps.grow`. On CUDA there is room for whole multiples of 256 tokens."""
        room = -(-room // _CUDNN_ROOM) * _CUDNN_ROOM if is_cuda() else room
        grown = mx.zeros((rows, stored.shape[1], room, stored.shape[3]), stored.dtype)
        if used and max(used):
            old = slice(None, len(used)), slice(None), slice(None, max(used))
            grown[old] = stored[old]
        return grown

    def argmax(self, x: mx.array) -> mx.array:
        """See `KernelOps.argmax`."""
        return mx.argmax(x, axis=-1)

    def draw(self, logits: mx.array, rows: Sequence[DrawRow]) -> mx.array:
        """See `KernelOps.draw`."""
        return draw(logits, DrawTable.of(rows, logits.shape[-1]))

    def _product(self, x: mx.array, w: Weight, bias: mx.array | None) -> mx.array:
        if x.size == 0:  # MLX's CPU operator divides by the number of rows
            return mx.zeros(
                (*x.shape[:-1], w.shape[0] if isinstance(w, mx.array) else w.weight.shape[0]), x.dtype
            )
        wide = x.astype(mx.float32) if self._widens else x
        if isinstance(w, QuantizedWeights):
            scales, biases = w.scales_for(wide.dtype)
            out = mx.quantized_matmul(wide, w.weight, scales, biases, True, w.group_size, w.bits, mode=w.mode)
            return (out if bias is None else out + bias).astype(x.dtype)
        w = w.astype(wide.dtype)
        return (wide @ w.T if bias is None else mx.addmm(bias, wide, w.T)).astype(x.dtype)

    def _expert_product(self, x: mx.array, w: Weight, experts: mx.array, is_sorted: bool) -> mx.array:
        """Row t of x [T, I] times the transpose of w[experts[t]], w [N, O, I] -> [T, O]."""
        rows = x[:, None].astype(mx.float32) if self._widens else x[:, None]
        if isinstance(w, QuantizedWeights):
            scales, biases = w.scales_for(rows.dtype)
            packed, packing = (w.weight, scales, biases), (w.group_size, w.bits, w.mode)
            out = mx.gather_qmm(rows, *packed, None, experts, True, *packing, sorted_indices=is_sorted)
        else:
            matrices = w.astype(rows.dtype).swapaxes(-1, -2)
            out = mx.gather_mm(rows, matrices, rhs_indices=experts, sorted_indices=is_sorted)
        return out[:, 0].astype(x.dtype)

    def _chunk(self, query: mx.array, key: mx.array, value: mx.array, scale: float) -> mx.array:
        """Attention of new tokens, query [B, H, L, D], the last of S stored ones -> [B, H, L, D]."""
        return self.chunks.chosen(query, key)(query, key, value, scale, self._causal)

    def _causal(self, num_new: int, stored: int) -> str | mx.array:
        """The mask of the last `num_new` of `stored` tokens."""
        if not self._masks:
            return "causal"
        return self._once("causal", (num_new, stored), partial(_visible, (stored,), num_new, stored))


def is_cuda() -> bool:
    """Whether MLX computes on CUDA."""
    return mx.cuda.is_available() and mx.default_device() == mx.gpu


def _is_metal() -> bool:
    return mx.metal.is_available() and mx.default_device() == mx.gpu


@partial(mx.compile, shapeless=True)
def _swiglu(gate: mx.array, up: mx.array) -> mx.array:
    return gate * mx.sigmoid(gate) * up


@partial(mx.compile, shapeless=True)
def _gated(x: mx.array, gate: mx.array) -> mx.array:
    return x * mx.sigmoid(gate)


def _visible(lengths: tuple[int, ...], new: int, stored: int) -> mx.array:
    """Which stored tokens each row's new ones see, [B, 1, L, S]."""
    last = [[[[length - new + i] for i in range(new)]] for length in lengths]
    return mx.arange(stored) <= mx.array(last, mx.int32)


def _places(offsets: tuple[int, ...], groups: int, new: int, room: int) -> mx.array:
    """Where the tokens behind each row's offset lie in storage [B, G, room] as one axis, [B * G * L].

    NumPy counts them: a GPU would start four operators for some dozens of numbers.
    """
    heads = np.arange(len(offsets) * groups).reshape(-1, groups, 1) * room
    tokens = np.array(offsets)[:, None, None] + np.arange(new)
    return mx.array((heads + tokens).astype(np.uint32).reshape(-1))
