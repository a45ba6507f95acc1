"""Draws and scores by MLX's own operators: one graph for all rows, as large for one as for many.

Numbers are added by scans only, which add a row's numbers alike whatever the number of rows. A sum over rows
is made in another order on a GPU when there are more of them.
"""

from collections.abc import Sequence
from functools import partial

import mlx.core as mx
import numpy as np

from tiny_llm_lab.runtime.native.draw_table import DrawTable
from tiny_llm_lab.types import DrawRow
from tiny_llm_lab.types.computing.noise import gumbel_of_uniform, uniform_of_words

_PIECE = 512


def changed_rows(logits: mx.array, rows: Sequence[DrawRow]) -> mx.array:
    """Logits [n, V], changed as rows[i].changes says of each, in float32."""
    return _changed(logits.astype(mx.float32), DrawTable.of(rows, logits.shape[-1]))


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
