"""The reference's parts, and its models on given operators, which measurements count and trace."""

import importlib
from collections.abc import Mapping
from typing import Any

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
    return llm.Qwen(config, weights, ops or llm.ArrayOps(), delta_kernel=delta)
