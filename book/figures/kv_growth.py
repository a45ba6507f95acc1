"""Draws what a KV cache costs in memory, and what it saves in arithmetic, token by token."""

from collections.abc import Sequence

import mlx.core as mx

from tiny_llm_lab import load_checkpoint
from tiny_llm_lab.types import ModelConfig
from tiny_llm_ref.cache.kv_cache import TinyKvFullCache

from .drawing import Drawing

TOKENS, PROMPT = 1024, 57
LEFT, RIGHT, HIGH = 70.0, 460.0, 150.0
Point = tuple[float, float]


def storage(config: ModelConfig) -> tuple[list[int], list[int]]:
    """Bytes stored and bytes allocated by the reference's caches after each of TOKENS tokens, in float32."""
    cache, stored, allocated = TinyKvFullCache(), [], []
    key = mx.zeros((1, config.num_key_value_heads, 1, config.head_dim))
    for _ in range(TOKENS):
        keys, values = cache.update_and_fetch(key, key)
        cache.materialize()
        assert cache.keys is not None
        stored.append(config.num_hidden_layers * (keys.nbytes + values.nbytes))
        allocated.append(config.num_hidden_layers * 2 * cache.keys.nbytes)
    return stored, allocated


def flops(config: ModelConfig, new: int, stored: int) -> int:
    """Operations of a pass of `new` tokens, of `stored` in all: matrices, scores, one row of logits.

    Only the pairs of a query and a key that the causal mask lets through are counted.
    """
    heads, groups, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    width = config.hidden_size
    layer = 2 * width * dim * (heads + groups) + 3 * width * config.intermediate_size
    pairs = new * stored - new * (new - 1) // 2
    layers = 2 * layer * new + 4 * heads * dim * pairs
    return config.num_hidden_layers * layers + 2 * config.vocab_size * width


def totals(config: ModelConfig) -> tuple[list[int], list[int]]:
    """Operations so far without and with a cache, after each token of an answer to PROMPT tokens."""
    plain, cached = [0], [0]
    for length in range(PROMPT, PROMPT + TOKENS):
        plain.append(plain[-1] + flops(config, length, length))
        cached.append(cached[-1] + flops(config, length if length == PROMPT else 1, length))
    return plain[1:], cached[1:]


def draw() -> str:
    """The figure as SVG."""
    config = load_checkpoint("default", device="cpu").config
    stored, allocated = storage(config)
    plain, cached = totals(config)
    drawing = Drawing(
        f"Above, memory of the cache over {TOKENS} tokens: what is stored grows on a straight line, what is "
        "allocated in doubling steps above it. Below, operations so far: without a cache a steep curve, with "
        "one nearly flat."
    )
    drawing.text(16, 24, "memory of the cache, MiB", bold=True)
    top = max(allocated) / 2**20
    _axes(drawing, 44, top, "tokens stored")
    _curve(drawing, 44, top, [each / 2**20 for each in allocated], "orange")
    _curve(drawing, 44, top, [each / 2**20 for each in stored], "blue")
    drawing.text(LEFT + 40, 72, "allocated", "orange", bold=True)
    drawing.text(330, 150, "stored", "blue", bold=True)
    drawing.text(16, 264, f"operations so far, GFLOP, prompt of {PROMPT} tokens", bold=True)
    top = max(plain) / 1e9
    _axes(drawing, 284, top, "tokens of the answer")
    _curve(drawing, 284, top, [each / 1e9 for each in plain], "red")
    _curve(drawing, 284, top, [each / 1e9 for each in cached], "blue")
    drawing.text(230, 330, f"without a cache: {plain[-1] / 1e9:,.0f}", "red", anchor="end", bold=True)
    drawing.text(RIGHT, 424, f"with a cache: {cached[-1] / 1e9:.1f}", "blue", anchor="end", bold=True)
    return drawing.svg()


def _axes(drawing: Drawing, y: float, top: float, label: str) -> None:
    drawing.line([(LEFT, y), (LEFT, y + HIGH), (RIGHT, y + HIGH)], "grey")
    drawing.text(
        LEFT - 8, y + 10, f"{top:,.3g}" if top < 1000 else f"{top:,.0f}", "grey", anchor="end", size=12
    )
    drawing.text(LEFT - 8, y + HIGH + 4, "0", "grey", anchor="end", size=12)
    for at in (0, TOKENS // 2, TOKENS):
        x = LEFT + (RIGHT - LEFT) * at / TOKENS
        drawing.text(x, y + HIGH + 18, f"{at:,}", "grey", anchor="middle", size=12)
    drawing.text((LEFT + RIGHT) / 2, y + HIGH + 36, label, "grey", anchor="middle", size=12)


def _curve(drawing: Drawing, y: float, top: float, values: Sequence[float], role: str) -> None:
    """A line through every eighth value and both sides of every jump."""
    points: list[Point] = []
    for i, value in enumerate(values):
        is_jump = i > 0 and value > 1.5 * values[i - 1] and value > 0.02 * top
        if is_jump:
            points.append(_point(y, top, i, values[i - 1]))
        if is_jump or i % 8 == 0 or i == len(values) - 1:
            points.append(_point(y, top, i + (0 if is_jump else 1), value))
    drawing.line(points, role, width=2)


def _point(y: float, top: float, tokens: int, value: float) -> Point:
    x = LEFT + (RIGHT - LEFT) * tokens / TOKENS
    return round(x, 1), round(y + HIGH * (1 - value / top), 1)
