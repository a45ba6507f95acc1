"""What hybrids on arrays and on operators have in common."""

from typing import cast

import mlx.core as mx

from tiny_llm_lab.types import DeltaKernel, DeltaRule, HybridConfig, ModelConfig

from ..cache.memory import Memory
from ..cache.paged_states import HybridKvCache, StateLayer
from ..cache.state import BatchingState, SequenceState
from ..layers.gated_delta import GatedDeltaRule, KernelDeltaRule
from ..layers.layer_norm import RMSNorm
from .qwen import QwenModel, Weights

_STATES = (SequenceState, BatchingState, StateLayer)


def delta_rule(config: ModelConfig, weights: Weights, kernel: DeltaKernel | None = None) -> DeltaRule:
    """What is between a delta net's projections, from linear_attn.* in `weights`; by `kernel`, if any."""
    sizes, own = hybrid_of(config).delta_net, below("linear_attn", weights)
    rule = GatedDeltaRule(
        sizes,
        array(own, "conv1d.weight"),
        array(own, "A_log"),
        array(own, "dt_bias"),
        RMSNorm(sizes.value_head_dim, array(own, "norm.weight"), config.rms_norm_eps),
    )
    return rule if kernel is None else KernelDeltaRule(kernel, rule)


def state_of(cache: Memory, config: ModelConfig) -> SequenceState | BatchingState | StateLayer:
    """`cache`, or an empty state if it holds none."""
    return cache if isinstance(cache, _STATES) else SequenceState(hybrid_of(config).delta_net)


def hybrid_kv_cache(model: QwenModel, num_blocks: int, block_size: int, kv_bits: int | None) -> HybridKvCache:
    """A `HybridKvCache` in the dtype of the model's norms."""
    shape = (num_blocks, block_size, model.norm.weight.dtype, kv_bits)
    return HybridKvCache(model.config, hybrid_of(model.config), *shape, model.ops)


def hybrid_of(config: ModelConfig) -> HybridConfig:
    assert config.hybrid is not None, f"{config.model_type} is no hybrid"
    return config.hybrid


def below(module: str, weights: Weights) -> Weights:
    """The weights of a module, by their names in it."""
    return {
        name.removeprefix(f"{module}."): w for name, w in weights.items() if name.startswith(f"{module}.")
    }


def array(weights: Weights, name: str) -> mx.array:
    """A parameter that is never quantized."""
    return cast(mx.array, weights[name])
