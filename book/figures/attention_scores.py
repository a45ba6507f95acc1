"""Draws attention-scores.svg: which earlier token each token of a real text looks at, in one head.

The default model reads a text that says one thing twice. The head is chosen by hand, its numbers are not.
"""

from collections.abc import Mapping
from typing import Final

import mlx.core as mx
from book.figures.drawing import Drawing

from tiny_llm_lab import load_checkpoint
from tiny_llm_ref.layers.attention import causal_mask, scaled_dot_product_attention_simple
from tiny_llm_ref.layers.basics import linear
from tiny_llm_ref.layers.layer_norm import RMSNorm
from tiny_llm_ref.layers.positional_encoding import RoPE
from tiny_llm_ref.models.qwen import QwenModel

TEXT: Final = "Mira keeps the map in the attic. Owen keeps the key in the shed. Mira keeps the map in the"
LAYER, HEAD = 1, 2
CELL, LEFT, TOP = 17, 92, 66


def attention_weights(text: str, layer: int, head: int) -> tuple[list[str], list[list[float]]]:
    """The tokens of a text, and the weights [L, L] with which a head of a layer looks back at them."""
    checkpoint = load_checkpoint("default")
    config, tokens = checkpoint.config, checkpoint.tokenizer.encode(text)
    dims, eps = config.head_dim, config.rms_norm_eps
    rope = RoPE(dims, len(tokens), config.rope_theta)
    model = QwenModel(config, checkpoint.weights)
    x = model.embed_tokens(mx.array([tokens]))
    for before in model.layers[:layer]:
        x = before(x, [0])
    own = layer_weights(checkpoint.weights, layer)
    x = RMSNorm(config.hidden_size, array_of(own, "input_layernorm.weight"), eps)(x)

    def heads(name: str) -> mx.array:
        out = linear(x, own[f"self_attn.{name}_proj.weight"]).reshape(1, len(tokens), -1, dims)
        norm = RMSNorm(dims, array_of(own, f"self_attn.{name}_norm.weight"), eps)
        return rope(norm(out), [0]).transpose(0, 2, 1, 3)

    query, key = heads("q"), heads("k")
    shared = mx.repeat(key, query.shape[1] // key.shape[1], axis=1)
    # With the identity as values, the output of attention is its weights.
    size = len(tokens)
    out = scaled_dot_product_attention_simple(
        query, shared, mx.eye(size), mask=causal_mask(size, size, mx.float32)
    )
    return [checkpoint.tokenizer.decode([token]).strip() for token in tokens], out[0, head].tolist()


def draw() -> str:
    """The figure as SVG."""
    tokens, weights = attention_weights(TEXT, LAYER, HEAD)
    weights = [[round(weight, 2) for weight in row] for row in weights]
    drawing = Drawing(
        f"Attention weights of {len(tokens)} tokens, layer {LAYER}, head {HEAD} of the default model"
    )
    drawing.text(12, 24, f"Layer {LAYER}, head {HEAD}: who looks at whom", bold=True)
    drawing.text(LEFT, 46, "key: the token that is looked at", "grey", size=12)
    for i, token in enumerate(tokens):
        middle = LEFT + i * CELL + CELL / 2 - 1
        drawing.text(middle, TOP - 4, str(i), "grey", anchor="middle", size=11)
        drawing.text(LEFT - 8, TOP + i * CELL + 13, f"{token} {i}", anchor="end", size=12)
    for i, row in enumerate(weights):
        for j, weight in enumerate(row[: i + 1]):
            drawing.box(*_corner(i, j), CELL - 2, CELL - 2, "faint", strength=0.4)
            if weight:
                drawing.box(*_corner(i, j), CELL - 2, CELL - 2, strength=weight)
    drawing.text(LEFT + 9 * CELL, TOP + 3 * CELL, "empty: later tokens, which are hidden", "grey", size=12)
    last = weights[-1]
    best = max(range(len(last)), key=last.__getitem__)
    x, below = LEFT + best * CELL + CELL / 2 - 1, TOP + len(tokens) * CELL
    drawing.line([(x, below + 14), (x, below + 2)], "orange", has_arrow=True)
    drawing.text(
        LEFT, below + 28, f"the last token looks at token {best}, {tokens[best]}: {last[best]:.2f}", "orange"
    )
    return drawing.svg()


def _corner(row: int, column: int) -> tuple[float, float]:
    return LEFT + column * CELL, TOP + row * CELL


def array_of(weights: Mapping[str, object], name: str) -> mx.array:
    weight = weights[name]
    if not isinstance(weight, mx.array):
        raise TypeError(f"{name} is packed: draw from the default model, which is not")
    return weight


def layer_weights(weights: Mapping[str, object], layer: int) -> dict[str, mx.array]:
    prefix = f"model.layers.{layer}."
    return {name.removeprefix(prefix): array_of(weights, name) for name in weights if name.startswith(prefix)}
