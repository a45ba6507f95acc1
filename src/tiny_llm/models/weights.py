"""A checkpoint's parameters by their names."""

from collections.abc import Mapping
from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import Weight

Weights = Mapping[str, Weight]


def below(module: str, weights: Weights) -> Weights:
    """Returns the parameters of a module, by their names in it."""
    return {
        name.removeprefix(f"{module}."): w for name, w in weights.items() if name.startswith(f"{module}.")
    }


def array(weights: Weights, name: str) -> mx.array:
    """Returns a parameter that is never quantized, such as a norm's weight or a projection's bias."""
    return cast(mx.array, weights[name])
