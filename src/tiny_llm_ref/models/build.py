"""Chooses, once, how a model computes."""

from tiny_llm_lab.runtime.native import delta_kernel, kernels
from tiny_llm_lab.types import Checkpoint, LayerStack

from ..layers.array_delta import ArrayDelta
from .hybrid import HybridModel
from .ops_hybrid import OpsHybridModel
from .ops_model import OpsAttention, OpsModel
from .qwen import QwenModel
from .stack_model import StackModel


def build_model(checkpoint: Checkpoint) -> QwenModel:
    """Returns the model of a loaded checkpoint.

    From task 2.5.6 on: an `OpsModel` on the operators that `kernels` returns, if it returns any.
    From task 3.2.6 on: a `StackModel` if the operators have a `LayerStack` for its layers.
    From task 4.3.6 on: a hybrid model if config.hybrid is not None, with what `delta_kernel` returns.
    """
    config, weights = checkpoint.config, checkpoint.weights
    ops = kernels(__package__, weights)
    if config.hybrid is not None:
        if ops is None:
            return HybridModel(config, weights)
        kernel = delta_kernel(__package__, ArrayDelta())
        return OpsHybridModel(config, weights, ops, delta_kernel=kernel)
    if ops is None:
        return QwenModel(config, weights)
    model = OpsModel(config, weights, ops)
    stack = _stack_of(model)
    return model if stack is None else StackModel(config, weights, ops, stack)


def _stack_of(model: OpsModel) -> LayerStack | None:
    mixers = [layer.mixer for layer in model.layers if isinstance(layer.mixer, OpsAttention)]
    weights = [mixer.weights for mixer in mixers if mixer.weights.router is None]
    return model.ops.layer_stack(weights, mixers[0].rope) if len(weights) == len(model.layers) else None
