"""Random numbers as weights, the same bits on every machine, made a piece at a time.

They come from NumPy's bit stream by exact arithmetic: normal draws, and MLX's on each of its devices,
differ in the last place, and the recorded answers of tests would not hold everywhere.
"""

import math
import zlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from tiny_llm_lab.runtime.models.random.shapes import CONV_KERNEL, DTYPES, Shape
from tiny_llm_lab.runtime.models.weights.hybrid_weights import NORMS
from tiny_llm_lab.runtime.models.weights.layout import CONV
from tiny_llm_lab.runtime.models.weights.parameters import EMBEDDING, ParameterShape

Piece = np.ndarray[Any, Any]
TensorShape = tuple[str, tuple[int, ...]]  # dtype as safetensors spells it, shape

# How many numbers we make at a time: 16 MB of float32.
_PIECE = 1 << 22
# Standard deviation of the logits: peaked enough that greedy decoding has clear winners.
_LOGIT_STD = 2.0
# How much a projection lengthens a vector. At 1 attention is nearly even and greedy answers soon repeat.
_GAIN = 2.0


def tensor_shapes(shape: Shape, name: str, size: ParameterShape) -> dict[str, TensorShape]:
    """The tensors of parameter `name` of logical `size`, in the order in which we make them."""
    dense = "F32" if shape.bits == 32 else "BF16"
    if len(size) == 1 or shape.bits in DTYPES or name.endswith(CONV):
        return {name: (dense, size)}
    *above, columns = size
    module = name.removesuffix(".weight")
    groups = ("BF16", (*above, columns // shape.group))
    packed = ("U32", (*above, columns * shape.bits // 32))
    return {name: packed, f"{module}.scales": groups, f"{module}.biases": groups}


def make_parameter(shape: Shape, name: str, size: ParameterShape) -> Iterator[Piece]:
    """The data of the tensors of one parameter, one after the other, in pieces of a few MB."""
    if len(size) == 1:
        # Not 1 for norms and 0 for biases, so that a model without them gives other results.
        yield from _uniform(shape, name, size, _centre(shape, name), 0.5)
        return
    # Uniform from -half to half, which has a standard deviation of half / sqrt(3).
    is_vocabulary = name in (f"{EMBEDDING}.weight", "lm_head.weight")
    inputs = CONV_KERNEL if name.endswith(CONV) else size[-1]
    half = math.sqrt(3 / inputs) * (_LOGIT_STD if is_vocabulary else _GAIN)
    if shape.bits in DTYPES or name.endswith(CONV):
        yield from _uniform(shape, name, size, 0, half)
        return
    # Packed bits may be any bits; q * scale + bias is uniform, with its own spread in every group.
    yield from _random_words(shape, name, math.prod(size) * shape.bits // 32)
    groups = (*size[:-1], size[-1] // shape.group)
    step = 2 * half / (2**shape.bits - 1)
    yield from _uniform(shape, f"{name}/scales", groups, step, step / 4)
    yield from _uniform(shape, f"{name}/biases", groups, -half, half / 16)


def _centre(shape: Shape, name: str) -> float:
    """The mean of a vector of parameters."""
    if name.endswith("A_log"):
        return -1.0  # states fade over some ten tokens
    is_stored_without_one = shape.is_hybrid and shape.bits in DTYPES and "linear_attn" not in name
    return 1.0 if name.endswith(NORMS) and not is_stored_without_one else 0.0


def _uniform(
    shape: Shape, name: str, size: ParameterShape, centre: float, half_width: float
) -> Iterator[Piece]:
    draw = _generator(shape, name)
    for count in _pieces(math.prod(size)):
        noise = draw.random(count, dtype=np.float32) * np.float32(2) - np.float32(1)
        numbers = noise * np.float32(half_width) + np.float32(centre)
        # bfloat16 is the upper half of a float32. We cut without rounding, since the numbers are random.
        yield numbers if shape.bits == 32 else (numbers.view(np.uint32) >> 16).astype(np.uint16)


def _random_words(shape: Shape, name: str, num_words: int) -> Iterator[Piece]:
    draw = _generator(shape, name)
    for count in _pieces(num_words):
        yield draw.integers(0, 2**32, count, dtype=np.uint32)


def _pieces(total: int) -> Iterator[int]:
    for begin in range(0, total, _PIECE):
        yield min(_PIECE, total - begin)


def _generator(shape: Shape, name: str) -> np.random.Generator:
    # By name, not by place, so that the first layers are the same however many follow.
    return np.random.Generator(np.random.PCG64([shape.seed, zlib.crc32(name.encode())]))
