"""A Qwen small enough for a test: seeded weights, two layers, bytes for tokens."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from tiny_llm_lab.types import Checkpoint, ModelConfig, QuantizedWeights

EOS, SECOND_EOS = 256, 257
VOCAB = 258


class ByteDetokenizer:
    """Text from bytes; the bytes of an unfinished character wait."""

    def __init__(self) -> None:
        self._waiting = b""
        self._segment = ""

    def add_token(self, token: int) -> None:
        self._waiting += bytes([token]) if token < 256 else b""
        try:
            self._segment += self._waiting.decode()
        except UnicodeDecodeError as error:
            if error.reason == "unexpected end of data":
                return
            self._segment += self._waiting.decode(errors="replace")
        self._waiting = b""

    def finalize(self) -> None:
        self._segment += self._waiting.decode(errors="replace")
        self._waiting = b""

    @property
    def last_segment(self) -> str:
        segment, self._segment = self._segment, ""
        return segment


class ByteTokenizer:
    """Token i is the byte i of UTF-8; two more end a text."""

    eos_token_ids = {EOS, SECOND_EOS}  # noqa: RUF012
    longest_token = 1

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        return bytes(token for token in token_ids if token < 256).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        return bytes([token_id])

    @property
    def detokenizer(self) -> ByteDetokenizer:
        return ByteDetokenizer()


QWEN3 = ModelConfig(
    model_type="qwen3",
    vocab_size=VOCAB,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=24,  # not hidden_size / num_attention_heads, as in the real Qwen3
    intermediate_size=96,
    rms_norm_eps=1e-6,
    rope_theta=1_000_000.0,
    max_position_embeddings=1024,
    tie_word_embeddings=True,
    qkv_bias=False,
    qk_norm=True,
)
QWEN2 = replace(
    QWEN3,
    model_type="qwen2",
    num_hidden_layers=3,
    head_dim=16,
    rope_theta=10_000.0,
    tie_word_embeddings=False,
    qkv_bias=True,
    qk_norm=False,
)


def layer_weights(config: ModelConfig, rng: np.random.Generator) -> dict[str, mx.array]:
    """The parameters of one layer, under their names below `model.layers.N.`."""
    E, inner, D = config.hidden_size, config.intermediate_size, config.head_dim
    H, G = config.num_attention_heads, config.num_key_value_heads
    shapes = {
        "self_attn.q_proj.weight": (H * D, E),
        "self_attn.k_proj.weight": (G * D, E),
        "self_attn.v_proj.weight": (G * D, E),
        "self_attn.o_proj.weight": (E, H * D),
        "mlp.gate_proj.weight": (inner, E),
        "mlp.up_proj.weight": (inner, E),
        "mlp.down_proj.weight": (E, inner),
    }
    weights = {name: _matrix(rng, *shape) for name, shape in shapes.items()}
    for name in ("input_layernorm", "post_attention_layernorm"):
        weights[f"{name}.weight"] = _near_one(rng, E)
    if config.qk_norm:
        for name in ("q_norm", "k_norm"):
            weights[f"self_attn.{name}.weight"] = _near_one(rng, D)
    if config.qkv_bias:
        for name, heads in (("q_proj", H), ("k_proj", G), ("v_proj", G)):
            weights[f"self_attn.{name}.bias"] = mx.array(rng.normal(size=heads * D).astype(np.float32))
    return weights


def toy_weights(config: ModelConfig, seed: int = 0) -> dict[str, mx.array]:
    """A whole checkpoint in float32; the same numbers on every machine."""
    rng = np.random.default_rng(seed)
    weights = {"model.embed_tokens.weight": _matrix(rng, config.vocab_size, config.hidden_size)}
    for i in range(config.num_hidden_layers):
        for name, w in layer_weights(config, rng).items():
            weights[f"model.layers.{i}.{name}"] = w
    weights["model.norm.weight"] = _near_one(rng, config.hidden_size)
    if not config.tie_word_embeddings:
        weights["lm_head.weight"] = _matrix(rng, config.vocab_size, config.hidden_size)
    return weights


def toy_checkpoint(config: ModelConfig = QWEN3, seed: int = 0) -> Checkpoint:
    return Checkpoint("toy", Path("toy"), config, toy_weights(config, seed), ByteTokenizer(), mx.float32)


def toy_model(llm: Any, config: ModelConfig = QWEN3, seed: int = 0) -> Any:
    return llm.build_model(toy_checkpoint(config, seed))


def plain_model(llm: Any, config: ModelConfig = QWEN3, seed: int = 0) -> Any:
    """Week 1's model, whatever `build_model` chooses."""
    return llm.QwenModel(config, toy_weights(config, seed))


def random_tokens(seed: int, *shape: int) -> mx.array:
    return mx.array(np.random.default_rng(seed).integers(0, 256, size=shape).astype(np.int32))


def random_array(seed: int, *shape: int, dtype: mx.Dtype = mx.float32) -> mx.array:
    """Normal numbers of size one, the same on every machine."""
    return mx.array(np.random.default_rng(seed).normal(size=shape).astype(np.float32)).astype(dtype)


def packed_model(llm: Any, odd_layer: int | None = None) -> Any:
    """A model of 4 bits; in layer `odd_layer` the values have 8, so that q, k and v are not packed alike."""
    checkpoint = toy_checkpoint()
    weights = dict(checkpoint.weights)
    for name, w in weights.items():
        if name.endswith("_proj.weight"):
            bits = 8 if name == f"model.layers.{odd_layer}.self_attn.v_proj.weight" else 4
            weights[name] = QuantizedWeights(*mx.quantize(w, group_size=32, bits=bits), 32, bits)
    return llm.build_model(replace(checkpoint, weights=weights))


def _matrix(rng: np.random.Generator, rows: int, columns: int) -> mx.array:
    # Twice the usual spread, so that attention is peaked and answers depend on far tokens.
    return mx.array((rng.normal(size=(rows, columns)) * 2 / np.sqrt(columns)).astype(np.float32))


def _near_one(rng: np.random.Generator, size: int) -> mx.array:
    return mx.array((1 + 0.3 * rng.normal(size=size)).astype(np.float32))
