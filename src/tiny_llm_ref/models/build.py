"""Chooses, once, what a model computes with."""

from tiny_llm_lab.runtime.native import delta_kernel, is_unwritten, kernels
from tiny_llm_lab.types import Checkpoint

from .array_ops import ArrayOps, array_delta
from .model import Qwen
from .qwen import QwenModel


def build_model(checkpoint: Checkpoint) -> QwenModel | Qwen:
    """Returns the model of a loaded checkpoint.

    From task 2.5.6 on: a `Qwen` on the operators that `kernels` returns, or on `ArrayOps` if it returns none.
    From task 4.3.6 on: a hybrid's delta nets are computed by what `delta_kernel` returns.
    """
    config, weights = checkpoint.config, checkpoint.weights
    if is_unwritten(__package__, "models.model", "Qwen.__init__"):
        return QwenModel(config, weights)
    ops = kernels(__package__, weights) or ArrayOps()
    kernel = delta_kernel(__package__, array_delta) if config.hybrid else None
    return Qwen(config, weights, ops, delta_kernel=kernel)
