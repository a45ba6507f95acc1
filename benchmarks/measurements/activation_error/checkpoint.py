"""A checkpoint in 4 bits that every engine holds exactly, with or without outlier channels.

A weight is an integer from -8 to 7 times a scale of four significant bits for each 64 numbers. So the same
numbers fit MLX's packing, Q4_0, OpenVINO's int4_sym and bfloat16. One integer of each group is -8, because
OpenVINO takes the scale from the largest.

The shipped model in 4 bits, too, and its answers about text that its training did not see.
"""

import json
import random
import shutil
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import mlx.core as mx
import numpy as np
from recipes.default_model.stories import make_story

from benchmarks.measurements.activation_error.figures import Array, log_softmax
from benchmarks.measurements.activation_error.sides import Side, built
from benchmarks.measurements.recall import judge
from tiny_llm_lab import load_checkpoint, load_solution
from tiny_llm_lab.measure.corpus.recall import recall_questions
from tiny_llm_lab.runtime.models.random.config_json import config_json
from tiny_llm_lab.runtime.models.random.random_checkpoint import parameters_of, write_byte_tokenizer
from tiny_llm_lab.runtime.models.random.shapes import parse_shape
from tiny_llm_lab.types import ModelConfig

GROUP: Final = 64  # numbers that share a scale
_STD: Final = 2.9  # of the integers; those of the columns of outliers are -1, 0 or 1
_GAIN, _LOGIT_STD = 2.0, 4.0  # how much a projection lengthens a vector; of the logits, roughly
_RESIDUAL, _INNER = 16, 32  # times the others: outliers of the residual stream, of v and of up
_NORM: Final = (1.5, 6.0)  # times the others: the outliers' weights in a norm, which have a range


@dataclass(frozen=True)
class Outliers:
    """Which channels are large, one in `every`; of none if it is 0."""

    config: ModelConfig
    every: int

    def rows(self, name: str) -> Array:
        """The outputs of the matrix `name` that are large."""
        sizes = {"o_proj": self.config.hidden_size, "down_proj": self.config.hidden_size}
        sizes |= {"up_proj": self.config.intermediate_size}
        sizes |= {"v_proj": self.config.num_key_value_heads * self.config.head_dim}
        return self._drawn(sizes.get(_module(name), 0))

    def columns(self, name: str) -> Array:
        """The inputs of the matrix `name`, or the numbers of a norm, that are large."""
        if _module(name) == "o_proj":
            heads, groups = self.config.num_attention_heads, self.config.num_key_value_heads
            v = np.isin(np.arange(groups * self.config.head_dim), self.rows("v_proj.weight"))
            return np.flatnonzero(v.reshape(groups, -1).repeat(heads // groups, axis=0))
        return self._drawn(self.config.intermediate_size if "down" in name else self.config.hidden_size)

    def _drawn(self, size: int) -> Array:
        count = size // self.every if self.every else 0
        return np.sort(np.random.default_rng(size).choice(size, count, replace=False))


def write_packed(model: str, every: int, folder: Path) -> None:
    """Write `model`, such as "qwen3-0.6b,layers=4", packed, into the new `folder`.

    One channel in `every` is an outlier; 0: none is.
    """
    shape = parse_shape(f"{model},bits=4,group={GROUP}")
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config_json(shape)), encoding="utf-8")
    write_byte_tokenizer(folder, shape.vocab)
    config, parameters = parameters_of(shape)
    outliers, tensors = Outliers(config, every), dict[str, mx.array]()
    for name, size in parameters:
        if len(size) == 1:
            tensors[name] = mx.array(_vector(name, size[0], outliers)).astype(mx.bfloat16)
            continue
        integers, scales = _matrix(name, size, outliers)
        module, s = name.removesuffix(".weight"), mx.array(scales).astype(mx.bfloat16)
        nibbles = (integers + 8).astype(np.uint8)
        words = (nibbles[:, ::2] | nibbles[:, 1::2] << 4).view(np.uint32)
        tensors |= {name: mx.array(words), f"{module}.scales": s, f"{module}.biases": s * -8}
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, {"format": "mlx"})


def _module(name: str) -> str:
    return name.split(".")[-2]


def _vector(name: str, size: int, outliers: Outliers) -> Array:
    numbers = _draw(name).uniform(0.5, 1.5, size)
    columns = outliers.columns(name)
    if _module(name) in ("input_layernorm", "post_attention_layernorm"):
        numbers[columns] = np.linspace(*_NORM, len(columns))
    if name == "model.norm.weight":
        numbers[columns] = 1 / _RESIDUAL
    return numbers.astype(np.float32)


def _matrix(name: str, size: tuple[int, ...], outliers: Outliers) -> tuple[Array, Array]:
    """Integers [O, I], and scales [O, I / 64] float32."""
    draw, (rows, width) = _draw(name), size
    integers = np.clip(np.rint(draw.standard_normal(size, np.float32) * _STD), -7, 7).astype(np.int8)
    columns = outliers.columns(name)
    integers[:, columns] = np.clip(np.rint(draw.standard_normal((rows, len(columns))) / 2), -1, 1)
    largest = draw.integers(0, GROUP, (rows, width // GROUP)) + np.arange(0, width, GROUP)
    np.put_along_axis(integers, largest ^ np.isin(largest, columns), -8, -1)  # the one next to an outlier
    gain = _LOGIT_STD if "embed" in name or "lm_head" in name else _GAIN
    wanted = draw.uniform(0.7, 1.3, (rows, width // GROUP)) * gain / np.sqrt(width) / _STD
    parts, exponents = np.frexp(wanted * draw.choice((-1, 1), wanted.shape))
    scales = np.ldexp(np.rint(parts * 16) / 16, exponents).astype(np.float32)
    scales[outliers.rows(name)] *= _RESIDUAL if _module(name) in ("o_proj", "down_proj") else _INNER
    return integers, scales


def _draw(name: str) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(name.encode()))


_BITS: Final = 4
_STORIES, _LENGTH = 200, 64
_BATCH: Final = 5


def packed_default(folder: Path) -> None:
    """Write the default model into the new `folder`, all matrices in 4 bits in groups of 64."""
    checkpoint = load_checkpoint("default", dtype="float32")
    shutil.copytree(checkpoint.path, folder, ignore=shutil.ignore_patterns("*.safetensors", "README.md"))
    packing = {"quantization": {"group_size": GROUP, "bits": _BITS}}
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | packing), encoding="utf-8")
    tensors = dict[str, mx.array]()
    for name, w in checkpoint.weights.items():
        assert isinstance(w, mx.array)
        if w.ndim == 1:
            tensors[name] = w
            continue
        module = name.removesuffix(".weight")
        parts = mx.quantize(w.astype(mx.bfloat16), GROUP, _BITS)
        tensors |= dict(zip((name, f"{module}.scales", f"{module}.biases"), parts, strict=True))
    mx.save_safetensors(str(folder / "model.safetensors"), tensors, {"format": "mlx"})


def story_tokens(folder: Path) -> Array:
    """The first 64 tokens of 200 new stories."""
    rng, encode = random.Random("activation error"), load_checkpoint(folder).tokenizer.encode
    stories = (encode(make_story(rng).text)[:_LENGTH] for _ in range(10 * _STORIES))
    return np.array([story for story in stories if len(story) == _LENGTH][:_STORIES], np.int32)


def perplexity(logits: Array, tokens: Array) -> float:
    """Of tokens [B, L], each after those before it in its row; logits are [B * L, V]."""
    rows = logits.reshape(*tokens.shape, -1)[:, :-1]
    found = [
        log_softmax(row)[np.arange(len(row)), after] for row, after in zip(rows, tokens[:, 1:], strict=True)
    ]
    return float(np.exp(-np.mean(found)))


def recall(side: Side, folder: Path, context: int, count: int) -> float:
    """How many of `count` answers about notes of `context` tokens are right."""
    checkpoint = load_checkpoint(folder, dtype=side.dtype)
    tokenizer = checkpoint.tokenizer
    questions = recall_questions(1, count, context, tokenizer.encode)
    model, batch_generate = built(side, checkpoint), load_solution("ref").batch_generate
    generate = partial(batch_generate, model, tokenizer, batch_size=_BATCH)
    return float(judge(questions, context, tokenizer, generate)["num_right"])
