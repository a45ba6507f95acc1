"""The reference's parts, and its models on given operators, which measurements count and trace."""

import importlib
from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from tiny_llm_lab.runtime.task_names import TaskNames
from tiny_llm_lab.types import DeltaKernel, KernelOps, ModelConfig, Weight
from tiny_llm_lab.types.packages import PACKAGES


def reference() -> Any:
    """The package, with the names of all tasks, exported or not."""
    return TaskNames(importlib.import_module(PACKAGES["ref"]))


def model_on(
    config: ModelConfig,
    weights: Mapping[str, Weight],
    ops: KernelOps | None,
    delta: DeltaKernel | None = None,
) -> Any:
    """A model on `ops`, or on plain arrays for None; `delta` computes a hybrid's gated delta nets."""
    llm = reference()
    model = llm.Qwen(config, weights, ops or llm.ArrayOps(), delta_kernel=delta)
    # The taps that a kernel reads are laid out by a model's first step.
    mx.eval([net.conv for layer in model.layers if (net := layer.mixer.weights.net)])
    return model
